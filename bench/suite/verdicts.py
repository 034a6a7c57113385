"""The comparison of two runs of the suite, or of two arms of one run: from rounds to verdicts.

These functions take results and return rows, each a comparison with its interval, or why there is none. A ratio above 1
(a log ratio above 0) means that B is faster. The deciding intervals of one report hold simultaneously.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Literal

from agentcompile.errors import AgentCompileError
from agentcompile.ir.trial import Comparison
from agentcompile.measure.policy import POLICY
from agentcompile.measure.rounds import MIN_ROUNDS
from agentcompile.measure.statistics import verdict

from ..harness.means import QUANTITIES, Logs, Mean, Quantity, apart, design_effect, logs_of
from ..harness.result import ArmResult, Case, State, SuiteResult

View = Literal["ratio", "absolute", "paired"]
"""What is compared: of two runs the speedups over each one's baseline or the times; of one run two arms by round."""
_MOST_LOG = 700.0
"""The largest logarithm whose exponential is a float; no ratio of times is that large."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A ratio, the mean of logarithms, with its two-sided interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The speed of B over that of A, and the verdict on it."""

    span: Span | None
    """The ratio; None when there are too few rounds for an interval."""
    rounds: tuple[int, int]
    """Numbers of rounds used, of A and of B; the same rounds when paired."""
    comparison: Comparison
    why: str
    """The reason for INCONCLUSIVE; empty otherwise."""
    agrees: bool | None
    """Whether A and B cannot be told apart: 1 is in the interval or processes disagree in sign; None without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """The comparison of one of the two times of an arm that both sides measured."""

    kind: Literal["compared"] = "compared"
    case: str
    arm: str
    quantity: Quantity
    a_s: float | None
    b_s: float | None
    """The median in B's file, as `a_s` is that in A's."""
    changes: dict[View, Change]
    """The changes by view; a baseline of two runs has no ``ratio``, as that would compare it with itself."""
    varies: tuple[str, ...] = ()
    """The sides whose tokens changed from one generation of a process to the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmeasured:
    """An arm that at least one side did not measure."""

    kind: Literal["unmeasured"] = "unmeasured"
    case: str
    arm: str
    a: State | Literal["missing"]
    b: State | Literal["missing"]
    """The state in B as `a` is that in A; ``missing`` when the file does not list the arm."""
    reason: str


Row = Compared | Unmeasured


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All comparisons of one command."""

    decides: View
    claim: float
    """The smallest relative difference that is claimed."""
    alpha: float
    """Probability that any interval of the deciding view misses its true value."""
    comparisons: int
    """Number of comparisons that share `alpha` evenly (Bonferroni)."""
    rows: tuple[Row, ...]

    @property
    def level(self) -> float:
        """The probability that one interval misses its true value."""
        return self.alpha / max(self.comparisons, 1)

    def verdict(self, row: Compared) -> Change | None:
        """Return the deciding change; None for the baseline of two runs."""
        return row.changes.get(self.decides)

    @property
    def slower(self) -> bool:
        """Whether any deciding change is SLOWER."""
        return any(change is not None and change.comparison == "SLOWER" for _, change in self._deciding())

    @property
    def apart(self) -> tuple[Compared, ...]:
        """The rows whose deciding change does not agree."""
        return tuple(row for row, change in self._deciding() if change is not None and change.agrees is False)

    @property
    def untold(self) -> tuple[Row, ...]:
        """The rows of which it is not known whether they agree, unmeasured arms included."""
        unmeasured = (row for row in self.rows if isinstance(row, Unmeasured))
        return (*(row for row, change in self._deciding() if change and change.agrees is None), *unmeasured)

    def _deciding(self) -> Iterator[tuple[Compared, Change | None]]:
        return ((row, self.verdict(row)) for row in self.rows if isinstance(row, Compared))

    @property
    def wrong(self) -> tuple[Unmeasured, ...]:
        """The arms whose output is wrong in B."""
        return tuple(row for row in self.rows if isinstance(row, Unmeasured) and row.b == "wrong")


Effects = tuple[float | None, float | None]
"""The `design_effect` of A and of B, by which differences between processes widen variances; None if unknown."""


def change_between(a: Logs, b: Logs, *, claim: float, level: float, effect: Effects = (None, None)) -> Change:
    """Compare two independent runs by Welch's interval of the difference of their means."""
    ours, theirs = b.pooled, a.pooled
    rounds = (len(theirs), len(ours))
    why = _objection(a, "A: ") or _objection(b, "B: ")
    if min(rounds) < MIN_ROUNDS or not all(map(math.isfinite, [*ours, *theirs])):
        return _untold(rounds, why)
    torn = [fmean(part) - fmean(theirs) for part in b.by_process] + [fmean(ours) - fmean(p) for p in a.by_process]
    return _change(apart(a.mean(effect[0]), b.mean(effect[1])), torn, rounds, why, claim=claim, level=level)


def change_paired(logs: Logs, *, claim: float, level: float, effect: float | None = None) -> Change:
    """Compare two arms of one run by the t interval of the mean over rounds that have both."""
    values, why = logs.pooled, _objection(logs, "")
    rounds = (len(values), len(values))
    if len(values) < MIN_ROUNDS or not all(map(math.isfinite, values)):
        return _untold(rounds, why)
    by_process = [fmean(part) for part in logs.by_process]
    return _change(logs.mean(effect), by_process, rounds, why, claim=claim, level=level)


def _objection(logs: Logs, side: str) -> str:
    used = len(logs.pooled)
    if used < MIN_ROUNDS:
        return f"{side}{used} kept rounds are too few"
    if not all(map(math.isfinite, logs.pooled)):
        return f"{side}a time is not above 0: the clock does not measure"
    if logs.total - used > POLICY.max_dropped * logs.total:
        return f"{side}{logs.total - used} of {logs.total} rounds were dropped"
    return ""


def _change(
    found: Mean, by_process: Sequence[float], rounds: tuple[int, int], why: str, *, claim: float, level: float
) -> Change:
    """Return the verdict on `found`; nothing is claimed where the differences `by_process` disagree in sign."""
    half = found.half_width(level)
    low, high = found.value - half, found.value + half
    comparison: Comparison = "INCONCLUSIVE" if why else verdict(found.value, half, claim)
    torn = any(one * found.value <= 0 for one in by_process)
    if comparison in ("FASTER", "SLOWER") and torn:
        comparison, why = "INCONCLUSIVE", "the processes disagree in sign"
    if comparison == "INCONCLUSIVE":
        why = why or f"the interval is too wide for a claim of {claim:.1%}"
    span = Span(value=_exp(found.value), low=_exp(low), high=_exp(high))
    return Change(span=span, rounds=rounds, comparison=comparison, why=why, agrees=torn or low <= 0 <= high)


def _untold(rounds: tuple[int, int], why: str) -> Change:
    return Change(span=None, rounds=rounds, comparison="INCONCLUSIVE", why=why, agrees=None)


def _exp(log_ratio: float) -> float:
    return math.exp(min(log_ratio, _MOST_LOG))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    """Two measured arms of one workload."""

    a: Case
    arm_a: ArmResult
    b: Case
    arm_b: ArmResult
    label: str
    sides: tuple[str, str]

    def logs(self, quantity: Quantity, beside: str = "") -> tuple[Logs, Logs]:
        """Return, of A and of B by round, the logs of the times, or of the speedups over the arm `beside`."""
        return logs_of(self.a, quantity, self.label, beside), logs_of(self.b, quantity, self.label, beside)

    def row(self, quantity: Quantity, changes: dict[View, Change]) -> Compared:
        """Return the row with `changes` and the medians of both sides."""
        spreads = [
            {"total": arm.total_s, "token": arm.token_s, "first": arm.first_s}[quantity]
            for arm in (self.arm_a, self.arm_b)
        ]
        a_s, b_s = (None if spread is None else spread.median for spread in spreads)
        both = zip(self.sides, (self.arm_a, self.arm_b), strict=True)
        return Compared(
            case=self.a.key,
            arm=self.label,
            quantity=quantity,
            a_s=a_s,
            b_s=b_s,
            changes=changes,
            varies=tuple(side for side, arm in both if not arm.same),
        )


def compare_runs(
    a: SuiteResult, b: SuiteResult, *, claim: float, alpha: float = POLICY.alpha, absolute: bool = False
) -> Report:
    """Compare B with A in every arm of the cases that both runs have.

    The speedup over the baseline of A's case decides, or with `absolute` the time itself, which is valid only as far as
    the machine did not change between the runs.

    Raises:
        AgentCompileError: a file has a case or an arm twice (usage).
    """
    decides: View = "absolute" if absolute else "ratio"
    planned = list(_pairs(a, b))
    evaluated = [one for one in planned if isinstance(one, _Pair) and (absolute or one.label != one.a.baseline)]
    effects = {quantity: _effects(planned, quantity) for quantity in QUANTITIES}

    def changes(pair: _Pair, quantity: Quantity, level: float) -> dict[View, Change]:
        found: dict[View, Change] = {}
        for view, effect in effects[quantity].items():
            if view == "absolute":
                found[view] = change_between(*pair.logs(quantity), claim=claim, level=level, effect=effect)
            elif pair.label != pair.a.baseline:
                found[view] = _beside(pair, quantity, effect, claim=claim, level=level)
        return found

    return _report(decides, planned, len(evaluated), changes, claim=claim, alpha=alpha)


def _report(
    decides: View,
    planned: Sequence[_Pair | Unmeasured],
    evaluated: int,
    changes: Callable[[_Pair, Quantity, float], dict[View, Change]],
    *,
    claim: float,
    alpha: float,
) -> Report:
    report = Report(decides=decides, claim=claim, alpha=alpha, comparisons=evaluated * len(QUANTITIES), rows=())
    rows: list[Row] = []
    for one in planned:
        if isinstance(one, Unmeasured):
            rows.append(one)
        else:
            rows += [one.row(quantity, changes(one, quantity, report.level)) for quantity in QUANTITIES]
    return replace(report, rows=tuple(rows))


def _effects(planned: Sequence[_Pair | Unmeasured], quantity: Quantity) -> dict[View, Effects]:
    pairs = [one for one in planned if isinstance(one, _Pair)]
    others = [one for one in pairs if one.label != one.a.baseline]

    def both(many: Sequence[tuple[Logs, Logs]]) -> Effects:
        return design_effect(a for a, _ in many), design_effect(b for _, b in many)

    return {
        "absolute": both([one.logs(quantity) for one in pairs]),
        "ratio": both([one.logs(quantity, one.a.baseline) for one in others]),
    }


def _beside(pair: _Pair, quantity: Quantity, effect: Effects, *, claim: float, level: float) -> Change:
    beside = pair.a.baseline
    for side, case in (("A", pair.a), ("B", pair.b)):
        baseline = case.arm(beside)
        if baseline is None or baseline.state != "measured":
            why = f"{side}: the baseline {beside} is {baseline.state if baseline else 'not listed'}"
            return _untold((0, 0), why)
    return change_between(*pair.logs(quantity, beside), claim=claim, level=level, effect=effect)


def compare_arms(result: SuiteResult, a: str, b: str, *, claim: float, alpha: float = POLICY.alpha) -> Report:
    """Compare arm `b` with arm `a`, paired by round, in every case of one run that has either.

    Raises:
        AgentCompileError: the file has a case or an arm twice (usage).
    """
    planned = [
        _pair(case, case.arm(a), case, case.arm(b), f"{b} against {a}", sides=(a, b))
        for case in _by_key(result, "A").values()
        if case.arm(a) or case.arm(b)
    ]
    cases = [one.a for one in planned if isinstance(one, _Pair)]
    effects = {quantity: design_effect(logs_of(case, quantity, b, a) for case in cases) for quantity in QUANTITIES}

    def changes(pair: _Pair, quantity: Quantity, level: float) -> dict[View, Change]:
        logs = logs_of(pair.a, quantity, b, a)
        return {"paired": change_paired(logs, claim=claim, level=level, effect=effects[quantity])}

    return _report("paired", planned, len(cases), changes, claim=claim, alpha=alpha)


def common_cases(a: SuiteResult, b: SuiteResult) -> list[str]:
    """Return the keys of the cases that both runs have, in A's order."""
    theirs = {case.key for case in b.cases}
    return [case.key for case in a.cases if case.key in theirs]


def _pairs(a: SuiteResult, b: SuiteResult) -> Iterator[_Pair | Unmeasured]:
    cases_a, cases_b = _by_key(a, "A"), _by_key(b, "B")
    for key in common_cases(a, b):
        one, other = cases_a[key], cases_b[key]
        names = dict.fromkeys(arm.name for case in (one, other) for arm in case.arms)
        for name in names:
            found = [arm for case in (one, other) if (arm := case.arm(name))]
            if all(arm.state == "absent" for arm in found):
                continue  # neither machine ran it
            yield _pair(one, one.arm(name), other, other.arm(name), name)


def _by_key(result: SuiteResult, side: str) -> dict[str, Case]:
    for case in result.cases:
        names = [arm.name for arm in case.arms]
        if len(set(names)) < len(names):
            raise AgentCompileError(f"{side}: {case.key}: lists an arm twice", hint="make it again")
    found = {case.key: case for case in result.cases}
    if len(found) < len(result.cases):
        raise AgentCompileError(f"{side}: lists a case twice", hint="make it again with agentcompile bench")
    return found


def _pair(
    a: Case, arm_a: ArmResult | None, b: Case, arm_b: ArmResult | None, label: str, sides: tuple[str, str] = ("A", "B")
) -> _Pair | Unmeasured:
    if arm_a and arm_b and arm_a.state == arm_b.state == "measured":
        return _Pair(a=a, arm_a=arm_a, b=b, arm_b=arm_b, label=label, sides=sides)
    told = [
        f"{side}: {arm.away if arm else 'not listed'}"
        for side, arm in zip(sides, (arm_a, arm_b), strict=True)
        if arm is None or arm.state != "measured"
    ]
    return Unmeasured(
        case=a.key,
        arm=label,
        a=arm_a.state if arm_a else "missing",
        b=arm_b.state if arm_b else "missing",
        reason="; ".join(told),
    )
