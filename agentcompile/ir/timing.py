"""What timing returns before any statistics: raw intervals by process, round and arm."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from agentcompile.ir.target import Residency
from agentcompile.ir.trial import Cancelled, Death, Incorrect


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """One timed batch of launches of one arm."""

    ns: int
    waited_ns: int = 0
    """Time in it that our threads were ready to run and had no core, summed over threads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One random permutation of the arms followed by its reverse: two intervals an arm."""

    intervals_ns: tuple[tuple[int, int], ...]
    """By arm: the first and the second interval, each around `Samples.batch` launches."""
    waited_ns: tuple[int, ...]
    """By arm: how long our threads waited for a core in the two together."""
    taken: tuple[int, ...] = ()
    """By arm: intervals that were taken until these two were: more than two where some were disturbed; empty in runs
    from before disturbed ones were taken again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """What a process found out about its timer before it trusted it."""

    quantum_ns: int
    """Smallest step seen."""
    doubling: tuple[float, ...]
    """By arm: the interval around twice the batch over the one around the batch; near 2 for a clock that measures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """All rounds of one process."""

    batch: int
    """Launches in one interval, the same for every arm."""
    clock: Clock
    rounds: tuple[Round, ...]
    others: float = 1.0
    """Share of the machine's processor time that other processes took meanwhile; 1 where nobody looked."""
    turn_ns: int = 0
    """On a GPU that other processes were seen to use: how long it is ours at a time. A longer interval holds others'
    turns too. 0 on a GPU that is ours alone, and on CPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """The arms of one `Judge.time` call, in the order given, and every process's samples of those that lived."""

    arms: tuple[str, ...]
    """Labels of all arms."""
    live: tuple[int, ...]
    """Indices into `arms`, ascending: what the samples hold, in this order."""
    failed: tuple[tuple[int, Death | Cancelled | Incorrect], ...] = ()
    """Arms that took their process down, or left wrong outputs, with what became of them."""
    processes: tuple[Samples, ...]
    residency: Residency

    def per_launch_ns(self, arm: int) -> tuple[float, ...]:
        """Every interval of one arm over all processes, per launch; ValueError when the arm failed."""
        at = self.live.index(arm)
        return tuple(
            interval / process.batch
            for process in self.processes
            for timed in process.rounds
            for interval in timed.intervals_ns[at]
        )

    def median_ns(self, arm: int) -> float:
        """Median time of a launch of one arm; ValueError when the arm failed."""
        return median(self.per_launch_ns(arm))
