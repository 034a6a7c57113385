"""The execution of a suite's cases one after another: the lock of each model, then the rounds of each case."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from agentcompile.errors import AgentCompileError
from agentcompile.evaluation.machine import residency
from agentcompile.ir.target import Ceiling
from agentcompile.lockfile.files import read_lock
from agentcompile.options import resolve
from agentcompile.replay.open import open_lock

from ..harness.building import build_of
from ..harness.found import Samples, case_of, region_shares
from ..harness.partial import FIRST_COMPILE, PartialFile
from ..harness.result import Case, Compiled, Mode, RegionShare
from ..harness.times import Build, Took
from ..harness.trial import LEAST_S, OURS, Part, Setup, run_trials
from ..harness.twins import kind_of
from ..harness.workload import Workload
from ..harness.workloads import Shape, Suite


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One case to run."""

    model: str
    shape: Shape
    mode: Mode
    workload: Workload
    absent: dict[str, str]
    """By name of an arm, why it is not run."""
    cache_bytes: int
    """Bytes of keys and values that a step reads in the mean."""


@dataclass(slots=True)
class Found:
    """The results of a run."""

    cases: list[Case] = field(default_factory=list)
    compiled: dict[str, Compiled] = field(default_factory=dict)
    """The locks that ran, by model."""
    samples: dict[str, Samples] = field(default_factory=dict)
    """Single generations by key of the case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Locks:
    """The source of each model's lock: a given one, a committed one that is valid here, or one compiled in this run."""

    suite: Suite
    setup: Setup
    file: PartialFile
    given: Path | None
    seconds: float
    """Seconds that a compilation may search; 0 for no limit."""
    cache_bytes: tuple[int, ...]
    """Sizes of the machine's caches."""

    def of(self, case: Asked) -> Build | None:
        """Return the lock of a case's model, compiled if needed; None when it could not be compiled."""
        model, setup = case.workload.model, self.setup
        lock = self.given or self._committed(case)
        if lock is not None:
            return Build(model=model, lock=lock.resolve(), home=None, threads=setup.threads, target=setup.device)
        how: dict[str, Any] = {"context": self.suite.context, "seconds": self.seconds, "fresh": self.suite.fresh}
        return build_of(case.model, model, setup, self.file, waits=False, **how)

    def compile_s(self, case: Asked) -> float | None:
        """Return the seconds that compiling took in this run; None if it was not done with an empty store."""
        took = self._compiled(case)
        return took.seconds if took and self.suite.fresh else None

    def failure(self, case: Asked) -> str:
        """Return why there is no lock."""
        reason = self.file.progress(case.model).failure
        return f"compile: {reason}" if reason else "there is no lock"

    def _committed(self, case: Asked) -> Path | None:
        if not self.suite.lock or case.model not in self.suite.lock or self._compiled(case):
            return None
        path = Path(__file__).resolve().parents[1] / self.suite.lock[case.model]
        settings = {"model": str(case.workload.model), "target": self.setup.device}
        if self.setup.kind == "cpu":
            settings["threads"] = str(self.setup.threads)
        try:
            open_lock(path, resolve(settings).options, locked=True)
            if (held := read_lock(path).model.context) < case.shape.prompt + case.shape.new:
                raise AgentCompileError(f"its cache holds {held} tokens alone")
        except AgentCompileError as error:
            self.setup.say(f"{path.name}: does not hold here, so {case.model} is compiled: {error}")
            return None
        return path

    def _compiled(self, case: Asked) -> Took | None:
        return self.file.progress(case.model).times.get(FIRST_COMPILE)


def find(cases: Sequence[Asked], suite: Suite, locks: Locks, ceiling: Ceiling) -> Found:
    """Run every case; a failure becomes a row with its reason, and what `setup.keep` and `setup.pause` raise passes."""
    found = Found()
    builds: dict[str, Build | None] = {}
    ours = [name for name in suite.arms if kind_of(name) == OURS]
    for _, group in groupby(cases, lambda case: (case.model, case.shape.name)):
        alike = list(group)  # cases with one prompt in several modes, which the same processes serve
        case = alike[0]
        if ours and case.model not in builds:
            build = builds[case.model] = locks.of(case)
            if build is not None:
                found.compiled[case.model] = _compiled(build, locks, case, ceiling)
        build = builds.get(case.model)
        parts = [Part(workload=one.workload, outcome=locks.file.progress(one.workload.name).outcome) for one in alike]
        arms = [name for name in suite.arms if name not in case.absent and (name not in ours or build is not None)]
        run_trials(arms, parts, build, LEAST_S, locks.setup)
        for one, part in zip(alike, parts, strict=True):
            if build is None:
                part.outcome.reasons |= dict.fromkeys(ours, locks.failure(case))
            spent = locks.compile_s(one)
            made, samples = case_of(
                suite.arms,
                model=one.model,
                workload=one.shape.name,
                mode=one.mode,
                asked=one.workload,
                outcome=part.outcome,
                absent=one.absent,
                baseline=suite.baseline,
                cache_bytes=one.cache_bytes,
                ceiling=ceiling,
                cached=one.workload.token_bytes <= max(locks.cache_bytes, default=0),
                compile_s={OURS: spent} if spent is not None else {},
            )
            found.cases.append(made)
            found.samples[made.key] = samples
    return found


def _compiled(build: Build, locks: Locks, case: Asked, ceiling: Ceiling) -> Compiled:
    regions: tuple[RegionShare, ...] = ()
    try:
        settings = {"model": str(build.model), "target": build.target}
        opened = open_lock(build.lock, resolve(settings).options)
        where = residency(opened.model.captured.decode, opened.here.target)
        regions = region_shares(opened, ceiling, where)
    except AgentCompileError as error:  # the arms' times are valid without shares
        locks.setup.say(f"{case.model}: no shares by region: {error}")
    lock = read_lock(build.lock)
    spent = locks.compile_s(case)
    return Compiled(lock=lock.content_hash, compile_s=spent, regions=regions, weights=lock.model.weights)
