"""The raw result of timing, before any statistics: intervals by process, round and arm."""

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
    """Time in which our threads were ready to run and had no core, summed over threads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One random permutation of the arms followed by its reverse: two intervals an arm."""

    intervals_ns: tuple[tuple[int, int], ...]
    """The first and the second interval of each arm, each around `Samples.batch` launches."""
    waited_ns: tuple[int, ...]
    """Time that our threads waited for a core in both intervals of each arm."""
    taken: tuple[int, ...] = ()
    """Intervals that each arm needed to get these two: more than two where some were disturbed and repeated.

    It is empty in runs from before disturbed intervals were repeated.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """A process's check of its timer, made before it trusts the timer."""

    quantum_ns: int
    """Smallest step seen."""
    doubling: tuple[float, ...]
    """Interval of twice the batch over that of the batch, by arm; near 2 for a clock that measures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """All rounds of one process."""

    batch: int
    """Launches in one interval, the same for every arm."""
    clock: Clock
    rounds: tuple[Round, ...]
    others: float = 1.0
    """Share of the machine's processor time that other processes took meanwhile; 1 where it was not measured."""
    turn_ns: int = 0
    """Length of our time slice on a GPU that other processes were seen to use.

    A longer interval includes the slices of others too. It is 0 on a GPU that is ours alone, and on CPUs.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """The arms of one `Evaluator.time` call, in the order given, and the samples of those that did not fail."""

    arms: tuple[str, ...]
    """Labels of all arms."""
    live: tuple[int, ...]
    """Indices into `arms`, ascending, of the arms that the samples hold, in this order."""
    failed: tuple[tuple[int, Death | Cancelled | Incorrect], ...] = ()
    """Arms that ended their process, left wrong outputs or were cancelled, with their verdicts."""
    processes: tuple[Samples, ...]
    residency: Residency

    def per_launch_ns(self, arm: int) -> tuple[float, ...]:
        """Return every interval of one arm over all processes, per launch; ValueError when the arm failed."""
        at = self.live.index(arm)
        return tuple(
            interval / process.batch
            for process in self.processes
            for timed in process.rounds
            for interval in timed.intervals_ns[at]
        )

    def median_ns(self, arm: int) -> float:
        """Return the median time of a launch of one arm; ValueError when the arm failed."""
        return median(self.per_launch_ns(arm))
