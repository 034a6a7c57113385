"""Times PyTorch and written kernels in interleaved rounds, each in its own process, one at a time.

The rounds and statistics are those of `agentcompile.measure`: an arm here is a process that is asked for an interval.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from agentcompile.errors import AgentCompileError
from agentcompile.ir.attempt import Times
from agentcompile.ir.digest import Json, canonical
from agentcompile.ir.target import Residency
from agentcompile.ir.timing import Interval, Samples, Timing
from agentcompile.ir.trial import Incorrect
from agentcompile.measure import POLICY, Policy, usual_ns
from agentcompile.measure.clock import core_ns, quantum_ns
from agentcompile.measure.rounds import Arm, run_rounds
from agentcompile.tasks.inputs import TaskCase, seed_of
from agentcompile.tasks.kernel import (
    Built,
    Death,
    KernelDeath,
    KernelProcess,
    Workshop,
    draw_into,
    examine,
    running,
    still,
)
from agentcompile.tasks.load import LoadedTask
from agentcompile.tasks.rotation import FEW_SETS, LARGE_BYTES, SETS
from agentcompile.tasks.stirring import warm_up
from agentcompile.tasks.tally import TaskTally
from agentcompile.tasks.wire import Done, MakeBaseline, Renew, Spoil, Stir, TimeBaseline, Timed

EAGER = "pytorch"
COMPILED = ("torch.compile", "torch.compile max-autotune")
"""The compiled arms of PyTorch; the fastest arm is the baseline."""
_EXAMINED = 4
"""One interval in so many, on average, has its results examined."""
_LATE, _LATE_NS = 4, 200_000_000
"""A clock that shows less than this part of the time that the parent saw pass, less this slack, is wrong."""
_CLOCK_FAULT = "the kernel's process measured less time than passed"

_SEEN, _STIR_NS, _TRIES = 1.5, 2_000, 6
"""A launch on inputs that changed takes at most this multiple of one on others, and the time of the change; the least
of each in so many tries counts."""
_ALONE = 2
"""How often a try times the changes without the kernel."""
_DEVICE_STIR_NS = 10_000
"""The time of the change on a device: a launch of its own, which waits for the one before."""
_CLOCK_NS, _LONGEST = 25_000_000, 256
"""The clock is checked in an interval of about this length, and of so many batches at most."""
_SLOW, _OWN_NS = 1.5, 12_000_000
"""What passed in that interval is at most this multiple of what was measured, and a tick or what asking takes."""


class TorchArm:
    """An arm of PyTorch."""

    def __init__(self, task: LoadedTask, name: str) -> None:
        self._task, self._name = task, name

    def interval(self, batch: int) -> Interval:
        """Run and time a batch."""
        told = self._task.ask(TimeBaseline(name=self._name, batch=batch), self._task.limits.measure_s)
        assert isinstance(told, Timed)
        return told.interval


class KernelArm:
    """A written kernel; now and then all its outputs are spoilt before an interval and examined after it."""

    def __init__(self, task: LoadedTask, kernel: KernelProcess, sets: int, seed: int) -> None:
        self._task, self._kernel, self._sets = task, kernel, sets
        self.tally, self._taken, self._seed = TaskTally(), 0, seed
        for at in range(sets):
            case = TaskCase(label="timed inputs", arena=at, seed=seed_of(seed, at), scale=1.0, randomised=False)
            draw_into(task, case)

    def interval(self, batch: int) -> Interval:
        """Run and time a batch; `KernelDeath` when that hangs or crashes."""
        self._taken += 1
        looked = seed_of(self._seed, "look", self._taken) % _EXAMINED == 0
        return self.examined(batch) if looked else self._timed(batch)

    def examined(self, batch: int) -> Interval:
        """Run and time a batch whose results are examined."""
        self._spoil(batch)
        found = self._timed(batch, shown=True)
        for at in range(min(batch, self._sets)):
            examine(self._task, at, self.tally)
        return found

    def _spoil(self, batch: int) -> None:
        for at in range(min(batch, self._sets)):
            self._task.ask(Spoil(arena=at, pattern="nan"), self._task.limits.check_s)

    def audit(self, batch: int) -> None:
        """Check what times were made of: by a clock that runs right, and of work that is done at every launch.

        Most launches of a batch see inputs again. Here every launch sees other inputs and parameters, and outputs and
        workspaces that were spoilt in places: a kernel that keeps results, or what it made of parameters, or leaves
        outputs that look right as they are, is slow then, or wrong.
        """
        usual = self._timed(batch)
        self._stirred(min(batch, max(1, self._kernel.stirred.most_steps * self._sets // 2)))
        most = _LONGEST * batch
        longer = max(1, min(math.ceil(_CLOCK_NS * batch / max(usual.ns, 1)), most))
        self._spoil(longer)
        least, told = math.inf, ""
        for _ in range(_TRIES):
            found, share = self._clocked(longer)
            while found.ns < _CLOCK_NS // 2 and longer < most:  # what is usual was taken at a busy moment
                longer = min(2 * longer, most)
                self._spoil(longer)
                found, share = self._clocked(longer)
            if share < least:
                least, told = share, f"{self._kernel.took_ns} ns passed for what was measured as {found.ns} ns"
            if least <= 1.0:
                break
        self.tally.add("clock", least, 1.0, told)
        for at in range(min(longer, self._sets)):
            examine(self._task, at, self.tally)

    def _clocked(self, batch: int) -> tuple[Interval, float]:
        """Run and time a batch, and return what other clocks saw as a share of what they may have seen."""
        before, _ = core_ns(self._kernel.pid)
        found = self._timed(batch, shown=True)
        ran_ns, whole_ns = core_ns(self._kernel.pid)[0] - before, found.ns + found.ns * warm_up(batch) // batch
        share = self._kernel.took_ns / (_SLOW * found.ns + _OWN_NS)
        if not self._kernel.on_device:  # there the process copies and queues, too, and none of that is a kernel's
            share = max(share, ran_ns / (_SLOW * whole_ns + _OWN_NS))
        return found, share

    def _stirred(self, most: int) -> None:
        least, told, honest = math.inf, "", False
        usual_ns = alone_ns = changed_ns = math.inf
        for tried in range(_TRIES):
            # No kernel knows how many launches there are, and so which is the last one, of which the result counts.
            batch = most - seed_of(self._seed, "batch", tried) % (most // 2 + 1)
            # What a kernel was seen to take counts: one that is slow, but right, once it has seen a change is no other.
            usual_ns = min(usual_ns, self._timed(batch).ns / batch)
            # The least of what the changes alone take: a busy moment in it would allow a kernel as much.
            for _ in range(_ALONE):
                self._list_changes(batch, tried)
                alone_ns = min(alone_ns, self._once(batch, stirred=True, launched=False)[0].ns / batch)
            self._list_changes(batch, tried)
            changed, steady = self._once(batch, stirred=True)  # once: what is listed to be changed suffices for that
            looked = (batch - 1) % self._sets  # parameters are those of the last launch; a reference may take seconds
            self._task.ask(Renew(arena=looked), self._task.limits.check_s)
            examine(self._task, looked, self.tally)
            for at in range(self._sets):
                self._task.ask(Renew(arena=at, undo=True), self._task.limits.check_s)
            if not self.tally.ok:
                return
            if not steady:
                continue
            honest, changed_ns = True, min(changed_ns, changed.ns / batch)
            change_ns = _DEVICE_STIR_NS if self._kernel.on_device else _STIR_NS
            least = changed_ns / (_SEEN * (usual_ns + alone_ns) + change_ns)
            told = f"{changed_ns:.0f} ns a launch where buffers change, {usual_ns:.0f} ns where not"
            if least <= 1.0:
                break
        self.tally.claim("clock", honest, _CLOCK_FAULT)
        if honest:
            self.tally.add("fresh inputs", least, 1.0, told)

    def _list_changes(self, batch: int, tried: int) -> None:
        for at in range(self._sets):
            stir = Stir(arena=at, batch=batch, seed=seed_of(self._seed, "stir", tried, at))
            self._task.ask(stir, self._task.limits.check_s)

    def _timed(self, batch: int, *, shown: bool = False) -> Interval:
        for _ in range(_TRIES):
            found, honest = self._once(batch, shown=shown)
            if honest:
                break
        self.tally.claim("clock", honest, _CLOCK_FAULT)
        return found

    def _once(
        self, batch: int, *, stirred: bool = False, launched: bool = True, shown: bool = False
    ) -> tuple[Interval, bool]:
        """Run and time a batch once; return whether its process measured no less time than passed, too.

        A machine that stands still for a while looks like a clock that is wrong, so that one such batch proves nothing.
        """
        delayed, begin = self._delays_ns(), time.perf_counter_ns()
        found = self._kernel.interval(batch, stirred=stirred, launched=launched, shown=shown)
        # On a busy machine either process stands ready without a core before the interval, in it, and after it.
        seen_ns = time.perf_counter_ns() - begin - (self._delays_ns() - delayed)
        if self._kernel.on_device:  # its process, which is ours, also captures and copies
            seen_ns = self._kernel.took_ns
        still(self._kernel, self.tally)
        return found, found.ns >= (seen_ns - _LATE_NS) / _LATE - found.waited_ns

    def _delays_ns(self) -> int:
        """Return the time for which this thread and the kernel's main one were ready to run and had no core."""
        return core_ns()[1] + core_ns(self._kernel.pid)[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Baselines:
    """PyTorch's arms for a task, and the fastest of them."""

    name: str
    """The fastest arm: the baseline."""
    us: Mapping[str, float]
    """The time of each arm, all from the same rounds."""
    failed: Mapping[str, str]
    """Why ``torch.compile`` failed, by arm."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """How an arm is launched, where that is not as usual."""

    @property
    def times(self) -> Times:
        """The times to beat."""
        arms = canonical(self.told).decode()
        return Times(reference_ns=1e3 * self.us[EAGER], incumbent_ns=1e3 * self.us[self.name], arms=arms)

    @property
    def told(self) -> Json:
        """The arms as a contract shows them."""
        told: dict[str, Json] = {"fastest": self.name, "us": dict(self.us), "failed": dict(self.failed)}
        return {**told, "notes": dict(self.notes)} if self.notes else told


def baselines(
    task: LoadedTask,
    *,
    residency: Residency,
    seed: int,
    compiled: Sequence[str] = COMPILED,
    policy: Policy = POLICY,
) -> Baselines:
    """Time PyTorch as it is beside its compiled forms, and return the fastest.

    Raises:
        AgentCompileError: the task fails or hangs (usage).
    """
    names, failed, notes = list[str](), dict[str, str](), dict[str, str]()
    _made(task, EAGER, task.limits.check_s, names, notes)
    for name in compiled:
        try:
            _made(task, name, task.limits.compile_s, names, notes)
        except AgentCompileError as error:
            failed[name] = error.message[:400]
            if not task.alive:
                raise
    return timed_arms(task, names, failed, notes, residency=residency, seed=seed, policy=policy)


def _made(task: LoadedTask, name: str, limit_s: float, names: list[str], notes: dict[str, str]) -> None:
    """Make an arm, and note its name and how it is launched."""
    told = task.ask(MakeBaseline(name=name), limit_s)
    names.append(name)
    if isinstance(told, Done) and told.note:
        notes[name] = told.note


def timed_arms(
    task: LoadedTask,
    names: Sequence[str],
    failed: Mapping[str, str],
    notes: Mapping[str, str],
    *,
    residency: Residency,
    seed: int,
    policy: Policy = POLICY,
) -> Baselines:
    """Time arms that the task's process holds already, in rounds of their own, and return the fastest.

    Raises:
        AgentCompileError: the task fails or hangs (usage).
    """
    arms = [TorchArm(task, name) for name in names]
    samples = _rounds(task, arms, policy.search_rounds, policy.search_claim, seed, policy)
    live = tuple(range(len(names)))
    timing = Timing(arms=tuple(names), live=live, processes=(samples,), residency=residency)
    taken = {name: usual_ns(timing, at, policy) for at, name in enumerate(names)}
    fastest = min(taken, key=lambda name: taken[name])
    us = {name: round(ns / 1e3, 3) for name, ns in taken.items()}
    return Baselines(name=fastest, us=us, failed=failed, notes=notes)


def timed(
    task: LoadedTask,
    built: Built,
    beside: Sequence[str],
    shop: Workshop,
    *,
    residency: Residency,
    rounds: int,
    claim: float,
    processes: int,
    seed: int,
    policy: Policy = POLICY,
) -> Timing | Death | Incorrect:
    """Time a kernel, the last arm, beside forms of PyTorch, in fresh processes; its results are examined meanwhile."""
    sets = SETS if sum(built.sizes.values()) <= LARGE_BYTES else FEW_SETS
    found = list[Samples]()
    try:
        for process in range(processes):
            with running(task, built, shop, sets=sets, timed=True) as kernel:
                arm = KernelArm(task, kernel, sets, seed_of(seed, "timed", process))
                arms: list[Arm] = [*(TorchArm(task, name) for name in beside), arm]
                samples = _rounds(task, arms, rounds, claim, seed + process, policy)
                arm.examined(samples.batch)
                if process == 0 and arm.tally.ok:
                    arm.audit(samples.batch)
                if not arm.tally.ok:
                    return Incorrect(report=arm.tally.report(cases=sets, repeats=1))
                found.append(samples)
    except KernelDeath as death:
        return death.verdict
    names = (*beside, built.template.id)
    return Timing(arms=names, live=tuple(range(len(names))), processes=tuple(found), residency=residency)


def _rounds(task: LoadedTask, arms: Sequence[Arm], rounds: int, claim: float, seed: int, policy: Policy) -> Samples:
    end, quantum = time.monotonic() + _SECONDS, quantum_ns()
    left: Callable[[], float] = lambda: end - time.monotonic()  # noqa: E731 - it is given away
    if task.on_device:
        # Device times contain no wait for a core, so a slow arm needs no long samples that a fast one must match.
        policy, quantum = replace(policy, max_interval_ns=policy.max_device_interval_ns), _EVENT_NS
    return run_rounds(arms, rounds=rounds, policy=policy, claim=claim, seed=seed, quantum_ns=quantum, left=left)


_EVENT_NS = 500
"""The resolution of an event of a device (CUDA Runtime API, cudaEventElapsedTime)."""
_SECONDS = 120.0
"""After this time no round begins, beyond the fewest."""
