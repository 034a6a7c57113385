"""The cost model: it is used where it ranks trials that it did not see, and only there."""

from __future__ import annotations

import functools
import math
import random
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest

from agentcompile.ir.template import Candidate, Param
from agentcompile.search.cost_model import TRUSTED, CostModel, rank_correlation
from agentcompile.search.points import Points
from agentcompile.space import Space
from tests.unit.fakes import linear_region, rows_template, target


@functools.cache
def candidates() -> tuple[Candidate, ...]:
    """Two templates of 2 x 64 points: two numbers, and a text that one of the templates has alone."""
    numbers = tuple(
        Param(name=name, domain=(1, 2, 4, 8, 16, 32, 64, 128), default=1, about="how many") for name in "AB"
    )
    text = Param(name="ORDER", domain=("row", "column"), default="row", about="which")
    made = [
        rows_template(id="linear/plain", params=numbers, requires=()),
        rows_template(id="linear/ordered", params=(*numbers, text), requires=()),
    ]
    return tuple(Space(linear_region(), made, target()))


def smooth(candidate: Candidate) -> float:
    """A score whose optimum is a product, which template and text shift."""
    params = dict(candidate.params)
    product = math.log2(int(params["A"])) + math.log2(int(params["B"]))
    return -0.2 * abs(product - 6) - 0.3 * (candidate.template == "linear/plain") - 0.2 * (params.get("ORDER") == "row")


def learned(score: Callable[[Candidate], float], count: int = 60) -> tuple[CostModel, list[int]]:
    """A model that saw `count` random points, and the points that it did not see."""
    points = Points(candidates())
    order = random.Random(0).sample(range(len(points)), len(points))
    model = CostModel(points)
    model.learn({at: score(candidates()[at]) for at in order[:count]})
    return model, order[count:]


def test_a_smooth_space_is_learned() -> None:
    model, unseen = learned(smooth)
    assert model.trusted
    assert model.correlation > 0.8
    truth = sorted(unseen, key=lambda at: -smooth(candidates()[at]))
    assert model.best(unseen) in truth[: len(truth) // 10]


@pytest.mark.parametrize("seed", range(5))
def test_noise_is_not_believed(seed: int) -> None:
    noise = random.Random(seed)
    model, _ = learned(lambda _: noise.gauss(0.0, 1.0))
    assert abs(model.correlation) < TRUSTED
    assert not model.trusted


def test_a_model_that_was_trusted_is_given_up_when_its_correlation_falls() -> None:
    points, noise = Points(candidates()), random.Random(0)
    model, scores = CostModel(points), dict[int, float]()
    for at in noise.sample(range(len(points)), 40):
        scores[at] = smooth(candidates()[at])
    model.learn(scores)
    assert model.trusted
    model.learn({at: noise.gauss(0.0, 1.0) for at in range(len(points))})
    assert not model.trusted


def test_failures_are_learned_as_slow() -> None:
    def half(candidate: Candidate) -> float:
        return -math.inf if dict(candidate.params)["A"] in (16, 32, 64, 128) else smooth(candidate)

    model, unseen = learned(half)
    assert model.trusted
    assert half(candidates()[model.best(unseen)]) > -math.inf


@pytest.mark.parametrize("score", [-math.inf, 0.0])
def test_where_all_points_are_alike_there_is_nothing_to_learn(score: float) -> None:
    model, _ = learned(lambda _: score)
    assert (model.trusted, model.correlation) == (False, 0.0)


def test_few_trials_are_not_enough_and_a_few_more_change_nothing() -> None:
    scores = {at: smooth(candidates()[at]) for at in range(0, 192, 4)}
    few = CostModel(Points(candidates()))
    few.learn(dict(list(scores.items())[:20]))
    assert not few.trusted
    few.learn(dict(list(scores.items())[:40]))
    before = few.correlation
    few.learn(dict(list(scores.items())[:44]))
    assert few.correlation == before
    few.learn(scores)
    assert few.correlation != before


def test_the_same_scores_give_the_same_model() -> None:
    (one, unseen), (other, _) = learned(smooth), learned(smooth)
    assert one.correlation == other.correlation
    assert [one.best(unseen[at : at + 9]) for at in range(0, 90, 9)] == [
        other.best(unseen[at : at + 9]) for at in range(0, 90, 9)
    ]


def test_rank_correlation_is_spearmans() -> None:
    rank = rank_correlation
    assert rank(np.array([1.0, 2.0, 3.0]), np.array([1.0, 8.0, 9.0])) == pytest.approx(1.0)
    assert rank(np.array([1.0, 2.0, 3.0]), np.array([3.0, 2.0, -9.0])) == pytest.approx(-1.0)
    # 1 - 6 sum(d^2) / (n (n^2 - 1)) with d = 1, 1, 0, 0.
    assert rank(np.array([1.0, 2.0, 3.0, 4.0]), np.array([2.0, 1.0, 3.0, 4.0])) == pytest.approx(0.8)
    assert rank(np.array([1.0, 1.0]), np.array([3.0, 4.0])) == 0.0
    # Equals share a rank: 1.5, 1.5, 3 and 1, 2, 3.
    assert rank(np.array([5.0, 5.0, 6.0]), np.array([1.0, 2.0, 3.0])) == pytest.approx(math.sqrt(3) / 2)


def test_strategies_are_there_without_scikit_learn() -> None:
    code = "import sys, agentcompile.search; sys.exit(not {'sklearn', 'scipy', 'numpy'}.isdisjoint(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
