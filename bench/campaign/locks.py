"""`bench campaign --kind locks`: locks with random bytes, and locks with changed content and a correct new hash.

Each lock is opened; one that opens as another plan than the original's runs in a process of its own. Allowed are the
same plan, a refusal with exit code 2 or 3 and a sentence, or another plan with the original's outputs. Never allowed
are a traceback, a crash, a hang, or other outputs.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from agentcompile import catalog
from agentcompile.capture import Captured
from agentcompile.capture.cached import Model, load_model
from agentcompile.checkpoint.locate import find_model
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.evaluation.machine import Machine, this_machine
from agentcompile.ir.graph import Graph
from agentcompile.ir.region import Regime
from agentcompile.lockfile.bundle import Bundle
from agentcompile.lockfile.files import read_lock, render_lock
from agentcompile.lockfile.order import regime_of
from agentcompile.lockfile.schema import Lock
from agentcompile.ops.layouts import LAYOUTS
from agentcompile.options import Options, resolve
from agentcompile.pipeline import compile_model
from agentcompile.regions.kinds import facts as kinds
from agentcompile.regions.partition import Partition
from agentcompile.replay.open import OpenedLock, cuts_of, opened_with
from agentcompile.replay.sources import LockSources, write_bundle

from .forging import FORGERIES, Ground
from .report import Campaign, Figures, HungError, Report, Say, limited
from .spoiling import SPOILS

DEFAULT = 12_500
RESEALED = 0.2
"""The share of the attempts whose locks are resealed: changed in content, with a correct new hash."""
RUNS = 60
"""The most plans that are run of those that differ from the original's."""
LIMIT_S = 10.0
"""The time limit for opening one lock, in seconds."""
RUN_LIMIT_S = 300.0
"""The time limit for building, validating and running one lock, in seconds."""
APART = 0.03
"""How far outputs in bf16 may differ from the original's, as a share of the largest logit.

A wrong kernel or layout differs by tens of times that.
"""
PRESET, CONTEXT, THREADS = "preset:tiny-qwen3", 64, 2
REFUSALS = (ExitCode.USAGE, ExitCode.DRIFT)
IDS = (3, 141, 59, 26, 5, 358, 97, 93, 238, 46, 264, 33, 83, 27, 95, 28, 84, 197, 169, 399, 37)
"""The prompt that locks are compared by."""
Answer = dict[str, float | int | str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt: how the lock was changed, and the failure, the refusal's exit code or the plan that it opened as."""

    name: str
    how: str
    failure: str = ""
    refused: int = 0
    plan: OpenedLock | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The original lock, opened once, with all that is needed to open variants of it."""

    path: Path
    lock: Lock
    here: Machine
    model: Model
    templates: catalog.Catalog
    kept: LockSources
    folder: Path
    cuts: dict[Regime, tuple[Graph, Partition]] = field(default_factory=dict)

    @classmethod
    def of(cls, path: Path, options: Options, folder: Path) -> Target:
        """Open the lock at `path`, of the model that `options` name."""
        lock, here = read_lock(path), this_machine(options, kind="cpu")
        model = load_model(find_model(options.model, options.cache), lock.model.context, here.store, here.hashes)
        templates = catalog.load([catalog.default_root()], kinds=kinds(), layouts=LAYOUTS)
        kept = LockSources(bundle=Bundle(sources={}, templates={}))
        made = cls(path=path, lock=lock, here=here, model=model, templates=templates, kept=kept, folder=folder)
        ground = made.ground()
        for job in made.opened(path, lock).jobs:
            ground.keep(job.source)
            ground.keep(job.template)
        return made

    def opened(self, path: Path, lock: Lock) -> OpenedLock:
        """Open a lock against the loaded model and templates; the partition of a regime is made once."""
        return opened_with(path, lock, self.here, self.model, self.templates, self.kept, cuts=self._cut)

    def _cut(self, captured: Captured, regime: Regime, kind: str) -> tuple[Graph, Partition]:
        if regime not in self.cuts:
            self.cuts[regime] = cuts_of(captured, regime, kind)
        return self.cuts[regime]

    def ground(self) -> Ground:
        """Return what a forger can use; its bundle holds the sources and templates that forged locks name."""
        regions = {
            region.id: region
            for plan in self.lock.plan
            for region in self._cut(self.model.captured, regime_of(plan), "cpu")[1].regions
        }
        return Ground(regions=regions, templates=self.templates, kept=self.kept)

    def attempt(self, name: str, how: str, data: Callable[[], bytes]) -> Attempt:
        """Write a lock, open it, and return the result."""
        path = self.folder / "spoiled.lock.toml"
        try:
            path.write_bytes(data())
            with limited(LIMIT_S):
                return Attempt(name=name, how=how, plan=self.opened(path, read_lock(path)))
        except AgentCompileError as error:
            bad = error.exit_code not in REFUSALS or not error.message or not error.hint
            failure = f"exit {int(error.exit_code)}: {error.message} ({error.hint})" if bad else ""
            return Attempt(name=name, how=how, failure=failure, refused=int(error.exit_code))
        except Exception as error:  # noqa: BLE001 - whatever opening lets through is what is looked for
            return Attempt(name=name, how=how, failure=f"{type(error).__name__}: {str(error)[:200]}")


def spoiled(target: Target, at: int, seed: int) -> Attempt:
    """Make attempt number `at` of a seed with the bytes of the lock changed."""
    draw = random.Random(f"{seed}/raw/{at}")
    how, data = draw.choice(sorted(SPOILS)), target.path.read_bytes()
    return target.attempt(f"raw {at}", how, lambda: SPOILS[how](data, draw))


def resealed(target: Target, ground: Ground, at: int, seed: int) -> Attempt:
    """Make attempt number `at` of a seed with the lock's content changed one to three times and its hash renewed."""
    draw = random.Random(f"{seed}/resealed/{at}")
    names = [draw.choice(sorted(FORGERIES)) for _ in range(draw.choice((1, 1, 1, 2, 3)))]

    def data() -> bytes:
        lock = target.lock
        for name in names:
            lock = FORGERIES[name](lock, ground, draw)
        return render_lock(lock)

    return target.attempt(f"resealed {at}", " + ".join(names), data)


def same(one: OpenedLock, other: OpenedLock) -> bool:
    """Return whether two locks run the same programs for the same lengths, on the same number of threads."""
    first, second = (
        (
            opened.decode,
            opened.prefill,
            (opened.chunk, opened.steps_up_to),
            opened.lock.target.threads,
            {job.source.digest for job in opened.jobs},
        )
        for opened in (one, other)
    )
    return first == second


class Runner:
    """The process that runs locks; it is replaced when it dies or hangs."""

    def __init__(self, model: str, home: str, first: Path) -> None:
        """Store what the process needs; `first` is the lock that others are compared with."""
        self._command = [sys.executable, "-m", __name__, model, home, str(THREADS)]
        self._first = first
        self._process: subprocess.Popen[str] | None = None

    def run(self, path: Path) -> Answer:
        """Run one lock; return its answer, which has a `failure` when the process gave none."""
        if self._process is None:
            self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            if "apart" not in (answer := self._ask(self._first)):
                return {"failure": f"the original does not run: {answer}"}
        return self._ask(path)

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            with self._process:
                self._process.kill()
            self._process = None

    def _ask(self, path: Path) -> Answer:
        process, line = self._process, ""
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{path}\n")
        process.stdin.flush()
        with suppress(HungError), limited(RUN_LIMIT_S):
            line = process.stdout.readline()
        if not line:
            self.close()
            return {"failure": f"no answer: the process died, or ran for {RUN_LIMIT_S:g} s"}
        found: Answer = json.loads(line)
        return found


def run_locks(model: str, home: str, threads: int) -> None:
    """Run locks in this process, to compare their outputs with those of the first.

    In: the path of a lock on each line of stdin. Out: a JSON object for each on stdout, with the largest difference
    from the first lock's outputs relative to their largest value, or a refusal. Outputs are logits: from decode steps
    at every position, and from prompts of one, 21 and 42 tokens.
    """
    import torch

    from agentcompile.replay.load import replay_lock

    options = resolve({"model": model, "home": home, "threads": threads}).options
    first: tuple[torch.Tensor, ...] | None = None
    for line in sys.stdin:
        answer: Answer = {}
        try:
            loaded = replay_lock(Path(line.strip()), options)
            ids = [token % loaded.info.vocab for token in IDS]
            prompts = (ids[:1], ids, ids * 2)
            made = (loaded.logits(ids), *(loaded.prefill(prompt) for prompt in prompts))
            first = first or made
            pairs = list(zip(first, made, strict=True))
            answer["apart"] = max(float((one - other).abs().max() / one.abs().max()) for one, other in pairs)
            answer["finite"] = int(all(bool(torch.isfinite(other).all()) for _, other in pairs))
        except AgentCompileError as error:
            answer = {"refused": int(error.exit_code), "message": error.message}
        print(json.dumps(answer), flush=True)


def wrong(answer: Answer) -> str:
    """Return what is wrong with how a lock ran; empty when nothing is.

    A refusal is not wrong, because kernels are validated before they run.
    """
    if "failure" in answer:
        return str(answer["failure"])
    if "refused" in answer:
        known = (*REFUSALS, ExitCode.CORRECTNESS, ExitCode.ENVIRONMENT)
        return "" if answer["refused"] in known else f"exit {answer['refused']}: {answer['message']}"
    if not answer["finite"] or float(answer["apart"]) > APART:
        return f"its logits are {float(answer['apart']):.3g} of the largest from the original's"
    return ""


def run(campaign: Campaign, say: Say) -> Report:
    """Compile a tiny model without timing, then attack its lock."""
    with tempfile.TemporaryDirectory(prefix="agentcompile-locks-") as name:
        folder = Path(name)
        path = folder / "original.lock.toml"
        flags = {"model": PRESET, "context": CONTEXT, "threads": THREADS, "home": str(folder / "home"), "target": "cpu"}
        options = resolve({**flags, "choose": "first", "out": str(path)}).options
        say(f"compiling {PRESET} untimed")
        compile_model(replace(options, budget=1))
        target = Target.of(path, options, folder)
        return attack(target, campaign, say, model=PRESET, home=options.home)


def attack(
    target: Target, campaign: Campaign, say: Say, *, model: str, home: str, runs: int = RUNS, share: float = RESEALED
) -> Report:
    """Change the lock of `target` as often as requested, and run up to `runs` of the other plans that open.

    `share` is the part of the attempts whose locks are resealed.
    """
    campaign = replace(campaign, begun=time.monotonic())  # the time limit leaves out the preparation
    ground, original = target.ground(), target.opened(target.path, target.lock)
    forged = round(campaign.count * share)
    counts, failures, others, slowest = Counter[str](), list[str](), list[tuple[Attempt, Path]](), 0.0
    for at in range(campaign.count):
        if campaign.over:
            break
        began = time.monotonic()
        sealed = at < forged
        made = resealed(target, ground, at, campaign.seed) if sealed else spoiled(target, at - forged, campaign.seed)
        slowest = max(slowest, time.monotonic() - began)
        kind = "resealed" if sealed else "raw"
        counts[kind] += 1
        if made.failure:
            failures.append(f"{made.name} ({made.how}): {made.failure}")
        elif made.plan is None:
            counts[f"{kind}, refused with exit {made.refused}"] += 1
        elif same(made.plan, original):
            counts[f"{kind}, the same plan"] += 1
        else:
            counts[f"{kind}, another plan"] += 1
            kept = target.folder / f"other-{len(others)}.lock.toml"
            kept.write_bytes((target.folder / "spoiled.lock.toml").read_bytes())
            others.append((made, kept))
        if (at + 1) % 1000 == 0:
            say(f"{at + 1} locks, {len(failures)} failures, {len(others)} other plans")
    tried = counts["raw"] + counts["resealed"]
    sample = random.Random(campaign.seed).sample(others, min(runs, len(others)))
    failures += _run(target, sample, counts, Runner(model, home, target.path), say)
    figures: Figures = {**dict(sorted(counts.items())), "slowest opening (s)": round(slowest, 2)}
    return Report(kind="locks", tried=tried, failures=tuple(failures), figures=figures)


def _run(
    target: Target, sample: list[tuple[Attempt, Path]], counts: Counter[str], runner: Runner, say: Say
) -> Iterator[str]:
    try:
        for at, (attempt, path) in enumerate(sample):
            # Sources and templates that a forged lock names are in its own bundle, beside it.
            if (bundle := target.kept.whole(read_lock(path))) is not None:
                write_bundle(path, bundle, path.with_name(path.name.removesuffix(".toml") + ".bundle.tar.xz"))
            answer = runner.run(path)
            reason = wrong(answer)
            what = "refused" if "refused" in answer else "wrong" if reason else "as the original"
            counts[f"other plans that ran: {what}"] += 1
            if reason:
                yield f"{attempt.name} ({attempt.how}): {reason}"
            if (at + 1) % 10 == 0:
                say(f"{at + 1} of {len(sample)} other plans ran")
    finally:
        runner.close()


if __name__ == "__main__":
    run_locks(sys.argv[1], sys.argv[2], int(sys.argv[3]))
