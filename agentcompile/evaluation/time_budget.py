"""The wall time that a search and the tuning of its steps may take together, and each stage's share of it.

In: seconds and a clock. Out: the seconds that are left, in all or until a stage's share is used. Work that is required
at any time (one candidate of each region that a plan needs, one timing of the plan beside PyTorch) ignores the budget.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping

from agentcompile.ir.target import Target

Left = Callable[[], float]
"""Returns the seconds that are left from now on; negative when the time is exceeded."""

SEARCHED: Mapping[str, float] = {"cpu": 0.5, "cuda": 0.4}
"""Share of the time after which no new candidate of a region is evaluated by itself."""
CONFIRMED: Mapping[str, float] = {"cpu": 0.75, "cuda": 0.55}
"""Share after which finalists get no more rounds than an interval needs, in one process."""
TUNED: Mapping[str, float] = {"cpu": 0.9, "cuda": 0.85}
"""Share after which no alternative is tried in the step; the remaining time is for timing the plan beside PyTorch."""
FINISHED: Mapping[str, float] = {"cpu": 0.95, "cuda": 0.95}
"""Share after which the plan is timed beside PyTorch in one process, with no more rounds than an interval needs."""
LEAST_S = 1.0
"""Seconds for one timing, however late it is: processes have to start."""
HEAD_S = 0.7
"""Seconds to build, validate and time one candidate of a region on a quiet machine of two cores, on a CPU."""
REGION_S = 1.4
"""The same seconds with its share of confirmation, which about half of the regions need, of acceptance and of steps."""


class TimeBudget:
    """A time budget that counts from its creation; `seconds` of 0 mean no limit."""

    def __init__(
        self, seconds: float, target: Target, *, spent_s: float = 0.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Create a budget; earlier processes of the run used `spent_s`, and `clock` stands still during a pause."""
        self.seconds = float(seconds) if seconds else math.inf
        self._begin, self._clock, self._kind = clock() - spent_s, clock, target.kind

    @property
    def elapsed_s(self) -> float:
        """The seconds used so far."""
        return self._clock() - self._begin

    def left(self) -> float:
        """Return the seconds until the whole budget is used."""
        return self.seconds - self.elapsed_s

    def searching(self) -> float:
        """Return the seconds in which new candidates of regions may be evaluated."""
        return self._until(SEARCHED)

    def confirming(self) -> float:
        """Return the seconds in which finalists may be timed on fresh data."""
        return self._until(CONFIRMED)

    def tuning(self) -> float:
        """Return the seconds in which alternatives may be tried in the step."""
        return self._until(TUNED)

    def finishing(self) -> float:
        """Return the seconds in which whole plans may be timed in several processes."""
        return self._until(FINISHED)

    def _until(self, shares: Mapping[str, float]) -> float:
        return self.seconds * shares[self._kind] - self.elapsed_s if self.seconds < math.inf else math.inf


def floor_of(regions: int, left_s: float, others: int, cores: int) -> str:
    """Return a warning with the least time of a search, empty where that is ample; `others` are other threads."""
    slower = (cores + others) / cores
    if left_s >= 1.5 * HEAD_S * regions * slower:
        return ""
    took = f"about {REGION_S * regions:.0f} s on a quiet machine"
    if others:
        beside = "the thread" if others == 1 else f"the {others} threads"
        took += f", {REGION_S * regions * slower:.0f} s beside {beside} of others that run now"
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
