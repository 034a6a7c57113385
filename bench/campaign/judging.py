"""The evaluation of arbitrary sources by the real gates: static check, build, and the correctness suite in workers.

In: subjects with sources that may be anything. Out: an outcome each. A source that passes at search depth is validated
again at acceptance depth, as a finalist is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from agentcompile.build import Binary, compile
from agentcompile.check import check, errors
from agentcompile.evaluation import jobs
from agentcompile.evaluation.evaluator import ACCEPT_REPEATS, WorkerEvaluator
from agentcompile.evaluation.jobs import Depth, EvaluationJob, Prepared
from agentcompile.evaluation.machine import Machine
from agentcompile.ir.template import Source
from agentcompile.ir.trial import BuildFailed, Crashed, Incorrect, TimedOut, Verdict
from agentcompile.ops.layouts import fits
from agentcompile.system.probe import cpus_at_once
from agentcompile.system.store import Store
from agentcompile.worker import protocol as p
from agentcompile.worker.pool import Limits, WorkerPool, said
from agentcompile.worker.process import Expired, Lost

from .subjects import Subject

_LIMITS = Limits(validate_s=120.0)
_QUICK = Limits(validate_s=20.0)
"""The limits at search depth: a mutant that hangs occupies every core that long. The originals pass within them."""
_MEMORY_BYTES = 4 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Accused:
    """A source to evaluate as a candidate of a subject's region."""

    subject: Subject
    source: Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result for one source: whether it passed, else the gate that stopped it and the first failed check."""

    alive: bool
    stage: str = ""
    why: str = ""
    late: bool = False
    """Whether it was stopped at acceptance depth."""


class Judging(Protocol):
    """The part of an evaluator that `Gates` needs."""

    def prepare(
        self, jobs: Iterable[EvaluationJob], *, depth: Depth = ...
    ) -> Iterator[tuple[EvaluationJob, Prepared | Verdict]]:
        """Build and validate; yield one result for each job, in any order."""

    def close(self) -> None:
        """Stop every process."""


class Gates:
    """The gates of this machine. Used as a context manager."""

    def __init__(self, machine: Machine, *, seed: int, judge: Judging | None = None) -> None:
        self._machine, self._seed = machine, seed
        depths: tuple[Depth, ...] = ("search", "accept")
        self._judges: dict[Depth, Judging] = {depth: judge or self._made(depth) for depth in depths}

    def _made(self, depth: Depth) -> WorkerEvaluator:
        """Create an evaluator with the limits of a depth. Creating it starts no process."""
        return WorkerEvaluator(
            self._machine.target,
            store=self._machine.store.root,
            toolchain=self._machine.toolchain,
            device=self._machine.device,
            limits=_QUICK if depth == "search" else _LIMITS,
            seed=self._seed,
        )

    def __enter__(self) -> Gates:
        return self

    def __exit__(self, *_: object) -> None:
        for judge in self._judges.values():
            judge.close()

    def judge(self, accused: Sequence[Accused], *, deepest: Depth = "accept") -> Iterator[tuple[Accused, Outcome]]:
        """Evaluate each source at search depth and, where it passes and `deepest` allows, at acceptance depth.

        Yields one outcome for each source, in any order.
        """
        passed = list[Accused]()
        for one, outcome in self._at("search", accused):
            if outcome.alive and deepest == "accept":
                passed.append(one)
            else:
                yield one, outcome
        yield from self._at("accept", passed)

    def _at(self, depth: Depth, accused: Sequence[Accused]) -> Iterator[tuple[Accused, Outcome]]:
        by_digest, jobs = {one.source.digest: one for one in accused}, list[EvaluationJob]()
        for one in accused:
            if findings := _refused(one):
                yield one, Outcome(alive=False, stage="check", why=findings)
            else:
                s = one.subject
                jobs.append(
                    EvaluationJob(candidate=s.candidate, region=s.region, template=s.template, source=one.source)
                )
        for job, result in self._judges[depth].prepare(jobs, depth=depth) if jobs else ():
            yield by_digest[job.source.digest], _outcome(depth, result)


def _refused(one: Accused) -> str:
    """Return the first error of the static check of the source as a template's kernel; empty when there is none."""
    s = one.subject
    template = replace(s.template, source=one.source.text, includes=())
    found = errors(check(s.region, template, s.candidate.params, s.target, layout_fits=fits))
    return found[0].text if found else ""


def _outcome(depth: Depth, result: Prepared | Verdict) -> Outcome:
    late = depth == "accept"
    match result:
        case Prepared():
            return Outcome(alive=True)
        case BuildFailed():
            return Outcome(alive=False, stage="build", why=result.log.partition("\n")[0])
        case Incorrect():
            first = next(check for check in result.report.checks if not check.ok)
            return Outcome(alive=False, stage=depth, why=f"{first.name}: {first.detail}", late=late)
        case Crashed():
            return Outcome(alive=False, stage="crash", why=f"in {depth}: signal {result.signal}"[:200], late=late)
        case TimedOut():
            return Outcome(alive=False, stage="timeout", why=f"in {depth}: {result.limit_s:.0f} s", late=late)
        case _:
            raise AssertionError(f"nobody asked for {result!r}")


class Trying(Protocol):
    """A validator of one subject with one seed."""

    def refuses(self, subject: Subject, seed: int, depth: Depth) -> str:
        """Return why the subject's own kernel is rejected; empty when it passes."""


class Many:
    """Validations of shipped kernels with chosen seeds, in one worker process. Used as a context manager."""

    def __init__(self, machine: Machine) -> None:
        setup = p.Setup(
            target=machine.target,
            store=str(machine.store.root),
            toolchain=machine.toolchain,
            memory_bytes=_MEMORY_BYTES,
            torch_threads=min(machine.target.threads, cpus_at_once()) if machine.target.kind == "cpu" else 1,
            device=machine.device,
        )
        self._pool, self._machine = WorkerPool(setup, _LIMITS, 1), machine

    def __enter__(self) -> Many:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.close()

    def build(self, subject: Subject) -> Binary | str:
        """Return the subject's kernel from the store, or build it; a text with the reason when the build fails."""
        store, toolchain = Store(self._machine.store.root), self._machine.toolchain
        built = compile(subject.source, store, toolchain=toolchain, limit_s=_LIMITS.build_s)
        return built if isinstance(built, Binary) else f"build: {built}"[:300]

    def refuses(self, subject: Subject, seed: int, depth: Depth) -> str:
        """Return why the subject's own kernel is rejected; empty when it passes."""
        built = self.build(subject)
        if isinstance(built, str):
            return built
        request = p.Validate(
            region=replace(subject.region, sites=()),
            implementation=implementation(subject, built),
            seed=seed,
            repeats=16 if depth == "search" else ACCEPT_REPEATS,
            depth=depth,
        )
        slot = self._pool.slots[0]
        outcome = self._pool.worker(slot).answer(request, limit_s=_LIMITS.validate(subject.region.cost.bytes))
        if isinstance(outcome, p.Report) and outcome.report.ok:
            return ""
        slot.clear(disturbed=isinstance(outcome, (Lost, Expired)))
        if isinstance(outcome, p.Report):
            return f"{depth}: " + "; ".join(f"{c.name}: {c.detail}" for c in outcome.report.checks if not c.ok)
        return f"{depth}: {said(outcome)}"


def implementation(subject: Subject, binary: Binary) -> p.Implementation:
    """Return a subject's own kernel in the form that workers take."""
    job = EvaluationJob(
        candidate=subject.candidate, region=subject.region, template=subject.template, source=subject.source
    )
    return jobs.implementation(job, binary)
