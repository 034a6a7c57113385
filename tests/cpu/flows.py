"""Locks and processes for tests of the whole flow: what a user runs, in a home of its own."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from agentcompile import catalog
from agentcompile.advice.advisers import adviser_of
from agentcompile.capture.cached import Model, load_model
from agentcompile.checkpoint.names import location
from agentcompile.cli.main import main
from agentcompile.evaluation.machine import this_machine
from agentcompile.evaluation.step_clock import policy_digest
from agentcompile.events import silent
from agentcompile.ir.target import Ceiling
from agentcompile.ir.trial import Fallback, Kernel, Part, Plan, Trial
from agentcompile.lockfile.files import write_lock
from agentcompile.lockfile.schema import Lock
from agentcompile.materialize import specialise
from agentcompile.ops.layouts import LAYOUTS
from agentcompile.options import Options
from agentcompile.planning.plans import Planned, plan
from agentcompile.regions.kinds import facts as kinds
from agentcompile.replay.write import LockFacts, lock_of
from agentcompile.system.probe import ceiling
from agentcompile.tuning.partitions import Cut, advise, bound, cut
from agentcompile.tuning.ranking import Ranking, signature_of
from agentcompile.tuning.tasks import TuneTask
from tests.models.tiny import Stepper
from tests.unit import runs

ROOT = Path(__file__).parents[2]
SAMPLE = ROOT / "bench/models/sample"
THREADS = 2
WALKED_CONTEXT, WALKED_THREADS = 64, 1
"""Of whoever compiles the sample checkpoint in the home that all of these share; a screen needs a processor, too."""
CEILING = Ceiling(dram_bytes_per_s=20e9, cache_bytes_per_s=200e9, flops_per_s=200e9)
"""Made up: where nothing is timed, only the order of floors matters."""
AMPLE = Ceiling(dram_bytes_per_s=1e12, cache_bytes_per_s=1e13, flops_per_s=1e13)
"""More than this machine has: as after a measurement among other work, no kernel is called impossible by it."""
RATES_ONCE = (
    "import functools; from agentcompile.evaluation.evaluator import WorkerEvaluator as AttemptEvaluator; "
    "AttemptEvaluator.ceiling = functools.cache(AttemptEvaluator.ceiling); "
)
"""In front of a recipe: the machine's rates, which take seconds, are measured once and not before each visit."""
NO_NETWORK = Path(__file__).with_name("no_network")
"""A folder whose `sitecustomize` makes every use of a network socket, and every import of a client of one, an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A process that ran to its end."""

    code: int
    out: str
    err: str

    @property
    def events(self) -> list[dict[str, Any]]:
        """What `--events jsonl` printed."""
        return [json.loads(line) for line in self.out.splitlines()]

    def refuses(self, code: int, *words: str, label: str = "error") -> None:
        """It ended as a clear error does: its exit code, one message with these words, a hint, no traceback.

        `label` begins the message: ``review`` for a run that waits for a person, where nothing is wrong.
        """
        said = self.out + self.err
        assert self.code == code, f"exit {self.code}, not {code}: {said}"
        assert "Traceback" not in said, said
        assert "internal error" not in said, said
        lines = self.err.splitlines()
        message = next((line for line in lines if line.startswith(f"{label}: ")), "")
        assert message, said
        assert any(line.startswith("hint: ") and len(line) > len("hint: ") for line in lines), said
        for word in words:
            assert word in self.err, f"{word!r} is not in: {self.err}"


def environment(home: Path, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a user whose data lie in `home`, and who has no settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AGENTCOMPILE_")}
    return {**kept, "AGENTCOMPILE_HOME": str(home), **(more or {})}


def command(*arguments: object) -> list[str]:
    """The command line as an installed script runs it."""
    return [sys.executable, "-m", "agentcompile", *(str(argument) for argument in arguments)]


def cli(
    home: Path, *arguments: object, env: Mapping[str, str] | None = None, cwd: Path | None = None, limit_s: float = 300,
    itself: bool = False,
) -> Ended:  # fmt: skip
    """Run a verb in a process of its own, which is started `itself`, and never forked from one that has begun."""
    done = subprocess.run(
        command(*arguments),
        executable=sys.executable if itself else None,
        env=environment(home, env),
        cwd=cwd or ROOT,
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    return Ended(code=done.returncode, out=done.stdout, err=done.stderr)


def verb(home: Path, *arguments: object, env: Mapping[str, str] | None = None) -> Ended:
    """Run a verb in this process, where PyTorch is imported already: the same command line, seconds sooner."""
    out, err = io.StringIO(), io.StringIO()
    before, asked = dict(os.environ), environment(home, env)
    os.environ.clear()
    os.environ.update(asked)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main([str(argument) for argument in arguments])
    finally:
        os.environ.clear()
        os.environ.update(before)
    return Ended(code=code, out=out.getvalue(), err=err.getvalue())


def options(home: Path, model: Path, context: int, **more: Any) -> Options:
    """Settings as the API takes them."""
    return Options(model=str(model), context=context, threads=THREADS, home=str(home), **more)


def measured(home: Path, rates: Ceiling = AMPLE) -> Path:
    """`home`, where the machine's ceilings are known: beside other tests, what is measured is measured again and again,
    for it is kept only when nothing else ran."""
    here = this_machine(options(home, SAMPLE, 1))
    ceiling(here.target, here.store, lambda: rates)
    return home


def captured(home: Path, checkpoint: Path, context: int) -> Path:
    """`home`, where the checkpoint's graphs are known: here PyTorch and Transformers are imported once for all."""
    here = this_machine(options(home, checkpoint, context))
    load_model(checkpoint, context, here.store, here.hashes)
    return home


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """A plan that was written down and not measured: everything that a lock is sealed from."""

    model: Model
    cuts: tuple[Cut, ...]
    """By regime, the prefill's last."""
    planned: Planned
    trials: Mapping[str, tuple[Trial, ...]]
    facts: LockFacts

    def seal(self) -> Lock:
        """The lock."""
        covers = [*self.planned.decode, self.planned.prefill]
        plans = [
            Plan(regime=cut.partition.regime, parts=parts, exact=self.planned.exact)
            for cut, parts in zip(self.cuts, covers, strict=True)
        ]
        return lock_of(self.facts, self.cuts, plans, self.planned.layouts, self.trials)


def plant(
    home: Path, checkpoint: Path, context: int, out: Path, *, library: bool = False, prompts: bool = False, **more: Any
) -> Planted:
    """Plan steps that run a kernel wherever a template serves, each as the adviser likes it best.

    A search on a busy machine may give everything back to PyTorch; this one leaves nothing to the clock. `library`
    takes PyTorch calls instead of C++; `prompts` plans a CPU's chunks of prompts so too; `more` are further options.
    """
    asked = options(home, checkpoint, context, **more)
    here = this_machine(asked)
    model = load_model(checkpoint, context, here.store, here.hashes)
    decode, prefill = cut(model.captured, here.target, CEILING, silent, asked.batch)
    templates = catalog.load([catalog.default_root()], kinds=kinds(), layouts=LAYOUTS)
    chunks = [prefill] if prompts or here.target.kind == "cuda" else []
    spaces = bound([*decode, *chunks], templates, here.target, silent)
    subjects = advise(spaces, adviser_of("heuristic"), CEILING, prefill.residency, silent)
    kernels = {subject.region.id: _kernel(subject, library) for subject in subjects}
    rankings, trials = {}, {}
    for id, found in kernels.items():
        ranked = () if found is None else (((signature_of(found[1]), (found[0],))),)
        rankings[id] = Ranking(kernels=ranked, fallback=Fallback(reason="no such template"))
        trials[id] = () if found is None else (_confirmed(found[0]),)
    planned = plan(decode, prefill, subjects, rankings, trials, lambda _: 1e6, CEILING, here.target.kind)
    about = LockFacts(
        target=here.target,
        captured=model.captured,
        location=location(str(checkpoint), out),
        policy=policy_digest(prefill.residency),
    )
    return Planted(model=model, cuts=(*decode, prefill), planned=planned, trials=trials, facts=about)


def _kernel(subject: TuneTask, library: bool) -> tuple[Kernel, Any] | None:
    by_id = {template.id: template for template in subject.space.templates}
    for candidate in subject.advice.sorted(tuple(subject.space)):
        template = by_id[candidate.template]
        if (template.language == "library") is library:
            source = specialise(template, subject.region, candidate.params, subject.space.target)
            return Kernel(candidate=candidate, source=source.digest, speedup=2.0, half_width=0.01), template
    return None


def _confirmed(kernel: Kernel) -> Trial:
    return Trial(candidate=kernel.candidate, source=kernel.source, verdict=runs.measured(), fidelity="confirm")


def write(home: Path, checkpoint: Path, context: int, out: Path, *, library: bool = False, **more: Any) -> Path:
    """A lock at `out` whose decode steps are all kernels."""
    made = plant(home, checkpoint, context, out, library=library, **more)
    assert any(isinstance(part.choice, Kernel) for part in made.planned.decode[0])
    write_lock(out, made.seal())
    return out


def rewrite(lock: Lock, out: Path, *, target: Mapping[str, Any] | None = None, **fields: Any) -> Path:
    """Write `lock` with other fields and the hash that belongs to them: what another machine would have written."""
    if target:
        fields["target"] = replace(lock.target, **target)
    write_lock(out, replace(lock, **fields))
    return out


def kernels(parts: Sequence[Part]) -> int:
    """How many parts of a plan run a kernel."""
    return sum(isinstance(part.choice, Kernel) for part in parts)


def greedy_on(stepper: Stepper, prompt: Sequence[int], count: int) -> list[int]:
    """Tokens that a captured PyTorch graph itself gives: one prefill, then steps."""
    logits = stepper.feed("prefill", torch.tensor(list(prompt)), 0)["logits"][0, 0]
    made: list[int] = []
    for at in range(len(prompt), len(prompt) + count):
        made.append(int(logits.float().argmax()))
        if len(made) < count:
            logits = stepper.feed("decode", torch.tensor(made[-1:]), at)["logits"][0, 0]
    return made


def greedy(model: Model, prompt: Sequence[int], count: int) -> list[int]:
    """`greedy_on` of a captured model with fresh states."""
    return greedy_on(Stepper(model.captured), prompt, count)


def eager(checkpoint: Path, prompt: Sequence[int], count: int) -> list[int]:
    """Tokens that Hugging Face's own model gives in its own dtype, recomputing everything at every step."""
    from agentcompile.runtime.eager import load

    model, tokens = load(checkpoint), list(prompt)
    with torch.inference_mode():
        for _ in range(count):
            tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].float().argmax()))
    return tokens[len(prompt) :]


def mutual(a: torch.Tensor, b: torch.Tensor, among: int = 5) -> bool:
    """Whether each one's likeliest token is among the other's `among` likeliest: [vocab] each."""
    return int(a.argmax()) in b.topk(among).indices.tolist() and int(b.argmax()) in a.topk(among).indices.tolist()
