"""Choosing tokens: exact filters, exact reproducibility, frequencies that match the probabilities."""

from __future__ import annotations

import math

import pytest
import torch

from agentcompile.errors import AgentCompileError
from agentcompile.runtime.sampling import Sampling, choose, probabilities, uniform

LOGITS = torch.tensor([2.0, 1.0, 0.0, -1.0, 1.0])


def test_greedy_takes_the_lowest_id_among_equals() -> None:
    assert choose(torch.tensor([0.0, 3.0, 3.0]), Sampling(), 0) == 1


def test_top_k_keeps_the_k_likeliest_and_renormalises() -> None:
    ids, weights = probabilities(LOGITS, Sampling(temperature=1.0, top_k=2))
    assert ids.tolist() == [0, 1]
    assert weights[0].item() == pytest.approx(math.e / (math.e + 1))


def test_top_p_keeps_the_smallest_set_that_reaches_the_mass() -> None:
    full = torch.softmax(LOGITS.double(), 0)
    ids, weights = probabilities(LOGITS, Sampling(temperature=1.0, top_p=float(full[0]) + 1e-6))
    assert ids.tolist() == [0, 1]
    assert weights.sum().item() == pytest.approx(1.0)
    assert probabilities(LOGITS, Sampling(temperature=1.0, top_p=1e-9))[0].tolist() == [0]


def test_a_draw_depends_on_seed_and_counter_alone() -> None:
    sampling = Sampling(temperature=0.8, seed=7)
    first = [choose(LOGITS, sampling, i) for i in range(50)]
    again = [choose(LOGITS, sampling, i) for i in reversed(range(50))][::-1]
    assert first == again
    assert first != [choose(LOGITS, Sampling(temperature=0.8, seed=8), i) for i in range(50)]


def test_uniform_numbers_fill_the_unit_interval_evenly() -> None:
    counts = [0] * 10
    for i in range(10_000):
        counts[int(uniform(3, i) * 10)] += 1
    chi_square = sum((c - 1000) ** 2 / 1000 for c in counts)
    assert chi_square < 27.9  # the 0.1 % point of 9 degrees of freedom


def test_frequencies_match_the_probabilities() -> None:
    sampling = Sampling(temperature=1.0, seed=1)
    ids, weights = probabilities(LOGITS, sampling)
    draws = [choose(LOGITS, sampling, i) for i in range(4000)]
    expected = dict(zip(ids.tolist(), weights.tolist(), strict=True))
    chi_square = sum((draws.count(i) - 4000 * p) ** 2 / (4000 * p) for i, p in expected.items())
    assert chi_square < 18.5  # the 0.1 % point of 4 degrees of freedom


@pytest.mark.parametrize("settings", [{"temperature": -1.0}, {"top_k": -1}, {"top_p": 0.0}, {"top_p": 1.5}])
def test_settings_out_of_range_are_named(settings: dict[str, float]) -> None:
    with pytest.raises(AgentCompileError, match=next(iter(settings))):
        Sampling(**settings)  # type: ignore[arg-type]
