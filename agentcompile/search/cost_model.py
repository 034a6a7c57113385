"""A cost model of one task, learned from its own trials: gradient-boosted trees (Friedman, 2001) on its points.

In: scores of the points that were tried. Out: a prediction for any other, where the model may be trusted: where its
predictions for trials that it did not see rank these as the trials did. It is made anew from the same scores in the
same order, so that a replayed search learns the same. scikit-learn is imported only when a model is fitted, because it
takes a large part of a second.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agentcompile.search.points import Points

if TYPE_CHECKING:
    from numpy import ndarray
    from sklearn.ensemble import GradientBoostingRegressor

    Array = ndarray[Any, Any]

TRUSTED = 0.5
"""The least rank correlation with which the model is used."""
LEAST = 24
"""Trials with which it is fitted for the first time."""
_GROWTH = 1.2
"""It is fitted again when there are this many times as many trials, so that a search of n trials fits ln n times."""
_FOLDS = 3
_KEPT = 32
"""Fits, and features of a space, that are kept."""
_TREES, _DEPTH, _RATE, _SHARE, _TRIED = 40, 4, 0.15, 0.8, 0.3
"""Of the ensemble: its trees, their depth, the learning rate, the share of the trials that each tree sees, and the
share of the features that each split tries, on which the time of a fit depends."""
_ABSENT = -1.0
"""The feature of a parameter that the point's template does not have."""
_MOST_PAIRED = 10
"""Parameters whose products and quotients are features, so that their number stays small."""


class CostModel:
    """A model of how fast points are, which knows itself how far it can be trusted."""

    def __init__(self, points: Points) -> None:
        self._features = _features_of(points)
        self._trees: GradientBoostingRegressor | None = None
        self._fitted = 0
        self._correlation = 0.0

    @property
    def correlation(self) -> float:
        """Spearman's rank correlation, -1 to 1, between trials and predictions of models that had not seen them.

        Every third trial is held out in turn (3-fold cross-validation): the newest trials alone lie close together
        near the optimum, where the order is mostly noise. 0 before the first fit.
        """
        return self._correlation

    @property
    def trusted(self) -> bool:
        """Whether the rank correlation is at least `TRUSTED`."""
        return self._trees is not None

    def learn(self, scores: Mapping[int, float]) -> None:
        """Fit the model to the scores of all points tried: ln(baseline ÷ time), -∞ for a failure.

        Nothing is done before there are a fifth more of them than at the last fit.
        """
        if len(scores) < max(LEAST, self._fitted * _GROWTH):
            return
        self._fitted = len(scores)
        self._trees, self._correlation = _learned(self._features, tuple(scores.items()))

    def best(self, points: Sequence[int]) -> int:
        """Return which of `points`, at least one, the model takes for the fastest; only where it is trusted."""
        assert self._trees is not None
        return points[int(self._trees.predict(self._features.of(points)).argmax())]


def rank_correlation(first: Array, second: Array) -> float:
    """Return Spearman's rank correlation of two arrays of one length; 0 where one is flat."""
    one, other = _ranks(first), _ranks(second)
    scale = math.sqrt(float(one @ one) * float(other @ other))
    return float(one @ other) / scale if scale else 0.0


def _ranks(values: Array) -> Array:
    """Return ranks around 0; equal values share their mean rank."""
    import numpy as np

    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(count) - (count - 1) / 2)[place]
    around: Array = ranks - ranks.mean()
    return around


@functools.lru_cache(maxsize=_KEPT)  # a search that is replayed learns the same again
def _learned(
    features: _Features, scores: tuple[tuple[int, float], ...]
) -> tuple[GradientBoostingRegressor | None, float]:
    """Return what learned the scores of points, where it may be trusted, and the rank correlation."""
    best = max(score for _, score in scores)
    if best == -math.inf:
        return None, 0.0
    import numpy as np

    rows = features.of([point for point, _ in scores])
    # Speeds as shares of the best one, a failure 0: differences among slow points matter little.
    speeds = np.array([math.exp(score - best) for _, score in scores])
    fold, seen = np.arange(len(speeds)) % _FOLDS, np.zeros(len(speeds))
    for held in range(_FOLDS):
        seen[fold == held] = _fit(rows[fold != held], speeds[fold != held]).predict(rows[fold == held])
    correlation = rank_correlation(seen, speeds)
    return _fit(rows, speeds) if correlation >= TRUSTED else None, correlation


def _fit(rows: Array, speeds: Array) -> GradientBoostingRegressor:
    """Fit the trees on one thread; the same rows give the same trees."""
    from sklearn import config_context
    from sklearn.ensemble import GradientBoostingRegressor

    trees = GradientBoostingRegressor(
        n_estimators=_TREES, max_depth=_DEPTH, learning_rate=_RATE, subsample=_SHARE, max_features=_TRIED,
        random_state=0,
    )  # fmt: skip
    with config_context(skip_parameter_validation=True, assume_finite=True):  # these take half as long as the fit
        return trees.fit(rows, speeds)


class _Features:
    """The features of points: its template, and each parameter's log2; of a text, its place in the domain.

    Hardware limits products of parameters (threads of a block, bytes of a tile) and needs quotients without a
    remainder; sums and differences of their logarithms let a tree of one split see either.
    """

    def __init__(self, points: Points) -> None:
        self._points = points
        grid = points.grid
        names = list(dict.fromkeys(name for of_template in grid.names for name in of_template))
        self._templates = len(grid.templates) if len(grid.templates) > 1 else 0
        self._width = self._templates + len(names)
        self._columns = [[self._templates + names.index(name) for name in of_template] for of_template in grid.names]
        self._values = [[_numbers(domain) for domain in of_template] for of_template in grid.domains]
        sizes: dict[int, int] = {}
        for columns, of_template in zip(self._columns, grid.domains, strict=True):
            for column, domain in zip(columns, of_template, strict=True):
                if all(isinstance(value, int) for value in domain):
                    sizes[column] = max(sizes.get(column, 0), len(domain))
        wide = [column for column in sorted(sizes) if sizes[column] > 2][:_MOST_PAIRED]
        pairs = list(itertools.combinations(wide, 2))
        self._first, self._second = [pair[0] for pair in pairs], [pair[1] for pair in pairs]

    def of(self, points: Sequence[int]) -> Array:
        """Return a row of features for each point, as 32-bit floats."""
        import numpy as np

        rows = np.full((len(points), self._width), _ABSENT, dtype=np.float32)
        for row, point in zip(rows, points, strict=True):
            template, *places = self._points.code(point)
            if self._templates:
                row[: self._templates] = 0.0
                row[template] = 1.0
            row[self._columns[template]] = [
                values[place] for values, place in zip(self._values[template], places, strict=True)
            ]
        one, other = rows[:, self._first], rows[:, self._second]
        return np.hstack([rows, one + other, one - other])


@functools.lru_cache(maxsize=_KEPT)
def _features_of(points: Points) -> _Features:
    return _Features(points)


def _numbers(domain: Sequence[int | str]) -> list[float]:
    """Return a number for each value: the log2 of a positive one, itself where it is not; the place of a text."""
    return [
        float(place) if isinstance(value, str) else math.log2(value) if value > 0 else value - 1.0
        for place, value in enumerate(domain)
    ]
