"""The result of a study of search strategies on recorded spaces: every curve, and what follows from them. Pure."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from agentcompile.ir.advice import SequenceCounts
from agentcompile.ir.target import Target

from .advising import ModelAnswers
from .simulate import Curve
from .spaces import NEARER, RecordedSpace

FORMAT = 1
KIND = "recorded-spaces"
MARKS = (25, 50, 100, 200)
"""Evaluations after which the best so far is reported, beside the whole budget."""
RESAMPLES = 2000
"""Resamples of a bootstrap interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceFacts:
    """A space of the study."""

    name: str
    digest: str
    device: str
    points: int
    failed: int
    near: tuple[tuple[float, int], ...]
    """For each percentage of the study, how many points are at most that much slower than the best."""
    best: str
    """The label of the fastest candidate."""
    best_ns: float
    compared_ns: float = 0.0
    """What speed-ups are over: PyTorch's time where it was recorded, else the median of all that ran; 0: not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """The evaluations until the best was within `percent` of the optimum: median over seeds, and its interval.

    A seed that never got there counts as infinite. The interval holds 95 % of the medians of `RESAMPLES` resamples of
    the seeds (Efron, 1979, the percentile method).
    """

    percent: float
    seeds: int
    """Seeds that got there."""
    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What the seeds of one arm found in one space."""

    space: str
    arm: str
    seeds: int
    reaches: tuple[Reach, ...]
    """For each percentage of the study, in its order."""
    area: float
    """Median over seeds of the area under the curve: the mean, over evaluations from the first to the last that the
    budget and the space allow, of the optimum's time over the best time so far (0 before a point ran, 1 at best)."""
    best: tuple[tuple[int, float], ...]
    """(evaluations, best time then over the optimum's, median over seeds); infinite before a point ran."""
    overhead_s: float
    """Processor seconds that the arm itself took for an evaluation, over all seeds."""
    calls: float = 0.0
    """Answers of a model that a search heard, mean over seeds."""
    tokens: float = 0.0
    """Tokens of these questions and answers, mean over seeds."""
    efficiency: float | None = None
    """Speed-up ÷ samples: the speed-up when the best was first within the percentage that counts, over the evaluations
    until then, median over seeds; 0 for a seed that never got there; None where `compared_ns` is not known."""
    correlation: float | None = None
    """Rank correlation of the cost model with trials that it did not see, median over the seeds that have one."""
    answers: ModelAnswers | None = None
    """Whose answers all seeds together used; an answer counts once for each seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overall:
    """An arm over all spaces: geometric means of the medians."""

    arm: str
    evaluations: tuple[tuple[float, float], ...]
    """(percent, evaluations to within it); infinite when a median is."""
    area: float
    efficiency: float | None = None
    """Speed-up ÷ samples; 0 when a median is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """The content of a result file."""

    kind: Literal["recorded-spaces"] = "recorded-spaces"
    format: int = FORMAT
    command: str
    version: str
    revision: str
    changed_since: bool
    """Whether sources differ from the revision."""
    machine: Target
    budget: int
    seeds: int
    percents: tuple[float, ...]
    """How much slower than the optimum, in percent, is near it; the first is the one that counts."""
    arms: tuple[str, ...]
    sources: dict[str, str]
    """The identity of the code behind each arm: curves of other code are not taken over."""
    spaces: tuple[SpaceFacts, ...]
    standings: tuple[Standing, ...] = ()
    """Empty until every curve is there, like `overall`."""
    overall: tuple[Overall, ...] = ()
    curves: tuple[Curve, ...] = ()

    def of(self, space: str, arm: str) -> tuple[Curve, ...]:
        """Return the curves of an arm in a space, one for each seed that is finished."""
        return tuple(curve for curve in self.curves if curve.space == space and curve.strategy == arm)

    def standing(self, space: str, arm: str) -> Standing:
        """Return what an arm found in a space of a finished study."""
        return next(one for one in self.standings if one.space == space and one.arm == arm)


def facts_of(space: RecordedSpace, percents: Sequence[float]) -> SpaceFacts:
    """Return the facts of a space in which some point ran."""
    assert space.best is not None
    assert space.best_ns is not None
    return SpaceFacts(
        name=space.name, digest=space.digest, device=space.device, points=len(space.candidates),
        failed=len(space.candidates) - len(space.times_ns), best=space.best.label, best_ns=space.best_ns,
        near=tuple((percent, len(space.within(percent))) for percent in percents), compared_ns=space.compared_ns,
    )  # fmt: skip


def percents_of(within: float) -> tuple[float, ...]:
    """Return the percentages of a study: the one asked for, and `NEARER`."""
    return tuple(dict.fromkeys((within, NEARER)))


def standing_of(facts: SpaceFacts, arm: str, curves: Sequence[Curve], percents: Sequence[float]) -> Standing:
    """Return what the curves of an arm in one space say together; there is at least one, all of the same budget."""
    last = min(curves[0].budget, facts.points)
    marks = [mark for mark in MARKS if mark < last] + [last]
    known = [curve.correlation for curve in curves if curve.correlation is not None]
    return Standing(
        space=facts.name, arm=arm, seeds=len(curves),
        reaches=tuple(_reach(percent, [curve.evaluations_to(percent) for curve in curves]) for percent in percents),
        area=statistics.median(curve.area(last) for curve in curves),
        best=tuple((mark, _median(curve.best_after(mark) / facts.best_ns for curve in curves)) for mark in marks),
        overhead_s=sum(curve.seconds for curve in curves) / max(sum(curve.evaluations for curve in curves), 1),
        calls=statistics.fmean(curve.used.calls for curve in curves),
        tokens=statistics.fmean(curve.used.tokens for curve in curves),
        efficiency=_efficiency(facts, curves, percents[0]),
        correlation=statistics.median(known) if known else None,
        answers=together(curve.answers for curve in curves),
    )  # fmt: skip


def _efficiency(facts: SpaceFacts, curves: Sequence[Curve], percent: float) -> float | None:
    """Return speed-up ÷ samples (the sample efficiency of arXiv 2506.01374) at `percent` above the optimum."""
    if not facts.compared_ns:
        return None
    reached = [(curve, curve.evaluations_to(percent)) for curve in curves]
    return statistics.median(
        0.0 if at is None else facts.compared_ns / curve.best_after(at) / at for curve, at in reached
    )


def together(answers: Iterable[ModelAnswers | None]) -> ModelAnswers | None:
    """Return the sum of what several searches used; None where none asked a model."""
    found = [one for one in answers if one is not None]
    if not found:
        return None
    return ModelAnswers(
        model=", ".join(sorted({one.model for one in found})),
        consulted=sum(one.consulted for one in found),
        fallbacks=sum(one.fallbacks for one in found),
        sequences=sum((one.sequences for one in found), SequenceCounts()),
    )


def _reach(percent: float, found: Sequence[int | None]) -> Reach:
    values = [math.inf if one is None else float(one) for one in found]
    low, high = interval(values, _median)
    there = sum(one is not None for one in found)
    return Reach(percent=percent, seeds=there, median=_median(values), low=low, high=high)


def interval(values: Sequence[float], of: Callable[[Sequence[float]], float]) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of a statistic, the same for the same values; values may be infinite."""
    draw = random.Random(0)
    found = sorted(of(draw.choices(values, k=len(values))) for _ in range(RESAMPLES))
    tail = round(RESAMPLES * 0.025)
    return found[tail - 1], found[-tail]


def _median(values: Iterable[float]) -> float:
    """Return the median; infinite when the middle, or one of the two, is."""
    return statistics.median(values)


def overall_of(arm: str, standings: Sequence[Standing]) -> Overall:
    """Return the geometric means of an arm's medians over spaces."""
    medians = zip(*(((reach.percent, reach.median) for reach in one.reaches) for one in standings), strict=True)
    efficiencies = [one.efficiency for one in standings if one.efficiency is not None]
    return Overall(
        arm=arm,
        evaluations=tuple((pairs[0][0], statistics.geometric_mean(median for _, median in pairs)) for pairs in medians),
        area=_geometric([one.area for one in standings]),
        efficiency=_geometric(efficiencies) if len(efficiencies) == len(standings) else None,
    )


def _geometric(values: Sequence[float]) -> float:
    return 0.0 if min(values) <= 0 else statistics.geometric_mean(values)
