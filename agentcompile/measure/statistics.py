"""Raw samples → verdicts: paired log ratios by round, a t interval with a Bonferroni level, and what is not claimed.

Nothing is claimed from a clock that does not measure (an interval around twice the work that is not twice as long),
from processes that disagree in sign, or when too many rounds were contended.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev

from agentcompile.ir.timing import Round, Samples, Timing
from agentcompile.ir.trial import NO_INTERVAL, Comparison, Measurement
from agentcompile.measure.policy import POLICY, Policy
from agentcompile.measure.student import t_quantile

CLEAR_ROUNDS = 5
"""Kept rounds from which an overwhelming difference is claimed."""
MIN_ROUNDS = 3
"""Fewer kept rounds than this give no interval."""
TIMES_KEPT = 32
"""Intervals that a measurement keeps: enough for a histogram, a tenth of what a trial takes on disk."""
_DOUBLING = (1.25, 4.0)
"""Where the ratio of a doubled batch must lie. A clock that lies stays near 1; a neighbour on the host moves it by the
bandwidth that it takes, which was seen to halve and double within a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast:
    """One arm against another: ln(time of the baseline / time of the arm), so that above 0 is faster."""

    log_ratio: float
    half_width: float
    """Infinite when there are too few rounds for an interval."""
    comparison: Comparison
    why: str
    """For INCONCLUSIVE: what stands in the way."""
    rounds: int
    """Kept."""
    dropped: int


def contrast(
    timing: Timing, arm: int, baseline: int, *, claim: float, comparisons: int = 1, policy: Policy = POLICY
) -> Contrast:
    """Compare two arms of one timing; ValueError when one of them failed.

    FASTER: mean − t(1 − alpha/(m·g), ν)·s/√n > ln(1 + claim), with m·g = `comparisons`: finalists times looks, planned
    beforehand.
    """
    a, b = timing.live.index(arm), timing.live.index(baseline)
    ratios = [
        [_log_ratio(timed, a, b) for timed in kept_rounds(process, a, b, claim=claim, policy=policy)]
        for process in timing.processes
    ]
    pooled = [ratio for process in ratios for ratio in process]
    total = sum(len(process.rounds) for process in timing.processes)
    dropped = total - len(pooled)
    mean = fmean(pooled) if pooled else 0.0
    half = _half_width(pooled, policy.alpha / max(comparisons, 1))
    clear = len(pooled) >= CLEAR_ROUNDS and abs(mean) - half > policy.overwhelming
    why = _objection(timing, (a, b), ratios, 0 if clear else dropped, total, policy)
    comparison: Comparison = "INCONCLUSIVE" if why else verdict(mean, half, claim)
    if not why and comparison in ("FASTER", "SLOWER") and any(fmean(part) * mean <= 0 for part in ratios):
        comparison, why = "INCONCLUSIVE", "the processes disagree in sign"
    if not why and comparison == "INCONCLUSIVE":
        why = f"the interval {mean - half:+.4f} … {mean + half:+.4f} is too wide for a claim of {claim:.1%}"
    return Contrast(
        log_ratio=mean, half_width=half, comparison=comparison, why=why, rounds=len(pooled), dropped=dropped
    )


def measurement(
    timing: Timing,
    arm: int,
    baseline: int,
    *,
    bytes: int,
    claim: float,
    comparisons: int = 1,
    policy: Policy = POLICY,
) -> Measurement:
    """The `Measurement` of one arm beside a baseline; `bytes` is what the region must move at least.

    ValueError when either arm failed.
    """
    found = contrast(timing, arm, baseline, claim=claim, comparisons=comparisons, policy=policy)
    taken = timing.per_launch_ns(arm)
    times = sorted(taken)
    middle = median(times)
    return Measurement(
        median_ns=round(middle),
        p95_ns=round(times[min(len(times) - 1, math.ceil(0.95 * len(times)) - 1)]),
        baseline_ns=round(timing.median_ns(baseline)),
        baseline=timing.arms[baseline],
        log_ratio=found.log_ratio,
        half_width=found.half_width,
        comparison=found.comparison,
        rounds=found.rounds,
        dropped=found.dropped,
        processes=len(timing.processes),
        batch=timing.processes[0].batch,
        residency=timing.residency,
        bytes_per_s=bytes / max(middle, 1e-3) * 1e9,
        times_ns=tuple(round(one) for one in evenly(taken, TIMES_KEPT)),
    )


def evenly(values: Sequence[float], most: int) -> Sequence[float]:
    """`values`, or `most` of them at equal distances, with the first and the last."""
    count = len(values)
    return values if count <= most else [values[at * (count - 1) // (most - 1)] for at in range(most)]


def impossible(median_ns: float, floor_ns: float, policy: Policy = POLICY) -> bool:
    """Whether a time is below what the machine can do at that residency: the clock or the floor is wrong."""
    return median_ns < policy.floor_fraction * floor_ns


def kept_rounds(process: Samples, arm: int, baseline: int, *, claim: float, policy: Policy) -> list[Round]:
    """The rounds of a process that say something about two arms (by their place in it).

    A round in which contention stretched some interval is dropped whole; unless the two arms differ by more than the
    claim even when its waiting is taken from the slower one, and its lower interval is above the other's higher: then
    contention does not explain the difference.
    """
    usual = [
        median(interval for timed in process.rounds for interval in timed.intervals_ns[at])
        for at in range(len(process.clock.doubling))
    ]
    return [
        timed
        for timed in process.rounds
        if not contended(timed, usual, policy) or _apart(timed, arm, baseline, 1.0 + claim)
    ]


def contended(timed: Round, usual_ns: Sequence[float], policy: Policy) -> bool:
    """Whether an arm's interval is far above its usual one, or somewhat above it while threads waited for a core.

    Waiting alone is no sign: threads also wait before and after the interval that is timed.
    """
    for pair, waited, usual in zip(timed.intervals_ns, timed.waited_ns, usual_ns, strict=True):
        stretch = max(pair) / max(usual, 1.0) - 1.0
        if stretch > policy.max_stretch or (waited > 0 and stretch > policy.max_waiting_stretch):
            return True
    return False


def _apart(timed: Round, arm: int, baseline: int, factor: float) -> bool:
    arms = list(zip(timed.intervals_ns, timed.waited_ns, strict=True))
    (fast, _), (slow, waited) = sorted((arms[arm], arms[baseline]), key=lambda one: sum(one[0]))
    return sum(slow) - waited > sum(fast) * factor and min(slow) > max(fast) * factor


def _log_ratio(timed: Round, arm: int, baseline: int) -> float:
    """ln of the ratio of the medians of two intervals each; the median of two is their mean."""
    return math.log(max(sum(timed.intervals_ns[baseline]), 1) / max(sum(timed.intervals_ns[arm]), 1))


def _half_width(ratios: Sequence[float], level: float) -> float:
    n = len(ratios)
    if n < MIN_ROUNDS:
        return NO_INTERVAL
    return t_quantile(1.0 - level, n - 1) * stdev(ratios) / math.sqrt(n)


def verdict(mean: float, half: float, claim: float) -> Comparison:
    """What an interval of a log ratio, mean ± half, says of a relative difference of `claim`."""
    edge = math.log1p(claim)
    if mean - half > edge:
        return "FASTER"
    if mean + half < -edge:
        return "SLOWER"
    return "SAME" if mean - half >= -edge and mean + half <= edge else "INCONCLUSIVE"


def _objection(
    timing: Timing, arms: tuple[int, int], ratios: Sequence[Sequence[float]], dropped: int, total: int, policy: Policy
) -> str:
    """Why nothing may be claimed whatever the numbers are; empty when something may."""
    if any(min(pair) <= 0 for process in timing.processes for timed in process.rounds for pair in timed.intervals_ns):
        return "the clock does not measure: it stood still"
    if dropped > policy.max_dropped * total:
        return f"{dropped} of {total} rounds were contended"
    if total - dropped < MIN_ROUNDS or not all(ratios):
        return f"{total - dropped} rounds are too few"
    for process in timing.processes:
        if not all(_measures(process, arm) for arm in arms):
            return "the clock does not measure: twice the work does not take twice as long"
    return ""


def _measures(process: Samples, arm: int) -> bool:
    return _DOUBLING[0] <= process.clock.doubling[arm] <= _DOUBLING[1]
