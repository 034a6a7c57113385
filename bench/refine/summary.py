"""What follows from the sessions of a study: rates, means and curves by arm. Pure functions."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from .result import Beside, Row, Study

Z = 1.959963984540054
"""The quantile of the normal distribution for intervals of 95 %."""
RESAMPLES = 2000
"""Resamples of a bootstrap interval."""
BASELINE = "baseline"
"""The name for PyTorch's fastest form, whichever that is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """A share, with its interval of 95 %."""

    count: int
    of: int
    low: float
    high: float

    @property
    def value(self) -> float:
        """The share; 0 of nothing."""
        return self.count / self.of if self.of else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Mean:
    """A geometric mean of speed-ups over tasks, with its bootstrap interval of 95 % over tasks."""

    over: str
    """The form of PyTorch, or `BASELINE`."""
    value: float
    low: float | None
    high: float | None
    """None for a single task, which shows nothing of how tasks differ."""
    tasks: int
    """Tasks with a kernel that was timed; the others are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What an arm reached in all its sessions."""

    arm: str
    sessions: int
    success: Rate
    """Sessions with a kernel that passed every gate."""
    fast: Rate
    """Sessions with a kernel that is surely faster than PyTorch's fastest form: fast_1."""
    compiled: Rate
    """Attempts that compiled."""
    correct: Rate
    """Attempts whose results were right."""
    means: tuple[Mean, ...]
    attempts: int
    tokens: int
    cents: float
    seconds: float
    ended: tuple[tuple[str, int], ...]
    """How many sessions each end had."""
    contended: int
    """Sessions whose fresh timing was disturbed."""


def wilson(count: int, of: int) -> Rate:
    """Return a share with its score interval; that of nothing is everything.

    E. B. Wilson, "Probable inference, the law of succession, and statistical inference", Journal of the American
    Statistical Association 22 (1927), 209–212.
    """
    if not of:
        return Rate(count=0, of=0, low=0.0, high=1.0)
    share, spread = count / of, Z * Z / of
    middle = (share + spread / 2) / (1 + spread)
    half = Z * math.sqrt(share * (1 - share) / of + spread / (4 * of)) / (1 + spread)
    low = 0.0 if count == 0 else middle - half
    return Rate(count=count, of=of, low=low, high=1.0 if count == of else middle + half)


def geometric(values: Sequence[float]) -> tuple[float, float | None, float | None]:
    """Return the geometric mean of positive values, one at least, and its bootstrap interval, always the same one.

    The interval goes from one percentile to the other: B. Efron and R. J. Tibshirani, An Introduction to the Bootstrap
    (1993), chapter 13.
    """
    logs, draw = [math.log(value) for value in values], random.Random(0)
    if len(logs) < 2:
        return values[0], None, None
    found = sorted(fmean(draw.choices(logs, k=len(logs))) for _ in range(RESAMPLES))
    tail = round(RESAMPLES * 0.025)
    return math.exp(fmean(logs)), math.exp(found[tail - 1]), math.exp(found[-tail])


def speedup(row: Row, over: str) -> Beside | None:
    """Return the speed-up of a session's kernel over a form of PyTorch or `BASELINE`; None without one."""
    return row.least if over == BASELINE else row.over(over)


def fast_share(rows: Sequence[Row], least: float, over: str = BASELINE) -> float:
    """Return fast_p: the share of sessions whose kernel has a speed-up of at least `least`; 0 of none."""
    found = [speedup(row, over) for row in rows]
    return sum(one is not None and one.speedup >= least for one in found) / len(rows) if rows else 0.0


def curve(rows: Sequence[Row], over: str = BASELINE) -> tuple[tuple[float, float], ...]:
    """Return the points where fast_p changes: each speed-up with the share of sessions that reach it, rising."""
    found = sorted({one.speedup for row in rows if (one := speedup(row, over)) is not None})
    return tuple((value, fast_share(rows, value, over)) for value in found)


def summaries(study: Study) -> tuple[Summary, ...]:
    """Return what each arm with a session reached."""
    return tuple(_summary(study, arm) for arm in study.arms if study.of(arm))


def _summary(study: Study, arm: str) -> Summary:
    rows = study.of(arm)
    attempts = sum(len(row.attempts) for row in rows)
    ends = [row.ended for row in rows]
    return Summary(
        arm=arm,
        sessions=len(rows),
        success=wilson(sum(row.success for row in rows), len(rows)),
        fast=wilson(sum(row.fast for row in rows), len(rows)),
        compiled=wilson(sum(row.compiled for row in rows), attempts),
        correct=wilson(sum(row.correct for row in rows), attempts),
        means=tuple(mean for over in (BASELINE, *study.forms) if (mean := _mean(rows, over)) is not None),
        attempts=attempts,
        tokens=sum(row.tokens for row in rows),
        cents=sum(row.cents for row in rows),
        seconds=sum(row.seconds for row in rows),
        ended=tuple((end, ends.count(end)) for end in dict.fromkeys(ends)),
        contended=sum(row.contended for row in rows),
    )


def _mean(rows: Sequence[Row], over: str) -> Mean | None:
    """Return the mean over tasks; a task with several seeds counts once, by the mean of those."""
    logs = dict[str, list[float]]()
    for row in rows:
        if (one := speedup(row, over)) is not None:
            logs.setdefault(row.task, []).append(math.log(one.speedup))
    if not logs:
        return None
    value, low, high = geometric([math.exp(fmean(each)) for each in logs.values()])
    return Mean(over=over, value=value, low=low, high=high, tasks=len(logs))
