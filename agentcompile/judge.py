"""The judge: builds, validates and times candidates in worker processes, and outlives whatever they do.

Every way to fail is a verdict. A worker that fails in any way is killed with its process group and replaced; after a
crash or a hang the new one first runs a kernel that is known to be right. Building and validating run in parallel,
timing runs alone.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from agentcompile.build.binary import Binary
from agentcompile.build.toolchain import Toolchain
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.ir.program import Program
from agentcompile.ir.region import Region
from agentcompile.ir.target import Ceiling, Residency, Target
from agentcompile.ir.template import Candidate, Source, Template
from agentcompile.ir.trial import BuildFailed, Crashed, Incorrect, NumericReport, Stage, TimedOut, Verdict
from agentcompile.measure.policy import POLICY, Policy
from agentcompile.measure.samples import Samples, Timing
from agentcompile.worker import protocol as p
from agentcompile.worker.process import Expired, Lost, Outcome, Worker, wait
from agentcompile.worker.zygote import Zygote


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A candidate with all that judging it needs."""

    candidate: Candidate
    region: Region
    template: Template
    source: Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A job that built and passed the correctness suite: it may be timed."""

    job: Job
    binary: Binary
    report: NumericReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """What candidates are compared with: the region's own body run by PyTorch."""

    name: str = "pytorch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long each request may take, in seconds; `measure_s` is per process."""

    start_s: float = 60.0
    build_s: float = 60.0
    validate_s: float = 180.0
    measure_s: float = 180.0
    canary_s: float = 60.0


class Judge(Protocol):
    """Who turns jobs into verdicts and arms into samples; tests have one that needs no process."""

    def prepare(self, jobs: Iterable[Job]) -> Iterator[tuple[Job, Prepared | Verdict]]:
        """Build and validate, several at once; results come in any order, one for each job."""

    def time(
        self,
        region: Region,
        arms: Sequence[Prepared | Baseline],
        *,
        rounds: int,
        residency: Residency,
        seed: int,
        processes: int,
        claim: float = ...,
    ) -> Timing | Crashed | TimedOut:
        """Time `arms` beside one another in each of `processes` fresh processes (1: the one that stays for search)."""

    def close(self) -> None:
        """Stop every process; idempotent."""


@dataclass(slots=True)
class _Seat:
    """A place for a worker, filled when it is needed. `shaken`: its last worker crashed or hung."""

    worker: Worker | None = None
    shaken: bool = False

    def clear(self, *, shaken: bool) -> None:
        """Kill the worker."""
        if self.worker is not None:
            self.worker.kill()
        self.worker, self.shaken = None, shaken


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """A request under way for a job; the binary is there once it is built."""

    job: Job
    binary: Binary | None

    @property
    def stage(self) -> Stage:
        return "build" if self.binary is None else "validate"


class WorkerJudge:
    """The judge of this machine. It is used by one thread at a time. Making it returns at once."""

    def __init__(
        self,
        target: Target,
        *,
        store: Path,
        toolchain: Toolchain,
        workers: int = 0,
        limits: Limits = Limits(),  # noqa: B008 - frozen
        policy: Policy = POLICY,
        memory_bytes: int = 0,
        seed: int = 0,
        repeats: int = 16,
    ) -> None:
        """`workers` prepare at once (0: one a core); each may allocate `memory_bytes` (0: 60 % of the machine's)."""
        cores = len(os.sched_getaffinity(0))
        self._setup = p.Setup(
            target=target,
            store=str(store),
            toolchain=toolchain,
            memory_bytes=memory_bytes or _physical_bytes() * 6 // 10,
            torch_threads=target.threads,
        )
        self._limits, self._policy, self._seed, self._repeats = limits, policy, seed, repeats
        self._seats = [_Seat() for _ in range(workers or cores)]
        # Kernels use every thread of the target, so more validations at once than that would share cores.
        self._validators = max(1, cores // max(target.threads, 1))
        self._clock = _Seat()
        self._zygote = Zygote(start_s=limits.start_s)

    def __enter__(self) -> WorkerJudge:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill every worker; idempotent."""
        for seat in (*self._seats, self._clock):
            seat.clear(shaken=False)
        self._zygote.close()

    def prepare(self, jobs: Iterable[Job]) -> Iterator[tuple[Job, Prepared | Verdict]]:
        """Build and validate; results come as they are ready. Raises `AgentCompileError` (environment) when the machine
        itself fails: no disk, or a canary that died twice."""
        waiting, built = iter(jobs), deque[_Work]()
        running: dict[int, _Work] = {}
        try:
            while True:
                for index, seat in enumerate(self._seats):
                    if index not in running and (work := self._next(waiting, built, running)) is not None:
                        running[index] = work
                        self._start(seat, work)
                if not running:
                    return
                workers = [seat.worker for i, seat in enumerate(self._seats) if i in running and seat.worker]
                wait(workers)
                for index in [i for i in running if (w := self._seats[i].worker) is not None and w.done]:
                    result = self._settle(self._seats[index], running.pop(index))
                    if isinstance(result, _Work):
                        built.append(result)
                    else:
                        yield result
        finally:
            for index in running:
                self._seats[index].clear(shaken=False)

    def _next(self, waiting: Iterator[Job], built: deque[_Work], running: dict[int, _Work]) -> _Work | None:
        """Validate what is built before building more, so that results come early and binaries do not pile up."""
        validating = sum(work.stage == "validate" for work in running.values())
        if built and validating < self._validators:
            return built.popleft()
        if len(built) < len(self._seats) and (job := next(waiting, None)) is not None:
            return _Work(job=job, binary=None)
        return None

    def _start(self, seat: _Seat, work: _Work) -> None:
        job, limits = work.job, self._limits
        if work.binary is None:
            # The worker ends the compiler by itself at its limit; ours is for a worker that does not.
            request = p.Build(source=job.source, limit_s=limits.build_s)
            self._worker(seat).ask(request, limit_s=limits.build_s + limits.start_s)
            return
        validate = p.Validate(
            region=replace(job.region, sites=()),
            implementation=_implementation(job, work.binary),
            seed=self._seed,
            repeats=self._repeats,
            depth="search",
        )
        self._worker(seat).ask(validate, limit_s=limits.validate_s)

    def _settle(self, seat: _Seat, work: _Work) -> _Work | tuple[Job, Prepared | Verdict]:
        assert seat.worker is not None
        outcome = seat.worker.take()
        if isinstance(outcome, p.Built):
            return replace(work, binary=outcome.binary)
        if isinstance(outcome, p.Report) and outcome.report.ok and work.binary is not None:
            return work.job, Prepared(job=work.job, binary=work.binary, report=outcome.report)
        seat.clear(shaken=isinstance(outcome, (Lost, Expired)))
        return work.job, _failure(outcome, work.stage)

    def time(
        self,
        region: Region,
        arms: Sequence[Prepared | Baseline],
        *,
        rounds: int,
        residency: Residency,
        seed: int,
        processes: int,
        claim: float = POLICY.search_claim,
    ) -> Timing | Crashed | TimedOut:
        """Time `arms` beside one another, alone on the machine.

        An arm that takes its process down is named in `Timing.failed` and the others are timed afresh; a failure that no
        arm is to blame for is returned as it is.
        """
        labels = tuple(_arm(arm).label for arm in arms)

        def request(live: Sequence[int]) -> p.Time:
            return p.Time(
                region=replace(region, sites=()),
                arms=tuple(_arm(arms[i]) for i in live),
                rounds=rounds,
                residency=residency,
                claim=claim,
                policy=self._policy,
                seed=seed,
            )

        trusted = frozenset(i for i, arm in enumerate(arms) if isinstance(arm, Baseline))
        return self._beside(labels, request, processes, trusted, residency)

    def steps(
        self,
        programs: Sequence[tuple[str, Program]],
        *,
        checkpoint: Path,
        constants: Path,
        binaries: Mapping[str, str],
        position: int,
        rounds: int,
        processes: int,
        claim: float,
        residency: Residency,
        seed: int,
    ) -> Timing | Crashed | TimedOut:
        """Time labelled whole steps beside one another over the weights at `checkpoint`, as `time` does regions.

        `binaries` has the path of every source that a program calls; `residency` only labels the result.
        """

        def request(live: Sequence[int]) -> p.TimeSteps:
            return p.TimeSteps(
                arms=tuple(p.StepArm(label=programs[i][0], program=programs[i][1]) for i in live),
                checkpoint=str(checkpoint),
                constants=str(constants),
                binaries=tuple(sorted(binaries.items())),
                position=position,
                rounds=rounds,
                claim=claim,
                policy=self._policy,
                seed=seed,
            )

        labels = tuple(label for label, _ in programs)
        return self._beside(labels, request, processes, frozenset(), residency)

    def _beside(
        self,
        labels: tuple[str, ...],
        request: Callable[[Sequence[int]], p.Time | p.TimeSteps],
        processes: int,
        trusted: frozenset[int],
        residency: Residency,
    ) -> Timing | Crashed | TimedOut:
        """Time the arms that live; one that takes its process down is named, and the others are timed afresh."""
        while busy := [s.worker for s in self._seats if s.worker is not None and s.worker.busy and not s.worker.done]:
            wait(busy)
        live, failed = list(range(len(labels))), dict[int, Crashed | TimedOut]()
        while True:
            samples = self._processes(request(live), processes) if live else ()
            if isinstance(samples, tuple):
                gone = tuple(sorted(failed.items()))
                return Timing(arms=labels, live=tuple(live), failed=gone, processes=samples, residency=residency)
            at, verdict = samples.at, samples.verdict
            if not 0 <= at < len(live) or live[at] in trusted:
                return verdict
            failed[live.pop(at)] = verdict

    def _processes(self, request: p.Time | p.TimeSteps, processes: int) -> tuple[Samples, ...] | _Blamed:
        taken: list[Samples] = []
        for number in range(processes):
            if processes > 1:
                self._clock.clear(shaken=self._clock.shaken)
            worker = self._worker(self._clock)
            outcome = worker.answer(replace(request, seed=request.seed + number), limit_s=self._limits.measure_s)
            if isinstance(outcome, p.Timed):
                taken.append(outcome.samples)
                continue
            at = worker.blamed
            self._clock.clear(shaken=isinstance(outcome, (Lost, Expired)))
            verdict = _failure(outcome, "measure")
            assert isinstance(verdict, (Crashed, TimedOut)), verdict
            return _Blamed(at=at, verdict=verdict)
        return tuple(taken)

    def ceiling(self) -> Ceiling:
        """Measure the machine's ceilings in a fresh worker; raises `AgentCompileError` (environment) when it fails."""
        self._clock.clear(shaken=self._clock.shaken)
        outcome = self._worker(self._clock).answer(p.MeasureCeiling(), limit_s=self._limits.measure_s)
        if isinstance(outcome, p.CeilingMeasured):
            return outcome.ceiling
        self._clock.clear(shaken=True)
        raise _environment(f"the machine's ceilings could not be measured: {_said(outcome)}")

    def _worker(self, seat: _Seat) -> Worker:
        """The seat's worker, or a new one; after a crash or a hang a new one must sing first."""
        if seat.worker is not None and not seat.worker.alive:
            seat.clear(shaken=True)
        if seat.worker is None:
            seat.worker = self._spawn()
            if seat.shaken:
                self._prove(seat)
        return seat.worker

    def _spawn(self) -> Worker:
        """A fresh worker; a zygote that died is replaced once."""
        try:
            return Worker(self._zygote, self._setup)
        except AgentCompileError:
            self._zygote.close()
            self._zygote = Zygote(start_s=self._limits.start_s)
            return Worker(self._zygote, self._setup)

    def _prove(self, seat: _Seat) -> None:
        said = ""
        for _ in range(2):
            if seat.worker is None:
                seat.worker = self._spawn()
            outcome = seat.worker.answer(p.Canary(), limit_s=self._limits.canary_s)
            if isinstance(outcome, p.Alive):
                seat.shaken = False
                return
            said = _said(outcome)
            seat.clear(shaken=True)
        raise _environment(f"a kernel that is known to be right fails on this machine: {said}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Blamed:
    """A failed timing request: the index of the arm that ran, and what became of it."""

    at: int
    verdict: Crashed | TimedOut


def _implementation(job: Job, binary: Binary) -> p.Implementation:
    t = job.template
    return p.Implementation(
        label=job.candidate.label,
        source=job.source,
        binary=binary,
        layouts=t.layouts,
        rounds=t.rounds,
        accumulation=t.accumulation,
        deterministic=t.deterministic,
    )


def _arm(arm: Prepared | Baseline) -> p.Arm:
    return p.Reference(label=arm.name) if isinstance(arm, Baseline) else _implementation(arm.job, arm.binary)


def _failure(outcome: Outcome, stage: Stage) -> BuildFailed | Incorrect | Crashed | TimedOut:
    """What a request that did not succeed says about its candidate; raises for faults of the machine."""
    match outcome:
        case BuildFailed() | TimedOut():
            return outcome
        case p.Report():
            return Incorrect(report=outcome.report)
        case Lost():
            return Crashed(stage=stage, signal=outcome.signal, detail=outcome.detail)
        case Expired():
            return TimedOut(stage=stage, limit_s=outcome.limit_s)
        case p.Fault(environment=False):
            return Crashed(stage=stage, signal=0, detail=outcome.error)
        case p.Fault():
            raise AgentCompileError(outcome.error, exit_code=ExitCode.ENVIRONMENT, hint=outcome.hint)
        case _:
            raise AssertionError(f"{stage}: {outcome!r}")


def _said(outcome: Outcome) -> str:
    match outcome:
        case Lost():
            return outcome.detail
        case Expired():
            return f"no answer within {outcome.limit_s:g} s"
        case p.Fault():
            return outcome.error
        case _:
            return type(outcome).__name__


def _environment(message: str) -> AgentCompileError:
    hint = "check the machine's memory and load (`agentcompile doctor`), then run again: acknowledged trials are kept"
    return AgentCompileError(message, exit_code=ExitCode.ENVIRONMENT, hint=hint)


def _physical_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
