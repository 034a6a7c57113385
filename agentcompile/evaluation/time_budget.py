"""The wall time that a search and the tuning of its steps may take together, and each stage's share of it.

In: seconds and a clock. Out: the seconds that are left, in all or until a stage's share is used. Work that is required
at any time (one candidate of each region that a plan needs, one timing of the plan beside PyTorch) ignores the budget.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence

from agentcompile.backends import backend_of
from agentcompile.ir.graph import Phase
from agentcompile.ir.target import Target

Left = Callable[[], float]
"""Returns the seconds that are left from now on; negative when the time is exceeded."""

LEAST_S = 1.0
"""Seconds for one timing, however late it is: processes have to start."""
HEAD_S = 0.7
"""Seconds to build, validate and time one candidate of a region on a quiet machine of two cores, on a CPU."""
LATE_RUNS: Mapping[Phase, int] = {"decode": 24, "prefill": 15}
"""How often a process runs each arm that it times, at the least: to compare it, to warm up, in three rounds. Decode
steps also fill a cache, and are too short to go without warming up."""
BUSY_RUNS = 9
"""The like for a chunk of `BUSY_NS` and more beside other processes, of which one round says as much as three."""
BUSY_NS = 2_000_000_000
ACCEPT_S = 0.2
"""Seconds to accept a small kernel of a CPU, beside another one, on a quiet machine."""
EXACT_RUNS: Mapping[Phase, float] = {"decode": 330.0, "prefill": 13.0}
"""How often acceptance computes a kernel's results and their bounds in float64, as multiples of one decode step's time.

A prefill's are computed for an eighth of the tokens that it is measured at, by faster products of several rows. Both
are half of what one kernel takes, as two run beside one another. Fitted to SmolLM2-135M, and checked on the sample.
"""


def step_timing_s(steps_ns: Sequence[tuple[Phase, float]], others: int, cores: int, kind: str) -> float:
    """Return the seconds in which whole steps and chunks are timed, each in one process, when time is short.

    `steps_ns` has for each of these what PyTorch and the plan take together, as it is now: with `others` threads of
    other processes.
    """
    slower = (cores + others) / cores

    def runs(phase: Phase, ns: float) -> int:
        return BUSY_RUNS if others and phase == "prefill" and ns >= BUSY_NS else LATE_RUNS[phase]

    return sum(backend_of(kind).time.start_s * slower + runs(phase, ns) * ns / 1e9 for phase, ns in steps_ns)


def acceptance_s(kernels: Sequence[tuple[Phase, int]], others: int, cores: int) -> float:
    """Return the seconds in which kernels of a CPU are accepted, by their phases and FLOPs.

    Float64 arithmetic is timed for it, for a few milliseconds. `others` are threads of other processes that run now.
    """
    slower, per_flop_s = (cores + others) / cores, exact_s() / 2
    return slower * sum(ACCEPT_S + EXACT_RUNS[phase] * flops * per_flop_s for phase, flops in kernels)


def exact_s() -> float:
    """Return the seconds that one multiply-add of a product with one row takes in float64, with its bound.

    It is measured on so little that PyTorch uses one thread: beside other processes threads wait for one another.
    """
    import torch  # takes seconds, and a compile has loaded it

    weights = torch.ones(32, 512, dtype=torch.bfloat16)
    row = torch.ones(weights.shape[1], dtype=torch.float64)

    def once() -> float:
        begin = time.perf_counter()
        wide = weights.double()
        _ = (wide * row).sum(1), (wide.abs_() * row).sum(1)
        return time.perf_counter() - begin

    return min(once() for _ in range(30)) / weights.numel()


class TimeBudget:
    """A time budget that counts from its creation; `seconds` of 0 mean no limit."""

    def __init__(
        self, seconds: float, target: Target, *, spent_s: float = 0.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Create a budget; earlier processes of the run used `spent_s`, and `clock` stands still during a pause."""
        self.seconds = float(seconds) if seconds else math.inf
        self._begin, self._clock = clock() - spent_s, clock
        self._rules = backend_of(target.kind).time

    @property
    def elapsed_s(self) -> float:
        """The seconds used so far."""
        return self._clock() - self._begin

    def left(self) -> float:
        """Return the seconds until the whole budget is used."""
        return self.seconds - self.elapsed_s

    def searching(self) -> float:
        """Return the seconds in which new candidates of regions may be evaluated."""
        return self._until(self._rules.searched)

    def confirming(self) -> float:
        """Return the seconds in which finalists may be timed on fresh data."""
        return self._until(self._rules.confirmed)

    def tuning(self) -> float:
        """Return the seconds in which alternatives may be tried in the step."""
        return self._until(self._rules.tuned)

    def finishing(self) -> float:
        """Return the seconds in which whole plans may be timed in several processes."""
        return self._until(self._rules.finished)

    def _until(self, share: float) -> float:
        return self.seconds * share - self.elapsed_s if self.seconds < math.inf else math.inf


def floor_of(
    regions: int, left_s: float, others: int, cores: int, kind: str, kernels: Sequence[tuple[Phase, int]] = ()
) -> str:
    """Return a warning with the least time of a search on a device of that kind, empty where that is ample.

    `left_s` are the seconds in which candidates of regions may be evaluated, `others` are threads of other processes
    that run now. `kernels` are those that a plan may have, by their phases and FLOPs: they will be accepted.
    """
    slower, rules = (cores + others) / cores, backend_of(kind).time
    if left_s == math.inf:
        return ""
    quiet_s = rules.region_s * regions + (acceptance_s(kernels, 0, cores) if kernels else 0.0)
    now_s = quiet_s * slower
    if left_s >= max(1.5 * HEAD_S * regions * slower, rules.searched * now_s):
        return ""
    took = f"about {quiet_s:.0f} s on a quiet machine"
    if others:
        beside = "the thread" if others == 1 else f"the {others} threads"
        took += f", {now_s:.0f} s beside {beside} of others that run now"
    text = f"at least one candidate of each of {regions} regions that a plan needs is tried, and the step is timed"
    return f"{text}, whatever `seconds` says: {took}"


def any_time() -> float:
    """Return infinity, for callers without a time limit."""
    return math.inf


def part_of(left: Left, share: float) -> Left:
    """Return a function that gives the seconds left of a `share` of the time that is left now."""
    now = left()
    if now == math.inf:
        return left
    end = now - max(now, 0.0) * share
    return lambda: left() - end
