"""The worker pool of one evaluator: slots filled when needed, cleared after a failure, checked after a crash."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.ir.trial import BuildFailed, Crashed, Death, Disturbed, Incorrect, Stage, TimedOut
from agentcompile.sandbox import Fence, require
from agentcompile.worker import protocol as p
from agentcompile.worker.process import Expired, Lost, Outcome, Worker, wait
from agentcompile.worker.zygote import Zygote


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The time limits of requests, in seconds, without what the region's size adds; `measure_s` is per process."""

    start_s: float = 60.0
    build_s: float = 60.0
    validate_s: float = 60.0
    measure_s: float = 60.0
    canary_s: float = 30.0
    per_gigabyte_s: float = 200.0
    """Seconds added to validating and measuring for every 1e9 bytes that the work holds in memory at once."""

    def look(self, nbytes: int) -> float:
        """Return the limit for steps of kernels that may hang, with a checkpoint of `nbytes` read from disk first."""
        return self.measure_s + 8.0 * nbytes / 1e9

    def validate(self, nbytes: int) -> float:
        """Return the limit for validating a region of `nbytes`."""
        return self.validate_s + self.per_gigabyte_s * nbytes / 1e9

    def measure(self, nbytes: int) -> float:
        """Return the limit for measuring arms over `nbytes`."""
        return self.measure_s + self.per_gigabyte_s * nbytes / 1e9


@dataclass(slots=True)
class WorkerSlot:
    """A place for a worker; it is `disturbed` when its last worker crashed or hung."""

    worker: Worker | None = None
    disturbed: bool = False
    builds: bool = True
    runs: bool = True
    """Whether it runs kernels. Behind a fence a slot does one of the two: a compiler's parent writes to the store."""
    fence: Fence | None = None

    def clear(self, *, disturbed: bool) -> None:
        """Kill the worker and empty the slot."""
        if self.worker is not None:
            self.worker.kill()
        self.worker, self.disturbed = None, disturbed


class WorkerPool:
    """Slots for building and validating and one for timing, filled from one zygote; construction does not block.

    With a `fence` every process that runs kernels is behind it, from its start, and compilers are behind their own.
    """

    def __init__(
        self,
        setup: p.Setup,
        limits: Limits,
        slots: int,
        fence: Fence | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start the zygote, with `environment` instead of ours.

        Raises:
            AgentCompileError: there is a fence, and nothing can be confined on this machine (environment).
        """
        self._setup, self._limits, self._fence, self.width = setup, limits, fence, slots
        if fence is None:
            self.slots = tuple(WorkerSlot() for _ in range(slots))
        else:
            require()
            running = tuple(WorkerSlot(builds=False, fence=fence) for _ in range(slots))
            self.slots = (*running, *(WorkerSlot(runs=False) for _ in range(slots)))
        self.clock, self.trusted = WorkerSlot(fence=fence), WorkerSlot()
        self._furnished, self._environment = fence is None, environment
        self._witnesses: list[WorkerSlot] = []
        self._spares: list[Worker] = []
        self._zygote = self._started()

    def close(self) -> None:
        """Kill every worker; calling it again does nothing."""
        for slot in (*self.slots, self.clock, self.trusted, *self._witnesses):
            slot.clear(disturbed=False)
        for spare in self._spares:
            spare.kill()
        self._spares.clear()
        self._zygote.close()

    def rest(self) -> None:
        """Wait until no slot works; outcomes stay to be taken."""
        while busy := [s.worker for s in self.slots if s.worker is not None and s.worker.busy and not s.worker.done]:
            wait(busy)

    def worker(self, slot: WorkerSlot, *, fresh: bool = False) -> Worker:
        """Return the slot's worker, or a new one; after a crash or a hang a new one must pass the canary first.

        Raises:
            AgentCompileError: no process starts, or two canaries in a row fail (environment).
        """
        if fresh:
            slot.clear(disturbed=slot.disturbed)
        elif slot.worker is not None and not slot.worker.alive:
            slot.clear(disturbed=True)
        if slot.worker is None:
            slot.worker = (self._spare() if slot.fence is self._fence else None) or self._spawn(slot.fence)
            if slot.disturbed:
                self._check_canary(slot)
        return slot.worker

    def witness(self, number: int) -> WorkerSlot:
        """Return the slot of a process that times only finalists, of one region after another."""
        while len(self._witnesses) <= number:
            self._witnesses.append(WorkerSlot(fence=self._fence))
        return self._witnesses[number]

    def stock(self, count: int, *, kept: bool = False) -> None:
        """Start `count` spare workers side by side, as contexts take long to make; `kept`: less existing witnesses."""
        if kept:
            count -= sum(self.witness(number).worker is not None for number in range(count))
        begun = list[Worker]()
        try:
            for _ in range(count - len(self._spares)):
                begun.append(self._spawn(self._fence))
                begun[-1].ask(p.Canary(), limit_s=self._limits.canary_s)
            while busy := [worker for worker in begun if not worker.done]:
                wait(busy)
        except BaseException:
            for worker in begun:
                worker.kill()
            raise
        for worker in begun:
            if isinstance(worker.take(), p.Alive):
                self._spares.append(worker)
            else:  # the next caller that needs a worker starts one, and reports what is wrong
                worker.kill()

    def _spare(self) -> Worker | None:
        while self._spares:
            worker = self._spares.pop()
            if worker.alive:
                return worker
            worker.kill()
        return None

    def _started(self) -> Zygote:
        return Zygote(start_s=self._limits.start_s, environment=self._environment)

    def _spawn(self, fence: Fence | None) -> Worker:
        if fence is not None:
            self._furnish()
        try:
            return Worker(self._zygote, self._setup, fence)
        except AgentCompileError:
            self._zygote.close()
            self._zygote = self._started()
            return Worker(self._zygote, self._setup, fence)

    def _furnish(self) -> None:
        """Build, once and before any worker is confined, the kernels of our own that confined workers load.

        Raises:
            AgentCompileError: they do not build (environment).
        """  # noqa: DOC501
        if self._furnished:
            return
        worker = self._spawn(None)
        try:
            outcome = worker.answer(p.Furnish(), limit_s=4 * self._limits.build_s + self._limits.start_s)
        finally:
            worker.kill()
        if isinstance(outcome, p.WorkerFault) and outcome.environment:
            raise AgentCompileError(outcome.error, exit_code=ExitCode.ENVIRONMENT, hint=outcome.hint)
        if not isinstance(outcome, p.Alive):
            raise environment(f"kernels that are known to be right do not build here: {said(outcome)}")
        self._furnished = True

    def _check_canary(self, slot: WorkerSlot) -> None:
        outcome: Outcome = p.Alive()
        for _ in range(2):
            slot.worker = slot.worker or self._spawn(slot.fence)
            outcome = slot.worker.answer(p.Canary(), limit_s=self._limits.canary_s)
            if isinstance(outcome, p.Alive):
                slot.disturbed = False
                return
            slot.clear(disturbed=True)
        if isinstance(outcome, p.WorkerFault) and outcome.environment:
            raise AgentCompileError(outcome.error, exit_code=ExitCode.ENVIRONMENT, hint=outcome.hint)
        raise environment(f"a kernel that is known to be right fails on this machine: {said(outcome)}")


def from_outside(outcome: Outcome) -> bool:
    """Return whether the worker, or a compiler that it had started, was ended by another process."""
    return isinstance(outcome, Disturbed) or (isinstance(outcome, Lost) and outcome.outside)


def shakes(outcome: Outcome) -> bool:
    """Return whether the outcome casts doubt on the device: an error may affect more than its process."""
    return isinstance(outcome, (Lost, Expired, p.WorkerFault))


def failure(outcome: Outcome, stage: Stage) -> BuildFailed | Incorrect | Death:
    """Return what a failed request says about its candidate.

    Every environment fault counts as the machine's: run a canary first where the candidate's own code has run.

    Raises:
        AgentCompileError: the fault is the machine's (environment).
        AssertionError: the outcome is no failure.
    """
    match outcome:
        case BuildFailed() | TimedOut() | Disturbed():
            return outcome
        case p.SuiteReport() | p.Wrong():
            return Incorrect(report=outcome.report)
        case Lost(outside=True):
            return Disturbed(stage=stage, detail=outcome.detail)
        case Lost():
            return Crashed(stage=stage, signal=outcome.signal, detail=outcome.detail)
        case Expired():
            return TimedOut(stage=stage, limit_s=outcome.limit_s)
        case p.WorkerFault(environment=False):
            return Crashed(stage=stage, signal=0, detail=outcome.error)
        case p.WorkerFault():
            raise AgentCompileError(outcome.error, exit_code=ExitCode.ENVIRONMENT, hint=outcome.hint)
        case _:
            raise AssertionError(f"{stage}: {outcome!r}")


def said(outcome: Outcome) -> str:
    """Return a failed outcome as text for people."""
    match outcome:
        case Lost():
            return outcome.detail
        case Expired():
            return f"no answer within {outcome.limit_s:g} s"
        case p.WorkerFault():
            return outcome.error
        case _:
            return type(outcome).__name__


def environment(message: str) -> AgentCompileError:
    """Return an error of the machine, with a hint for the user."""
    hint = "check the machine's memory and load (`agentcompile doctor`), then run again: acknowledged trials are kept"
    return AgentCompileError(message, exit_code=ExitCode.ENVIRONMENT, hint=hint)
