"""Wrong calls: the public interface and the command line with arguments of wrong types and values.

Each call has one drawn argument. A wrong one must end in AgentCompileError with exit code 2 and a hint; a right one of
another type must give what the plain value gives; either within seconds of processor time. All calls of the interface
are made to one model in one process, which must give the same answers after them as before.
"""

from __future__ import annotations

import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import chdir, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agentcompile.api import compile, load
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.options import PROJECT_FILE, resolve
from agentcompile.pipeline import compile_model
from agentcompile.runtime.settings import DEFAULTS

from ..models.locate import SAMPLE
from . import wrong
from .report import Campaign, Figures, Report, Say, limited
from .wrong import WRONG, Value

DEFAULT = 600
LINES = 25
"""Calls for each command line: a process that imports PyTorch takes as long as hundreds of calls."""
LIMIT_S = 2.0
"""The limit of one call, in seconds of processor time."""
LINE_LIMIT_S = 15.0
"""The limit of a command line, in seconds of processor time, most of which importing takes."""
HUNG_S = 120
"""The wall time in seconds after which a call counts as hung."""
CONTEXT = 96
CHECKED = 25
"""The number of calls after which the model is asked the first question again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiCall:
    """One call: `run` makes it with the drawn value, `plain` with the plain value that it means.

    `plain` is None when the drawn value is wrong.
    """

    label: str
    run: Callable[[], Any]
    plain: Callable[[], Any] | None


def run(campaign: Campaign, say: Say) -> Report:
    """Compile a small model with no kernels, call it `campaign.count` times, then run command lines on its lock."""
    failures, tried, slowest, outcomes = list[str](), 0, 0.0, Counter[str](refused=0, answered=0, lines=0)
    with tempfile.TemporaryDirectory(prefix="agentcompile-api-") as folder, _at(Path(folder)) as lock:
        model = load(lock)
        campaign = replace(campaign, begun=time.monotonic())  # the time limit leaves out the preparation
        first = _same(model)
        for index in range(campaign.count):
            if campaign.over:
                break
            call = drawn(model, lock, random.Random(f"{campaign.seed} {index}"))
            outcome, fault, spent = outcome_of(call)
            outcomes[outcome] += 1
            slowest = max(slowest, round(spent, 2))
            tried += 1
            if not fault and tried % CHECKED == 0 and _same(model) != first:
                fault = "the model answers otherwise than before"
            if fault:
                failures.append(f"--seed {campaign.seed}, call {index}: {call.label}: {fault}")
            if tried % 100 == 0:
                say(f"{tried} calls, {len(failures)} failures")
        every = wrong.lines(str(lock))
        for line in random.Random(f"{campaign.seed} lines").sample(every, min(len(every), campaign.count // LINES)):
            if campaign.over:
                break
            outcomes["lines"] += 1
            tried += 1
            if fault := line_fault(line):
                failures.append(f"{[part[:40] for part in line]!a}: {fault}")
        say(f"{outcomes['lines']} command lines")
    figures: Figures = {name: outcomes.pop(name) for name in ("refused", "answered", "lines")}
    figures |= {"slowest_cpu_s": slowest, **outcomes}
    return Report(kind="api", tried=tried, failures=tuple(failures), figures=figures)


@contextmanager
def _at(folder: Path) -> Iterator[Path]:
    """Yield a lock of the sample model without kernels, with `folder` as home and working directory of all runs."""
    lock = folder / "sample.lock.toml"
    (folder / PROJECT_FILE).write_text(f"home = '{folder / 'home'}'\n", encoding="utf-8")
    flags = {"model": str(SAMPLE), "out": str(lock), "context": CONTEXT, "choose": "pytorch", "target": "cpu"}
    with chdir(folder):
        compile_model(resolve(flags).options)
        yield lock


def _same(model: Any) -> Any:
    return model.generate([1, 2, 3], max_new_tokens=4, ignore_eos=True).tokens


def drawn(model: Any, lock: Path, rng: random.Random) -> ApiCall:
    """Draw a call with one drawn argument."""
    name = rng.choice(["generate"] * 4 + ["stream"] * 3 + ["logits", "prefill", "load", "compile"])
    vocab, context = model.info.vocab, model.info.context
    if name in ("generate", "stream"):
        verb = model.generate if name == "generate" else lambda *args, **kwargs: list(model.stream(*args, **kwargs))
        argument = rng.choice(["prompt"] * 6 + list(wrong.settings()))
        value = wrong.prompts(rng, vocab, context) if argument == "prompt" else rng.choice(wrong.settings()[argument])
        if argument in DEFAULTS and value.given is None:  # as if it were not given
            value = Value(given=None, means=DEFAULTS[argument])
        if name == "stream" and isinstance(value.means, list) and value.means and isinstance(value.means[0], list):
            value = Value(given=value.given)
        return _call(name, argument, value, lambda **settings: _asked(verb, settings))
    if name == "prefill":
        value = wrong.ids(rng, vocab, context)
        return _call(name, "ids", value, lambda ids: model.prefill(ids).tolist())
    if name == "logits":
        positions = [
            *wrong.anything()[1:],
            *(Value(given=one) for one in ([], [-1], [3], [0.5], [True], "0", [2**70], 1, [[0]])),
            *(Value(given=given, means=[0, 2]) for given in ((0, 2), [2, 0], [0, 2, 2])),
        ]
        value = rng.choice(positions)
        return _call(name, "positions", value, lambda positions: model.logits([1, 2, 3], positions).tolist())
    if name == "load":
        argument = rng.choice(["lock", "model", "options"])
        values = [*wrong.anything(), *wrong.paths()]
        if argument == "options":
            values = [one for one in [*wrong.anything(), Value(given="x"), Value(given=5)] if one.given is not None]
        plain: dict[str, Any] = {} if argument == "lock" else {"lock": lock}
        return _call(name, argument, rng.choice(values), lambda **given: load(**{**plain, **given}))
    every = wrong.compiling()
    argument = rng.choice(list(every))
    return _call(name, argument, rng.choice(every[argument]), lambda **given: compile(**{"model": SAMPLE, **given}))


def _call(name: str, argument: str, value: Value, verb: Callable[..., Any]) -> ApiCall:
    try:
        shown = ascii(value.given[:24] if isinstance(value.given, (str, bytes, list, tuple)) else value.given)[:60]
    except RuntimeError:
        shown = "Hostile"
    return ApiCall(
        label=f"{name}({argument}={shown})",
        run=lambda: verb(**{argument: value.given}),
        plain=None if value.means is WRONG else lambda: verb(**{argument: value.means}),
    )


def _asked(verb: Callable[..., Any], settings: Mapping[str, Any]) -> Any:
    given = {"prompt": [5, 6, 7], "max_new_tokens": 2, **settings}
    made = verb(given.pop("prompt"), **given)
    return [(one.tokens, one.text, one.logprobs) for one in (made if isinstance(made, list) else [made])]


def outcome_of(call: ApiCall) -> tuple[str, str, float]:
    """Make a call; return its outcome, what is wrong with it, and the processor time in seconds.

    The outcome is "refused", "answered" or "wrong"; the second text is empty when nothing is wrong.
    """
    try:
        with limited(HUNG_S):
            expected = call.plain() if call.plain is not None else None
    except Exception as error:  # noqa: BLE001 - a defect of ours, whatever it is
        return "wrong", f"the plain call raises {type(error).__name__}: {error}", 0.0
    begin = time.process_time()
    made, refusal = None, None
    try:
        with limited(HUNG_S):
            made = call.run()
    except AgentCompileError as error:
        refusal = error
    except Exception as error:  # noqa: BLE001 - what the campaign looks for
        return "wrong", f"{type(error).__name__}: {str(error)[:200]}", time.process_time() - begin
    spent, wrongly = time.process_time() - begin, ""
    if refusal is None and call.plain is None:
        wrongly = f"expected a refusal, got {str(made)[:80]}"
    elif refusal is None and made != expected:
        wrongly = f"expected {str(expected)[:80]}, got {str(made)[:80]}"
    elif refusal is not None and call.plain is not None:
        wrongly = f"expected an answer, was refused: {refusal.message[:200]}"
    elif refusal is not None and not (refusal.exit_code is ExitCode.USAGE and refusal.hint and refusal.message):
        wrongly = f"exit code {int(refusal.exit_code)}, hint {refusal.hint!r}: {refusal.message[:200]}"
    if wrongly:
        return "wrong", wrongly, spent
    late = f"took {spent:.1f} s of processor time" if spent > LIMIT_S else ""
    return "answered" if refusal is None else "refused", late, spent


def line_fault(line: list[str]) -> str:
    """Run a command line that must end with exit code 2; return what is wrong with how it ends, or an empty text."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command: list[str | bytes] = [sys.executable, "-m", "agentcompile", *(os.fsencode(part) for part in line)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=HUNG_S, check=False, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return f"did not end in {HUNG_S} s"
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    said = done.stderr.decode(errors="replace") + done.stdout.decode(errors="replace")
    if "Traceback" in said or "internal error" in said:
        return f"exit code {done.returncode}: {said[-200:]!a}"
    if done.returncode != ExitCode.USAGE or not ("hint:" in said or "Usage:" in said):
        return f"exit code {done.returncode}: {said[:200]!a}"
    return f"took {spent:.1f} s of processor time" if spent > LINE_LIMIT_S else ""
