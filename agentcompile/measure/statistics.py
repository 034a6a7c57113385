"""From raw samples to comparisons: paired log ratios by round and a t interval with a Bonferroni level.

A round counts for two arms when nothing stretched their intervals, or when they differ by more than the waiting that
was seen in them can explain; a third arm does not matter. Many rounds in which threads waited for a core may be left
out: that favours no arm while enough are left. Nothing is claimed when the clock does not measure (an interval of twice
the work is not twice as long), when processes disagree in sign, when too few rounds count, or when too many are
stretched without any waiting that was seen.

With several comparisons at once each gets an equal share of the chance of a false claim: O. J. Dunn, Multiple
Comparisons Among Means, Journal of the American Statistical Association 56 (1961).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median, stdev
from typing import NamedTuple

from agentcompile.ir.timing import Round, Samples, Timing
from agentcompile.ir.trial import NO_INTERVAL, Comparison, Impossible, Measured, Measurement, NumericReport
from agentcompile.measure.policy import POLICY, Policy
from agentcompile.measure.rounds import MIN_ROUNDS, disturbed
from agentcompile.measure.student import t_quantile

CLEAR_ROUNDS = 5
"""The fewest kept rounds from which an overwhelming difference is claimed."""
TIMES_KEPT = 32
"""Number of intervals that a measurement keeps: enough for a histogram, a tenth of what a trial takes on disk."""
# A false clock stays near 1; a neighbour on the host was seen to halve and double the bandwidth within a second.
_DOUBLING = (1.25, 4.0)  # the valid range of the time of a doubled batch over that of a single one
_DOUBLING_DISTURBED = (1.1, 16.0)
"""The valid range where other processes were seen to take cores from only one of the two intervals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast:
    """The comparison of an arm with a baseline: ln(baseline time / arm time), so that above 0 the arm is faster."""

    log_ratio: float
    half_width: float
    """Half the width of the interval of `log_ratio`; infinite when there are too few rounds for one."""
    comparison: Comparison
    why: str
    """The reason for INCONCLUSIVE; empty otherwise."""
    rounds: int
    """Number of rounds that were kept."""
    dropped: int
    disturbed: float
    """Share of all rounds in which one of the two arms was disturbed."""
    arm_ns: float
    """Time of a launch: the median over the kept rounds, or the quickest seen where too few were kept."""
    baseline_ns: float


def contrast(
    timing: Timing, arm: int, baseline: int, *, claim: float, comparisons: int = 1, policy: Policy = POLICY
) -> Contrast:
    """Compare two arms of one timing.

    FASTER means mean − t(1 − alpha/(m·g), ν)·s/√n > ln(1 + claim), with m·g = `comparisons` the number of finalists
    times that of looks, planned beforehand.

    Raises:
        ValueError: one of the arms failed.
    """
    a, b = timing.live.index(arm), timing.live.index(baseline)
    counted = [_counted(process, a, b, claim=claim, policy=policy) for process in timing.processes]
    few = any(len(one.clean) < MIN_ROUNDS for one in counted)
    pairs = [[*one.clean, *one.apart] if few else one.clean for one in counted]
    total = sum(len(process.rounds) for process in timing.processes)
    share = share_disturbed(timing, (a, b), policy=policy)
    level = policy.alpha / max(comparisons, 1)
    found = _Estimate.of(pairs, level)
    clear = found.rounds >= CLEAR_ROUNDS and abs(found.mean) - found.half > policy.overwhelming
    unsteady = 0 if clear else sum(one.unsteady for one in counted)
    why = _broken(timing, (a, b), share, policy)
    comparison: Comparison = "INCONCLUSIVE"
    if not why:
        comparison, why = found.verdict(claim, _too_few(pairs, unsteady, total, policy))
        if comparison == "INCONCLUSIVE" and found.rounds < total:
            every = _overwhelming(timing, (a, b), claim, level, policy)
            if every is not None:
                found = every
                comparison, why = every.verdict(claim, "")
    if found.rounds < MIN_ROUNDS:  # too few for an interval: estimate from the quickest time of either arm
        found = replace(_Estimate.of(_quickest(timing, a, b), level), half=found.half, rounds=found.rounds)
    return Contrast(
        log_ratio=found.mean,
        half_width=found.half,
        comparison=comparison,
        why=why,
        rounds=found.rounds,
        dropped=total - found.rounds,
        disturbed=share,
        arm_ns=found.arm_ns,
        baseline_ns=found.baseline_ns,
    )


def _overwhelming(
    timing: Timing, arms: tuple[int, int], claim: float, level: float, policy: Policy
) -> _Estimate | None:
    """Estimate from all rounds, disturbed ones too; None unless unequal disturbance cannot explain the difference.

    The ratio is that of the quickest intervals, the least disturbed ones; its interval is as wide as that of all
    rounds, but narrow enough to exclude twice `claim`.
    """
    pairs = [[_pair(timed, *arms, process.batch) for timed in process.rounds] for process in timing.processes]
    every = _Estimate.of(pairs, level)
    quickest = _Estimate.of(_quickest(timing, *arms), level)
    clear = every.rounds >= CLEAR_ROUNDS and abs(every.mean) - every.half > policy.overwhelming_disturbed
    if not clear or not every.agreed or every.mean * quickest.mean <= 0:
        return None
    half = min(every.half, abs(quickest.mean) - math.log1p(2 * claim))
    return replace(quickest, half=half, rounds=every.rounds, agreed=True) if half > 0 else None


_Pair = tuple[float, float]  # the times of one launch in one round, in ns: of the arm and of its baseline


@dataclass(frozen=True, slots=True, kw_only=True)
class _Estimate:
    """A t interval over the rounds of all processes."""

    mean: float
    half: float
    rounds: int
    agreed: bool
    """Whether all processes have the mean's sign."""
    arm_ns: float
    baseline_ns: float

    @staticmethod
    def of(pairs: Sequence[Sequence[_Pair]], level: float) -> _Estimate:
        ratios = [[math.log(max(baseline, 1e-3) / max(arm, 1e-3)) for arm, baseline in part] for part in pairs]
        pooled = [ratio for process in ratios for ratio in process]
        mean = fmean(pooled) if pooled else 0.0
        return _Estimate(
            mean=mean,
            half=_half_width(pooled, level),
            rounds=len(pooled),
            agreed=all(fmean(part) * mean > 0 for part in ratios if part),
            arm_ns=median([arm for part in pairs for arm, _ in part] or [0.0]),
            baseline_ns=median([baseline for part in pairs for _, baseline in part] or [0.0]),
        )

    def verdict(self, claim: float, objection: str) -> tuple[Comparison, str]:
        """Compare with a difference of `claim`; INCONCLUSIVE on an `objection`. Also return why it is INCONCLUSIVE."""
        comparison = verdict(self.mean, self.half, claim)
        if objection:
            return "INCONCLUSIVE", objection
        if comparison in ("FASTER", "SLOWER") and not self.agreed:
            return "INCONCLUSIVE", "the processes disagree in sign"
        if comparison == "INCONCLUSIVE":
            low, high = self.mean - self.half, self.mean + self.half
            return comparison, f"the interval {low:+.4f} … {high:+.4f} is too wide for a claim of {claim:.1%}"
        return comparison, ""


def measurement(
    timing: Timing, arm: int, baseline: int, *, bytes: int, claim: float, comparisons: int = 1, policy: Policy = POLICY
) -> Measurement:
    """Return the `Measurement` of one arm beside a baseline; `bytes` is what the region must move at least.

    Raises:
        ValueError: one of the arms failed.
    """
    found = contrast(timing, arm, baseline, claim=claim, comparisons=comparisons, policy=policy)
    taken = timing.per_launch_ns(arm)
    times = sorted(taken)
    return Measurement(
        median_ns=round(found.arm_ns),
        p95_ns=round(times[min(len(times) - 1, math.ceil(0.95 * len(times)) - 1)]),
        baseline_ns=round(found.baseline_ns),
        baseline=timing.arms[baseline],
        log_ratio=found.log_ratio,
        half_width=found.half_width,
        comparison=found.comparison,
        rounds=found.rounds,
        dropped=found.dropped,
        disturbed=round(found.disturbed, 3),
        processes=len(timing.processes),
        batch=timing.processes[0].batch,
        residency=timing.residency,
        bytes_per_s=bytes / max(found.arm_ns, 1e-3) * 1e9,
        times_ns=tuple(round(one) for one in evenly(taken, TIMES_KEPT)),
    )


def usual_ns(timing: Timing, arm: int, policy: Policy = POLICY) -> float:
    """Return a launch's undisturbed time: the median of enough intervals without waiting, else a lower quartile.

    Raises:
        ValueError: the arm failed.
    """
    at = timing.live.index(arm)
    taken = [
        (ns / process.batch, _waited(timed, at, policy))
        for process in timing.processes
        for timed in process.rounds
        for ns in timed.intervals_ns[at]
    ]
    calm = [ns for ns, waited in taken if not waited]
    if len(calm) >= 2 * MIN_ROUNDS:
        return median(calm)
    return sorted(ns for ns, _ in taken)[len(taken) // 4] if taken else 0.0


def evenly(values: Sequence[float], most: int) -> Sequence[float]:
    """Return `values`, or `most` of them at equal distances, with the first and the last."""
    count = len(values)
    return values if count <= most else [values[at * (count - 1) // (most - 1)] for at in range(most)]


def impossible(usual_ns: float, floor_ns: float, policy: Policy = POLICY) -> bool:
    """Return whether a time is clearly below the roofline floor, which means that the clock or the floor is wrong."""
    return usual_ns < policy.floor_fraction * floor_ns


def verdict_of(
    timing: Timing,
    arm: int,
    nbytes: int,
    floor_ns: float,
    report: NumericReport,
    claim: float,
    comparisons: int,
    rounds: int = 0,
) -> Measured | Impossible:
    """Return the verdict on an arm timed beside arm 0, `rounds` a process: `Impossible` below what can be reached.

    That is decided by the arm's usual time: where few rounds were undisturbed, the measurement has its quickest one.
    """
    found = measurement(timing, arm, 0, bytes=nbytes, claim=claim, comparisons=comparisons)
    found = replace(found, asked=rounds * found.processes)
    if impossible(usual_ns(timing, arm), floor_ns):
        return Impossible(report=report, measurement=found, floor_ns=round(floor_ns))
    return Measured(report=report, measurement=found)


class _Counted(NamedTuple):
    """The rounds of one process that count in a comparison of two arms."""

    clean: list[_Pair]
    """Times of the rounds in which nothing stretched either arm."""
    apart: list[_Pair]
    """Times, less all waiting of the slower arm, of other rounds whose difference waiting cannot explain."""
    unsteady: int
    """Number of rounds that were dropped although no thread was seen to wait in them."""


def _counted(process: Samples, arm: int, baseline: int, *, claim: float, policy: Policy) -> _Counted:
    usual = {at: _usual_ns(process, at, policy) for at in (arm, baseline)}
    clean, apart, unsteady = list[_Pair](), list[_Pair](), 0
    for timed in process.rounds:
        if not any(_stretched(timed, at, usual[at], policy) for at in usual):
            clean.append(_pair(timed, arm, baseline, process.batch))
        elif (pair := _apart(timed, arm, baseline, 1.0 + claim, process.batch)) is not None:
            apart.append(pair)
        else:
            unsteady += not any(timed.waited_ns[at] for at in usual)
    return _Counted(clean=clean, apart=apart, unsteady=unsteady)


def _usual_ns(process: Samples, arm: int, policy: Policy) -> float:
    """Return the lower quartile of an arm's intervals without waiting; of all intervals where those are few."""
    rounds = process.rounds
    calm = [ns for timed in rounds if not _waited(timed, arm, policy) for ns in timed.intervals_ns[arm]]
    taken = calm if len(calm) >= 2 * MIN_ROUNDS else [ns for timed in rounds for ns in timed.intervals_ns[arm]]
    return float(sorted(taken)[len(taken) // 4]) if taken else 1.0


def _waited(timed: Round, arm: int, policy: Policy) -> bool:
    return disturbed(sum(timed.intervals_ns[arm]), timed.waited_ns[arm], policy)


def _stretched(timed: Round, arm: int, usual_ns: float, policy: Policy) -> bool:
    """Return whether an arm's intervals are far above `usual_ns`, had much waiting, or had some and are above it.

    A little waiting alone does not count: threads also wait before and after the interval that is timed.
    """
    pair, waited = timed.intervals_ns[arm], timed.waited_ns[arm]
    stretch = max(pair) / max(usual_ns, 1.0) - 1.0
    much = max(stretch, waited / max(sum(pair), 1)) > policy.max_stretch
    return much or (waited > 0 and stretch > policy.max_waiting_stretch)


def share_disturbed(timing: Timing, arms: Collection[int], *, policy: Policy = POLICY) -> float:
    """Return the share of rounds in which one of `arms` (places among the live ones) was disturbed.

    Threads waited for a core for much of its kept intervals, these were taken again many times, or they are far longer
    than usual or than a turn on a shared GPU, so that they include other processes' turns.
    """
    total = sum(len(process.rounds) for process in timing.processes)
    hit = sum(
        _rounds_disturbed(process, arms, policy) for process in timing.processes if process.others > policy.others_share
    )
    return hit / total if total else 0.0


def _rounds_disturbed(process: Samples, arms: Collection[int], policy: Policy) -> int:
    longest_ns = process.turn_ns / (1.0 + policy.max_stretch)
    usual = {at: min(_usual_ns(process, at, policy), longest_ns) for at in arms} if process.turn_ns else {}

    def disturbs(timed: Round, at: int) -> bool:
        waited = timed.waited_ns[at] > policy.busy_wait_share * sum(timed.intervals_ns[at])
        again = sum(timed.taken[at : at + 1]) > 2 + policy.retakes
        return waited or again or (at in usual and _stretched(timed, at, usual[at], policy))

    return sum(any(disturbs(timed, at) for at in arms) for timed in process.rounds)


def _quickest(timing: Timing, arm: int, baseline: int) -> list[list[_Pair]]:
    """Return the shortest time of each of two arms by process, since contention only lengthens intervals."""

    def shortest(process: Samples, at: int) -> float:
        return min(ns for timed in process.rounds for ns in timed.intervals_ns[at]) / process.batch

    return [[(shortest(one, arm), shortest(one, baseline))] for one in timing.processes if one.rounds]


def _apart(timed: Round, arm: int, baseline: int, factor: float, batch: int) -> _Pair | None:
    """Return a round's times less all waiting of the slower arm, or None if the arms then differ by less than `factor`.

    None, too, unless the slower arm's shorter interval exceeds the other's longer one by `factor`.
    """
    slow, fast = sorted((arm, baseline), key=lambda at: -sum(timed.intervals_ns[at]))
    least = sum(timed.intervals_ns[slow]) - timed.waited_ns[slow]
    most = sum(timed.intervals_ns[fast])
    if least <= most * factor or min(timed.intervals_ns[slow]) <= max(timed.intervals_ns[fast]) * factor:
        return None
    per_launch = least / 2 / batch, most / 2 / batch
    return per_launch if slow == arm else (per_launch[1], per_launch[0])


def _pair(timed: Round, arm: int, baseline: int, batch: int) -> _Pair:
    """Return the times of one launch in ns, each the median (here the mean) of the arm's two intervals."""
    return sum(timed.intervals_ns[arm]) / 2 / batch, sum(timed.intervals_ns[baseline]) / 2 / batch


def _half_width(ratios: Sequence[float], level: float) -> float:
    n = len(ratios)
    if n < MIN_ROUNDS:
        return NO_INTERVAL
    return t_quantile(1.0 - level, n - 1) * stdev(ratios) / math.sqrt(n)


def verdict(mean: float, half: float, claim: float) -> Comparison:
    """Compare the interval mean ± half of a log ratio with a relative difference of `claim`."""
    edge = math.log1p(claim)
    if mean - half > edge:
        return "FASTER"
    if mean + half < -edge:
        return "SLOWER"
    return "SAME" if mean - half >= -edge and mean + half <= edge else "INCONCLUSIVE"


def _broken(timing: Timing, arms: tuple[int, int], share: float, policy: Policy) -> str:
    if any(min(pair) <= 0 for process in timing.processes for timed in process.rounds for pair in timed.intervals_ns):
        return "the clock does not measure: it stood still"
    least, most = _DOUBLING if share <= policy.max_dropped else _DOUBLING_DISTURBED
    for process in timing.processes:
        for arm in arms:
            # Beside busy neighbours, an interval too long to be undisturbed says nothing about the clock.
            alone_ns = process.turn_ns // 2 or policy.retaken_ns
            hopeless = share > policy.max_dropped and _usual_ns(process, arm, policy) > alone_ns
            if not hopeless and not least <= process.clock.doubling[arm] <= most:
                return "the clock does not measure: twice the work does not take twice as long"
    return ""


def _too_few(pairs: Sequence[Sequence[_Pair]], unsteady: int, total: int, policy: Policy) -> str:
    kept = sum(len(process) for process in pairs)
    if unsteady > policy.max_dropped * total:
        return f"{unsteady} of {total} rounds were stretched by something else than waiting for a core"
    if kept < total and (kept < CLEAR_ROUNDS or not all(pairs)):
        return f"{total - kept} of {total} rounds were disturbed by others on this machine"
    if kept < MIN_ROUNDS or not all(pairs):
        return f"{kept} rounds are too few"
    return ""
