"""Means over rounds with confidence intervals: rounds to logarithms to means. These functions are pure.

Rounds of one process are not independent: they share the place of its memory and the kernels that a compiler chose. An
interval that ignores how much processes differ is too narrow. A single case, with its two or three processes, cannot
show how much that is; the many cases of one run together can.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, variance
from typing import Literal

from agentcompile.measure.policy import POLICY
from agentcompile.measure.student import t_quantile

from .result import ArmResult, Case, Interval, RoundTimes, SuiteResult

Quantity = Literal["total", "token", "first"]
"""What is averaged: ``total``, the time of a whole request from its prompt to its last token; ``token``, the time per
output token (TPOT); or ``first``, the time to the first token (TTFT).
"""
QUANTITIES: tuple[Quantity, ...] = ("total", "token", "first")
LEAST_ROUNDS = 3
"""The fewest rounds from which an interval is computed."""
LEAST_MEANS = 8
"""The fewest means from which the difference between processes is estimated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mean:
    """A mean, the variance of its error, and the degrees of freedom of this variance."""

    value: float
    error: float
    freedom: float

    def half_width(self, level: float) -> float:
        """Return half the width of the two-sided interval that misses the true value with probability `level`."""
        return t_quantile(1 - level / 2, self.freedom) * math.sqrt(self.error)

    def ratio(self, rounds: int) -> Interval:
        """Return the ratio with its 95 % interval, for a mean of logarithms over `rounds` rounds."""
        half = self.half_width(POLICY.alpha)
        low, high = math.exp(self.value - half), math.exp(self.value + half)
        return Interval(value=math.exp(self.value), low=low, high=high, rounds=rounds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Logs:
    """One logarithm of each round, by process; NaN or infinite where the clock stood still."""

    by_process: tuple[tuple[float, ...], ...]
    total: int
    """Number of rounds of the case, those left out included."""

    @property
    def pooled(self) -> list[float]:
        """The logarithms of all processes."""
        return [value for part in self.by_process for value in part]

    def mean(self, effect: float | None = None) -> Mean:
        """Return the mean over all rounds; its variance is widened by `effect`, a `design_effect`.

        The widened variance is `effect` times that within processes, but at least the plain one. Rounds count as
        independent when `effect` is None, or when there is no variance within processes to widen.

        Raises:
            ValueError: there are fewer than two rounds.
        """
        plain = mean_of(self.pooled)
        if effect is None or (within := self._within()) is None:
            return plain
        count, freedom = len(self.pooled), len(self.pooled) - len(self.by_process)
        widened = Mean(value=plain.value, error=effect * within / count, freedom=float(freedom))
        return max(plain, widened, key=lambda mean: mean.error)

    def spread_of_processes(self) -> float | None:
        """Return F of the analysis of variance: the variance between processes over that within them, per round.

        It is scaled so that 1 is expected where processes do not differ; None with one process, or where nothing varies
        within processes.
        """
        if len(self.by_process) < 2 or not (within := self._within()):
            return None
        whole = fmean(self.pooled)
        between = sum(len(part) * (fmean(part) - whole) ** 2 for part in self.by_process) / (len(self.by_process) - 1)
        freedom = len(self.pooled) - len(self.by_process)
        return between / within * ((freedom - 2) / freedom if freedom > 2 else 1.0)

    def _within(self) -> float | None:
        """Return the variance within processes; None without a degree of freedom or with values that are not finite."""
        freedom = len(self.pooled) - len(self.by_process)
        if freedom < 1 or not all(map(math.isfinite, self.pooled)):
            return None
        return sum(sum((value - fmean(part)) ** 2 for value in part) for part in self.by_process) / freedom


def logs_of(case: Case, quantity: Quantity, arm: str, beside: str = "") -> Logs:
    """Return ln(time of `beside` / time of `arm`) of every kept round with both; without `beside`, ln(1 s / time)."""
    parts: dict[int, list[float]] = {}
    for timed in case.rounds:
        times = times_of(case, timed, quantity)
        if timed.kept and arm in times and (not beside or beside in times):
            value = (_ln(times[beside]) if beside else 0.0) - _ln(times[arm])
            parts.setdefault(timed.process, []).append(value)
    return Logs(by_process=tuple(tuple(part) for part in parts.values()), total=len(case.rounds))


def times_of(case: Case, timed: RoundTimes, quantity: Quantity) -> Mapping[str, float]:
    """Return the seconds of each arm in a round: of a request, of an output token, or to the first token."""
    match quantity:
        case "token":
            return timed.token_s
        case "first":
            return timed.first_s
        case "total":
            rest, known = case.new_tokens - 1, timed.token_s
            both = {arm: (first, known[arm]) for arm, first in timed.first_s.items() if arm in known}
            # A clock that stood still for one of the two measured neither.
            return {arm: first + rest * token if token > 0 else 0.0 for arm, (first, token) in both.items()}


def _ln(time_s: float) -> float:
    return math.log(time_s) if time_s > 0 else math.nan


def design_effect(many: Iterable[Logs]) -> float | None:
    """Estimate how many times larger the variance of a mean is than independent rounds would make it.

    This is the design effect of sampling in clusters (L. Kish, Survey Sampling, Wiley 1965), from the mean F of the
    one-way analyses of variance of those of `many` with more than one process. It is at least 1, and None from fewer
    than `LEAST_MEANS`.
    """
    found = [spread for logs in many if (spread := logs.spread_of_processes()) is not None]
    return max(1.0, fmean(found)) if len(found) >= LEAST_MEANS else None


def speedups(cases: Sequence[Case], quantity: Quantity) -> Iterator[Logs]:
    """Yield the log speedups of every measured arm over its case's baseline."""
    for case in cases:
        for arm in case.arms:
            if arm.state == "measured" and arm.name != case.baseline:
                yield logs_of(case, quantity, arm.name, case.baseline)


def with_totals(result: SuiteResult) -> SuiteResult:
    """Return a result whose measured arms have the speedup of a whole request, computed from its rounds."""
    effect = design_effect(speedups(result.cases, "total"))
    cases = [
        replace(case, arms=tuple(replace(arm, total_speedup=total_speedup(case, arm, effect)) for arm in case.arms))
        for case in result.cases
    ]
    return replace(result, cases=tuple(cases))


def total_speedup(case: Case, arm: ArmResult, effect: float | None) -> Interval | None:
    """Return the speedup of a whole request of `arm`, its variance widened by `effect`; None for the baseline."""
    if arm.state != "measured" or arm.name == case.baseline:
        return None
    logs = logs_of(case, "total", arm.name, case.baseline)
    count = len(logs.pooled)
    return logs.mean(effect).ratio(count) if count >= LEAST_ROUNDS else None


def mean_of(values: Sequence[float]) -> Mean:
    """Return the mean of independent values.

    Raises:
        ValueError: there are fewer than two values.
    """
    if len(values) < 2:
        raise ValueError(f"{len(values)} values: an interval needs two")
    return Mean(value=fmean(values), error=variance(values) / len(values), freedom=float(len(values) - 1))


def apart(a: Mean, b: Mean) -> Mean:
    """Return `b` minus `a`, whose variances may differ.

    B. L. Welch, "The generalization of 'Student's' problem when several different population variances are involved",
    Biometrika 34 (1947), 28–35, with the degrees of freedom of F. E. Satterthwaite, "An approximate distribution of
    estimates of variance components", Biometrics Bulletin 2 (1946), 110–114.
    """
    error = a.error + b.error
    parts = a.error**2 / a.freedom + b.error**2 / b.freedom
    freedom = error**2 / parts if parts > 0 else a.freedom + b.freedom
    return Mean(value=b.value - a.value, error=error, freedom=freedom)
