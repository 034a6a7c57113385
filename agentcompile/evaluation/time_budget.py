"""The wall time that a search and the tuning of its steps may take together, and who may use how much of it.

In: seconds and a clock. Out: how many are left, for all that is still to come or until a share of them is used. What
has to be done whatever the time, one candidate a region and one look at the plan beside PyTorch, asks nobody.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping

from agentcompile.ir.target import Target

Left = Callable[[], float]
"""Seconds that are left from now on; negative when it took longer."""

SEARCHED: Mapping[str, float] = {"cpu": 0.5, "cuda": 0.4}
"""Share of the time after which no new candidate of a region is judged alone."""
CONFIRMED: Mapping[str, float] = {"cpu": 0.75, "cuda": 0.55}
"""Share after which finalists get no more rounds than an interval needs."""
TUNED: Mapping[str, float] = {"cpu": 0.9, "cuda": 0.85}
"""Share after which no alternative is tried in the step: what is left is for the plan beside PyTorch."""
LEAST_S = 1.0
"""For one timing however late it is: processes have to start."""
HEAD_S = 0.7
"""What one candidate of a region takes on a quiet machine of two cores: built, validated and timed on a CPU."""
REGION_S = 1.2
"""The same with its share of what is timed afresh: about half of the regions are."""


class TimeBudget:
    """Counts from its making; `seconds` of 0 mean any."""

    def __init__(
        self, seconds: float, target: Target, *, spent_s: float = 0.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`spent_s` is what earlier processes of the run used; `clock` stands still while the session is paused."""
        self.seconds = float(seconds) if seconds else math.inf
        self._begin, self._clock, self._kind = clock() - spent_s, clock, target.kind

    @property
    def elapsed_s(self) -> float:
        """Used so far."""
        return self._clock() - self._begin

    def left(self) -> float:
        """Seconds until all of it is used."""
        return self.seconds - self.elapsed_s

    def searching(self) -> float:
        """Seconds in which new candidates of regions may be judged alone."""
        return self._until(SEARCHED)

    def confirming(self) -> float:
        """Seconds for timing finalists afresh."""
        return self._until(CONFIRMED)

    def tuning(self) -> float:
        """Seconds in which alternatives may be tried in the step."""
        return self._until(TUNED)

    def _until(self, shares: Mapping[str, float]) -> float:
        return self.seconds * shares[self._kind] - self.elapsed_s if self.seconds < math.inf else math.inf


def floor_of(regions: int, left_s: float, others: int, cores: int) -> str:
    """What a search of so many regions takes at least, where `left_s` are few for it; else nothing.

    `others` are threads of other processes that run on its `cores` now, and take a fair share of them.
    """
    slower = (cores + others) / cores
    if left_s >= 2 * HEAD_S * regions * slower:
        return ""
    took = f"about {REGION_S * regions:.0f} s on a quiet machine"
    if others:
        beside = "the thread" if others == 1 else f"the {others} threads"
        took += f", {REGION_S * regions * slower:.0f} s beside {beside} of others that run now"
    text = f"at least one candidate of each of {regions} regions is tried, and what serves the step is timed afresh"
    return f"{text}, whatever `seconds` says: {took}"


def any_time() -> float:
    """What is left where nobody counts."""
    return math.inf


def part_of(left: Left, share: float) -> Left:
    """What is left of a share of the time that is left now."""
    now = left()
    if now == math.inf:
        return left
    end = now - max(now, 0.0) * share
    return lambda: left() - end
