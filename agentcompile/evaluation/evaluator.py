"""The evaluator: builds, validates and times candidates in worker processes, and survives whatever they do.

Every failure is a verdict. A worker that fails is killed with its process group and replaced; after a crash, a hang or
an error the new one first runs a canary (a kernel known to be right): if it passes, the candidate was at fault. What
was killed from outside is repeated once. Building and validating run in parallel, timing alone.
"""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from agentcompile.backends import backend_of
from agentcompile.build.binary import Binary
from agentcompile.build.toolchain import Toolchain
from agentcompile.control.steering import Steering
from agentcompile.evaluation.chunk import at_length
from agentcompile.evaluation.feeder import feed
from agentcompile.evaluation.jobs import (
    Baseline,
    EvaluationJob,
    Evaluator,
    Failed,
    Prepared,
    arm_of,
)
from agentcompile.evaluation.stopwatch import Stopwatch
from agentcompile.evaluation.work import Blamed, Work, each_process, room_for, validation
from agentcompile.ir.program import Program
from agentcompile.ir.region import Region
from agentcompile.ir.target import Ceiling, Residency, Target
from agentcompile.ir.template import Depth
from agentcompile.ir.timing import Samples, Timing
from agentcompile.ir.trial import Cancelled, Crashed, Death, Disturbed, Incorrect, Stage, TimedOut, Verdict
from agentcompile.measure.policy import POLICY, Policy
from agentcompile.measure.selftest import PLANTED, SelfTest
from agentcompile.options import passed_on
from agentcompile.sandbox import Fence
from agentcompile.worker import protocol as p
from agentcompile.worker.pool import Limits, WorkerPool, WorkerSlot, environment, failure, from_outside, said, shakes
from agentcompile.worker.process import Expired, Lost, Outcome, wait

__all__ = ["Baseline", "EvaluationJob", "Evaluator", "Prepared", "WorkerEvaluator"]

_Result = tuple[EvaluationJob, Prepared | Binary | Verdict]
ACCEPT_REPEATS = 250
"""Repeats of an accepted kernel that must agree bit for bit."""


class WorkerEvaluator:
    """The evaluator of this machine, for one thread at a time; `waiting` adds up the time of its calls."""

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
        device: str = "cpu",
        seed: int = 0,
        repeats: int = 16,
        steering: Steering | None = None,
        fence: Fence | None = None,
    ) -> None:
        """Create an evaluator with `workers` slots (0: one a core) of `memory_bytes` each (0: 60 % of the machine's).

        `device` is the one that `target` describes: ``cpu``, ``cuda:0``. Candidates that `steering` cancels get the
        verdict `Cancelled` at any stage, and their workers are killed. With a `fence`, for sources that nobody has
        read, processes that run kernels are behind it, with the store to read, and compilers are behind their own.

        Raises:
            AgentCompileError: there is a fence, and nothing can be confined on this machine (environment).
        """
        self._steering = steering or Steering()
        self.waiting = Stopwatch(self._steering.clock)
        cores, backend = len(os.sched_getaffinity(0)), backend_of(target.kind)
        memory_bytes = memory_bytes or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * 6 // 10
        setup = p.Setup(
            target=target,
            store=str(store),
            toolchain=toolchain,
            memory_bytes=memory_bytes,
            torch_threads=backend.torch_threads(target),
            device=device,
        )
        self._limits, self._policy, self._seed, self._repeats = limits, policy, seed, repeats
        self._memory_bytes = memory_bytes
        self._validators, self._fragile = backend.validations_at_once(target, cores), backend.poisonable
        if fence is not None:
            memory = 0 if backend.own_memory else setup.memory_bytes
            readable, processes = (*fence.readable, str(store.resolve())), fence.processes + 4 * cores
            fence = replace(fence, readable=readable, memory_bytes=memory, processes=processes)
        self._fenced = fence is not None
        self._pool = WorkerPool(setup, limits, workers or cores, fence, passed_on() if fence else None)

    def __enter__(self) -> WorkerEvaluator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill every worker; idempotent."""
        self._pool.close()

    def prepare(
        self, jobs: Iterable[EvaluationJob], *, depth: Depth = "search"
    ) -> Iterator[tuple[EvaluationJob, Prepared | Verdict]]:
        """Build and validate; yield results as they are ready.

        Raises:
            AgentCompileError: the machine itself fails: no disk space, or a canary that failed twice (environment).
        """
        for job, result in self._waited(jobs, depth):
            assert not isinstance(result, Binary)
            yield job, result

    def build(self, jobs: Iterable[EvaluationJob]) -> Iterator[EvaluationJob]:
        """Build without validating; yield the jobs that built, with the errors of `prepare`."""
        return (job for job, result in self._waited(jobs, None) if isinstance(result, Binary))

    def _waited(self, jobs: Iterable[EvaluationJob], depth: Depth | None) -> Iterator[_Result]:
        """Time `_prepare`, but neither what makes its jobs nor what is done with its results."""
        return self.waiting.during(self._prepare(self.waiting.during(jobs, runs=False), depth))

    def _prepare(self, jobs: Iterable[EvaluationJob], depth: Depth | None) -> Iterator[_Result]:
        waiting, built, slots = iter(jobs), deque[Work](), self._pool.slots
        running: dict[int, Work] = {}
        try:
            while True:
                for index, slot in enumerate(slots):
                    if index not in running and (work := self._next(slot, waiting, built, running)) is not None:
                        running[index] = work
                        self._start(slot, work, depth)
                if not running:
                    return
                workers = [worker for index in running if (worker := slots[index].worker) is not None]
                done = wait(workers, bell=self._steering.bell())
                self._steering.hush()
                for index in [index for index in running if self._steering.cancelled(running[index].job.candidate.id)]:
                    slots[index].clear(disturbed=False)
                    work = running.pop(index)
                    yield work.job, Cancelled(stage=work.stage)
                for index in [index for index in running if slots[index].worker in done]:
                    result = self._settle(slots[index], running.pop(index), depth)
                    if isinstance(result, Work) and result.again:
                        running[index] = result
                        self._start(slots[index], result, depth)
                    elif isinstance(result, Work):
                        built.append(result)
                    else:
                        yield result
        finally:
            for index in running:
                slots[index].clear(disturbed=False)

    def _next(
        self, slot: WorkerSlot, waiting: Iterator[EvaluationJob], built: deque[Work], running: dict[int, Work]
    ) -> Work | None:
        """Choose the next work: validation before builds, so that results come early and binaries do not pile up."""
        if len(running) >= self._pool.width:
            return None
        validating = [work for work in running.values() if work.stage == "validate"]
        room = bool(built) and room_for(built[0].job, validating, self._memory_bytes)
        if slot.runs and room and len(validating) < self._validators:
            return built.popleft()
        if slot.builds and len(built) < self._pool.width and (job := next(waiting, None)) is not None:
            return Work(job=job, binary=None)
        return None

    def _start(self, slot: WorkerSlot, work: Work, depth: Depth | None) -> None:
        job, limits = work.job, self._limits
        if work.binary is None:
            # The worker ends the compiler at this limit; ours is longer, for a worker that does not.
            request = p.Build(source=job.source, limit_s=limits.build_s, fenced=self._fenced)
            self._pool.worker(slot).ask(request, limit_s=limits.build_s + limits.start_s)
            return
        repeats = self._repeats if depth == "search" else ACCEPT_REPEATS
        validate = validation(job, work.binary, depth or "search", self._seed, repeats)
        self._pool.worker(slot).ask(validate, limit_s=limits.validate(job.region.cost.bytes))

    def _settle(self, slot: WorkerSlot, work: Work, depth: Depth | None) -> Work | _Result:
        assert slot.worker is not None
        outcome = slot.worker.take()
        if isinstance(outcome, p.BinaryBuilt):
            return replace(work, binary=outcome.binary, again=False) if depth else (work.job, outcome.binary)
        if isinstance(outcome, p.SuiteReport) and outcome.report.ok and work.binary is not None:
            return work.job, Prepared(job=work.job, binary=work.binary, report=outcome.report)
        slot.clear(disturbed=shakes(outcome))
        if from_outside(outcome) and not work.again:
            return replace(work, again=True)
        return work.job, failure(outcome, work.stage) if work.stage == "build" else self._blamed(slot, outcome)

    def _blamed(self, slot: WorkerSlot, outcome: Outcome, stage: Stage = "validate") -> Verdict:
        """Return a candidate's verdict; environment errors count as its own, if a fresh worker's canary passes."""
        if isinstance(outcome, p.WorkerFault) and outcome.environment:
            self._pool.worker(slot)
            return Crashed(stage=stage, signal=0, detail=outcome.error)
        return failure(outcome, stage)

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
        seconds: float = 0.0,
    ) -> Timing | Death:
        """Time `arms`, alone on the machine; retime the others when one crashes or is wrong (`Timing.failed`)."""
        labels = tuple(arm_of(arm).label for arm in arms)

        def of(live: Sequence[int]) -> p.Time:
            return p.Time(
                region=at_length(region),
                arms=tuple(arm_of(arms[i]) for i in live),
                rounds=rounds,
                residency=residency,
                claim=claim,
                policy=self._policy,
                seed=seed,
                seconds=each_process(seconds, processes),
            )

        trusted = frozenset(i for i, arm in enumerate(arms) if isinstance(arm, Baseline))
        nbytes = region.cost.bytes + (self._policy.dram_bytes if residency == "dram" else 0)
        ids = tuple("" if isinstance(arm, Baseline) else arm.job.candidate.id for arm in arms)
        return self._beside(labels, ids, of, processes, trusted, residency, self._limit_s(nbytes, len(arms), rounds))

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
        trusted: bool = True,
        seconds: float = 0.0,
    ) -> Timing | Death:
        """Time labelled steps or chunks over the weights at `checkpoint`; kernels that are not `trusted` may hang."""

        def request(live: Sequence[int]) -> p.TimeSteps:
            return p.TimeSteps(
                programs=tuple(programs[i][1] for i in live),
                checkpoint=str(checkpoint),
                constants=str(constants),
                binaries=tuple(sorted(binaries.items())),
                position=position,
                rounds=rounds,
                claim=claim,
                policy=self._policy,
                seed=seed,
                unroll=4 if trusted else 2,
                seconds=each_process(seconds, processes),
            )

        labels = tuple(label for label, _ in programs)
        nbytes = sum(file.stat().st_size for file in checkpoint.iterdir() if file.is_file())
        limit_s = self._limit_s(3 * nbytes, len(programs), rounds)  # a weight may be resident in several layouts
        limit_s = limit_s if trusted else min(limit_s, self._limits.look(nbytes))
        return self._beside(labels, ("",) * len(labels), request, processes, frozenset(), residency, limit_s)

    def prompts(
        self, labels: Sequence[str], request: p.TimePrompts, residency: Residency, limit_s: float
    ) -> Timing | Death:
        """Time the arms of `request` beside one another in the process kept for timing, for `limit_s` at most."""

        def of(live: Sequence[int]) -> p.TimePrompts:
            return replace(request, policy=self._policy, arms=tuple(request.arms[i] for i in live))

        return self._beside(tuple(labels), ("",) * len(labels), of, 1, frozenset(), residency, limit_s)

    def _beside(
        self,
        labels: tuple[str, ...],
        ids: tuple[str, ...],
        request: Callable[[Sequence[int]], p.Timer],
        processes: int,
        trusted: frozenset[int],
        residency: Residency,
        limit_s: float,
    ) -> Timing | Death:
        """Time the live arms; drop one that ends its process and retime the others. A person may cancel `ids`."""
        live, failed = list(range(len(labels))), dict[int, Death | Cancelled | Incorrect]()
        while True:
            with self.waiting.running():
                samples = self._processes(request(live), processes, limit_s, [ids[i] for i in live]) if live else ()
            if isinstance(samples, tuple):
                gone = tuple(sorted(failed.items()))
                return Timing(arms=labels, live=tuple(live), failed=gone, processes=samples, residency=residency)
            at, verdict = samples.at, samples.verdict
            if 0 <= at < len(live) and live[at] not in trusted:
                failed[live.pop(at)] = verdict
            else:
                assert isinstance(verdict, Death), "only candidates are given up or wrong"
                return verdict

    def feed(self, request: p.FeedModel, *, patience_s: float = 0.0) -> p.Fed | Failed:
        """Run a whole model on sequences in a fresh process, as `feeder.feed` does."""
        return feed(self._pool, self._limits, request, patience_s)

    def _limit_s(self, nbytes: int, arms: int, rounds: int) -> float:
        """Return one process's limit: its memory's, plus every interval at its longest on a half-shared machine."""
        most = (1 + self._policy.more_rounds) * rounds * arms
        return self._limits.measure(nbytes) + 4 * most * self._policy.max_interval_ns / 1e9

    def _processes(
        self, request: p.Timer, processes: int, limit_s: float, ids: Sequence[str]
    ) -> tuple[Samples, ...] | Blamed:
        self._pool.rest()
        taken, several = list[Samples](), processes > 1
        # Creating a device context takes seconds. Region timings leave nothing in it; steps leave a model's weights.
        kept = self._fragile and several and isinstance(request, p.Time)
        if several and self._fragile:
            self._pool.stock(processes, kept=kept)
        again, number, took, begin = False, 0, 0.0, time.monotonic()
        end = begin + processes * ((isinstance(request, p.TimeSteps) and request.seconds) or math.inf)
        while number < processes and begin + took <= end:  # one that would end too late does not begin
            slot = self._pool.witness(number) if kept else self._pool.clock
            worker = self._pool.worker(slot, fresh=several and not kept)
            worker.ask(replace(request, seed=request.seed + number), limit_s=limit_s)
            while not worker.done:
                if (gone := self._given_up(ids)) >= 0:
                    slot.clear(disturbed=False)
                    return Blamed(at=gone, verdict=Cancelled(stage="measure"))
                wait([worker], bell=self._steering.bell())
            outcome = worker.take()
            if isinstance(outcome, p.RoundsTimed):
                taken.append(outcome.samples)
                again, number, took = False, number + 1, time.monotonic() - begin
                begin += took
                continue
            at = outcome.arm if isinstance(outcome, p.Wrong) else worker.blamed
            slot.clear(disturbed=shakes(outcome))
            if from_outside(outcome) and not again:
                again = True
                continue
            somebody = 0 <= at < len(ids) and not isinstance(outcome, p.Wrong)
            verdict = self._blamed(slot, outcome, "measure") if somebody else failure(outcome, "measure")
            assert isinstance(verdict, (Crashed, TimedOut, Disturbed, Incorrect)), verdict
            return Blamed(at=at, verdict=verdict)
        return tuple(taken)

    def _given_up(self, ids: Sequence[str]) -> int:
        self._steering.hush()
        return next((at for at, id in enumerate(ids) if id and self._steering.cancelled(id)), -1)

    def ceiling(self) -> Ceiling:
        """Measure the machine's ceilings in a fresh worker.

        Raises:
            AgentCompileError: the measurement fails (environment).
        """  # noqa: DOC501
        outcome = self._alone(p.MeasureCeiling())
        if isinstance(outcome, p.CeilingMeasured):
            return outcome.ceiling
        raise environment(f"the machine's ceilings could not be measured: {said(outcome)}")

    def selftest(self, *, trials: int = 200, rounds: int = 10, planted: float = PLANTED) -> SelfTest:
        """Test the timing harness with a real kernel on the real timer.

        Raises:
            AgentCompileError: the test cannot be run (environment).
        """  # noqa: DOC501
        request = p.CheckHarness(trials=trials, rounds=rounds, planted=planted, policy=self._policy, seed=self._seed)
        outcome = self._alone(request)
        if isinstance(outcome, p.HarnessChecked):
            return outcome.result
        raise environment(f"the harness could not be tested: {said(outcome)}")

    def _alone(self, request: p.Request) -> Outcome:
        """Return the outcome of a request that runs known kernels alone, whose process needs no fence."""
        self._pool.rest()
        slot = self._pool.trusted if self._fenced else self._pool.clock
        for _ in range(2):
            worker = self._pool.worker(slot, fresh=True)
            outcome = worker.answer(request, limit_s=self._limits.measure(10**9))
            if isinstance(outcome, (Lost, Expired)):
                slot.clear(disturbed=True)
            if not from_outside(outcome):
                break
        return outcome
