"""Raw samples → verdicts: paired log ratios by round, a t interval with a Bonferroni level, and what is not claimed.

A round says something about two arms when nothing stretched their intervals, or when they differ by more than the
waiting that was seen in them can explain; what happened to a third arm does not matter. Rounds in which threads waited
for a core may be many: leaving them out favours nobody, as long as enough are left. Nothing is claimed from a clock
that does not measure (an interval around twice the work that is not twice as long), from processes that disagree in
sign, when too few rounds count, or when too many are stretched by what nobody was seen to wait for.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median, stdev

from agentcompile.ir.timing import Round, Samples, Timing
from agentcompile.ir.trial import NO_INTERVAL, Comparison, Impossible, Measured, Measurement, NumericReport
from agentcompile.measure.policy import POLICY, Policy
from agentcompile.measure.rounds import MIN_ROUNDS, disturbed
from agentcompile.measure.student import t_quantile

CLEAR_ROUNDS = 5
"""Kept rounds from which an overwhelming difference is claimed."""
TIMES_KEPT = 32
"""Intervals that a measurement keeps: enough for a histogram, a tenth of what a trial takes on disk."""
_DOUBLING = (1.25, 4.0)
"""Where the ratio of a doubled batch must lie. A clock that lies stays near 1; a neighbour on the host moves it by the
bandwidth that it takes, which was seen to halve and double within a second."""
_DOUBLING_DISTURBED = (1.1, 16.0)
"""The same where neighbours were seen to take cores from one of the two intervals and not from the other."""


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
    disturbed: float
    """Share of all rounds in which one of the two arms was disturbed."""
    arm_ns: float
    """Time of a launch, the median over the rounds that count, or the quickest seen where too few do."""
    baseline_ns: float


def contrast(
    timing: Timing, arm: int, baseline: int, *, claim: float, comparisons: int = 1, policy: Policy = POLICY
) -> Contrast:
    """Compare two arms of one timing; ValueError when one of them failed.

    FASTER: mean − t(1 − alpha/(m·g), ν)·s/√n > ln(1 + claim), with m·g = `comparisons`: finalists times looks, planned
    beforehand.
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
    if found.rounds < MIN_ROUNDS:  # what is left to say is an estimate: the quickest that either arm was seen to be
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
    """What all rounds say, disturbed as they are, of arms so far apart that unequal suffering cannot explain it; else
    None. The ratio is that of the quickest intervals, which are the least disturbed; its interval is as wide as that of
    all rounds, as far as it agrees with what they say."""
    every = _Estimate.of([_every(process, *arms) for process in timing.processes], level)
    quickest = _Estimate.of(_quickest(timing, *arms), level)
    clear = every.rounds >= CLEAR_ROUNDS and abs(every.mean) - every.half > policy.overwhelming_disturbed
    if not clear or not every.agreed or every.mean * quickest.mean <= 0:
        return None
    half = min(every.half, abs(quickest.mean) - math.log1p(2 * claim))
    return replace(quickest, half=half, rounds=every.rounds, agreed=True) if half > 0 else None


_Pair = tuple[float, float]
"""What one round says of a launch of two arms, in ns: of the arm, and of its baseline."""


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
        """Of the rounds that count, by process."""
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
        """What it says of a difference of `claim` unless something stands against it, and why it says nothing."""
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
    """Time of a launch of one arm when it is left alone: the median of the intervals in which no thread waited, or,
    where there are few, the lower quartile of all. ValueError when the arm failed."""
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
    """`values`, or `most` of them at equal distances, with the first and the last."""
    count = len(values)
    return values if count <= most else [values[at * (count - 1) // (most - 1)] for at in range(most)]


def impossible(median_ns: float, floor_ns: float, policy: Policy = POLICY) -> bool:
    """Whether a time is below what the machine can do at that residency: the clock or the floor is wrong."""
    return median_ns < policy.floor_fraction * floor_ns


def judged(
    timing: Timing,
    arm: int,
    nbytes: int,
    floor_ns: float,
    report: NumericReport,
    claim: float,
    comparisons: int,
    rounds: int = 0,
) -> Measured | Impossible:
    """The verdict on an arm that was timed beside arm 0, in `rounds` rounds of each process if time allowed: a time
    that the machine cannot reach is quarantined."""
    found = measurement(timing, arm, 0, bytes=nbytes, claim=claim, comparisons=comparisons)
    found = replace(found, asked=rounds * found.processes)
    if impossible(found.median_ns, floor_ns):
        return Impossible(report=report, measurement=found, floor_ns=round(floor_ns))
    return Measured(report=report, measurement=found)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Counted:
    """What the rounds of one process say of two arms."""

    clean: list[_Pair]
    """Of rounds in which nothing stretched either arm."""
    apart: list[_Pair]
    """Of others whose arms differ by more than waiting explains, with all waiting taken off the slower one: they differ
    at least so much."""
    unsteady: int
    """Rounds that were dropped though no thread was seen to wait in them."""


def _counted(process: Samples, arm: int, baseline: int, *, claim: float, policy: Policy) -> _Counted:
    """The arms are named by their places in the process's rounds."""
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
    """What an arm's interval takes when it is left alone: the lower quartile of those in which no thread waited, or,
    where there are few, of all."""
    rounds = process.rounds
    calm = [ns for timed in rounds if not _waited(timed, arm, policy) for ns in timed.intervals_ns[arm]]
    taken = calm if len(calm) >= 2 * MIN_ROUNDS else [ns for timed in rounds for ns in timed.intervals_ns[arm]]
    return float(sorted(taken)[len(taken) // 4]) if taken else 1.0


def _waited(timed: Round, arm: int, policy: Policy) -> bool:
    return disturbed(sum(timed.intervals_ns[arm]), timed.waited_ns[arm], policy)


def _stretched(timed: Round, arm: int, usual_ns: float, policy: Policy) -> bool:
    """Whether threads waited for much of an interval, or it is far above its usual length, or somewhat above it while
    threads waited for a core.

    A little waiting alone is no sign: threads also wait before and after the interval that is timed.
    """
    pair, waited = timed.intervals_ns[arm], timed.waited_ns[arm]
    stretch = max(pair) / max(usual_ns, 1.0) - 1.0
    much = max(stretch, waited / max(sum(pair), 1)) > policy.max_stretch
    return much or (waited > 0 and stretch > policy.max_waiting_stretch)


def share_disturbed(timing: Timing, arms: Collection[int], *, policy: Policy = POLICY) -> float:
    """The share of rounds in which some of `arms` (places among those that lived) was disturbed: threads waited for a
    core for much of what was kept, its intervals had to be taken again and again, or they hold others' turns on a
    shared GPU: those that are longer than a turn, or far longer than usual."""

    total = sum(len(process.rounds) for process in timing.processes)
    hit = sum(
        _rounds_disturbed(process, arms, policy) for process in timing.processes if process.others > policy.others_share
    )
    return hit / total if total else 0.0


def _rounds_disturbed(process: Samples, arms: Collection[int], policy: Policy) -> int:
    """How many rounds of one process are, as `share_disturbed` says."""
    longest_ns = process.turn_ns / (1.0 + policy.max_stretch)
    usual = {at: min(_usual_ns(process, at, policy), longest_ns) for at in arms} if process.turn_ns else {}

    def disturbs(timed: Round, at: int) -> bool:
        waited = timed.waited_ns[at] > policy.busy_wait_share * sum(timed.intervals_ns[at])
        again = sum(timed.taken[at : at + 1]) > 2 + policy.retakes
        return waited or again or (at in usual and _stretched(timed, at, usual[at], policy))

    return sum(any(disturbs(timed, at) for at in arms) for timed in process.rounds)


def _quickest(timing: Timing, arm: int, baseline: int) -> list[list[_Pair]]:
    """The shortest intervals of two arms by process: contention only lengthens."""

    def shortest(process: Samples, at: int) -> float:
        return min(ns for timed in process.rounds for ns in timed.intervals_ns[at]) / process.batch

    return [[(shortest(one, arm), shortest(one, baseline))] for one in timing.processes if one.rounds]


def _apart(timed: Round, arm: int, baseline: int, factor: float, batch: int) -> _Pair | None:
    """A round with all waiting taken off the slower arm, if the two still differ by `factor` and the slower one's
    shorter interval is longer than the other's longer one; else None."""
    slow, fast = sorted((arm, baseline), key=lambda at: -sum(timed.intervals_ns[at]))
    least = sum(timed.intervals_ns[slow]) - timed.waited_ns[slow]
    most = sum(timed.intervals_ns[fast])
    if least <= most * factor or min(timed.intervals_ns[slow]) <= max(timed.intervals_ns[fast]) * factor:
        return None
    per_launch = least / 2 / batch, most / 2 / batch
    return per_launch if slow == arm else (per_launch[1], per_launch[0])


def _pair(timed: Round, arm: int, baseline: int, batch: int) -> _Pair:
    """Each the median of two intervals, which is their mean."""
    return sum(timed.intervals_ns[arm]) / 2 / batch, sum(timed.intervals_ns[baseline]) / 2 / batch


def _every(process: Samples, arm: int, baseline: int) -> list[_Pair]:
    """All rounds, as they are."""
    return [_pair(timed, arm, baseline, process.batch) for timed in process.rounds]


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


def _broken(timing: Timing, arms: tuple[int, int], share: float, policy: Policy) -> str:
    """Why the clock is not to be trusted; empty when it is."""
    if any(min(pair) <= 0 for process in timing.processes for timed in process.rounds for pair in timed.intervals_ns):
        return "the clock does not measure: it stood still"
    least, most = _DOUBLING if share <= policy.max_dropped else _DOUBLING_DISTURBED
    for process in timing.processes:
        for arm in arms:
            # What is too long to be left alone says nothing of the clock beside busy neighbours.
            alone_ns = process.turn_ns // 2 or policy.retaken_ns
            hopeless = share > policy.max_dropped and _usual_ns(process, arm, policy) > alone_ns
            if not hopeless and not least <= process.clock.doubling[arm] <= most:
                return "the clock does not measure: twice the work does not take twice as long"
    return ""


def _too_few(pairs: Sequence[Sequence[_Pair]], unsteady: int, total: int, policy: Policy) -> str:
    """Why the rounds that count are no ground for a claim; empty when they are."""
    kept = sum(len(process) for process in pairs)
    if unsteady > policy.max_dropped * total:
        return f"{unsteady} of {total} rounds were stretched by something else than waiting for a core"
    if kept < total and (kept < CLEAR_ROUNDS or not all(pairs)):
        return f"{total - kept} of {total} rounds were disturbed by others on this machine"
    if kept < MIN_ROUNDS or not all(pairs):
        return f"{kept} rounds are too few"
    return ""
