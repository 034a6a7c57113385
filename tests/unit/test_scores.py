"""Rows of logits beside float32's: known divergences, what is no number, and what a right model may lose."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from agentcompile.ir.whole import BEYOND, Walk
from agentcompile.verification.scores import (
    FEW,
    ROUNDING,
    PositionScore,
    compared,
    drifted,
    fault,
    lost,
    miscaptured,
    mutual,
    phases,
    rows,
    summary,
)

THREE_TO_ONE = torch.tensor([[math.log(3.0), 0.0]])
EVEN = torch.tensor([[0.0, 0.0]])
RIGHT = PositionScore(
    floor=1e-12,
    kl=1e-4,
    kl_eager=1e-4,
    log_ratio=0.0,
    log_ratio_eager=0.0,
    mismatch=False,
    beyond=False,
    beyond_eager=False,
)
"""A position that loses what eager PyTorch does."""


def one(
    exact: torch.Tensor, found: torch.Tensor, eager: torch.Tensor | None = None, after: int | None = 0
) -> PositionScore:
    (row,) = rows(exact, eager, found, [after])
    return row


def noisy(logits: torch.Tensor, size: float, seed: int) -> torch.Tensor:
    return logits + size * torch.randn(logits.shape, generator=torch.Generator().manual_seed(seed))


def drawn(count: int, vocab: int = 64, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, vocab, generator=torch.Generator().manual_seed(seed))


def walk(positions: int, *, prompt: int = 0, seed: int = 0) -> Walk:
    ids = torch.randint(64, (positions,), generator=torch.Generator().manual_seed(seed)).tolist()
    return Walk(ids=tuple(ids), prompt=prompt, scored=tuple(range(max(prompt - 1, 0), positions)))


def why(found: torch.Tensor, exact: torch.Tensor, eager: torch.Tensor | None, prompt: int = 0) -> str:
    """What is wrong with one walk over every position."""
    own = walk(exact.shape[0] + max(prompt - 1, 0), prompt=prompt)
    return fault([own], compared([own], [exact], [eager], found))


def test_the_divergence_and_the_perplexity_ratio_are_those_of_the_definition() -> None:
    row = one(THREE_TO_ONE, EVEN, eager=torch.tensor([[math.log(2.0), 0.0]]))
    assert row.kl == pytest.approx(0.75 * math.log(1.5) + 0.25 * math.log(0.5))
    assert row.log_ratio == pytest.approx(math.log(1.5))
    assert row.kl_eager == pytest.approx(0.75 * math.log(0.75 * 3 / 2) + 0.25 * math.log(0.25 * 3))
    assert row.log_ratio_eager == pytest.approx(math.log(0.75 / (2 / 3)))
    # The divergence has a direction: from float32's distribution.
    assert one(EVEN, THREE_TO_ONE).kl == pytest.approx(0.5 * math.log(2 / 3) + 0.5 * math.log(2))


def test_the_same_logits_and_logits_that_are_all_moved_by_one_number_lose_nothing() -> None:
    logits = drawn(1)
    for found in (logits, logits + 7.0):
        row = one(logits, found)
        assert row.kl == pytest.approx(0.0, abs=1e-12)
        assert row.log_ratio == pytest.approx(0.0, abs=1e-6)
        assert not row.mismatch
    assert why(drawn(16), drawn(16), None) == ""


def test_the_last_token_has_no_following_one_and_no_perplexity() -> None:
    assert one(THREE_TO_ONE, EVEN, after=None).log_ratio is None


def test_what_rounding_may_cost_follows_the_spread_of_the_row() -> None:
    spread = float(drawn(1).std())
    assert one(drawn(1), drawn(1)).floor == pytest.approx((ROUNDING * spread) ** 2 / 2)
    assert one(10 * drawn(1), 10 * drawn(1)).floor == pytest.approx((ROUNDING * 10 * spread) ** 2 / 2)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_logit_that_is_no_number_is_wrong_at_its_position(bad: float) -> None:
    exact = drawn(12)
    found = exact.clone()
    found[5, 3] = bad
    assert one(exact[5:6], found[5:6]).kl == BEYOND
    said = why(found, exact, noisy(exact, 0.01, 1))
    assert "position 5" in said
    assert "not finite" in said
    assert " more of " not in said


def test_a_token_that_float32_forbids_may_be_forbidden_and_not_allowed() -> None:
    exact = drawn(12)
    exact[:, 3] = -math.inf
    assert why(exact.clone(), exact, None) == ""
    allowed = exact.clone()
    allowed[:, 3] = 3.0
    assert "position 0" in why(allowed, exact, None)


def test_logits_as_near_as_eagers_pass_and_twice_as_far_in_the_mean_do_not() -> None:
    exact = drawn(200)
    eager = noisy(exact, 0.01, 1)
    assert why(noisy(exact, 0.01, 2), exact, eager) == ""
    said = why(noisy(exact, 0.02, 2), exact, eager)
    assert "mean KL" in said
    assert "over 200 positions" in said


def test_in_float32_only_the_order_of_sums_may_differ() -> None:
    exact = drawn(200)
    assert why(noisy(exact, 5e-7, 2), exact, None) == ""
    assert why(noisy(exact, 1e-3, 2), exact, None)


def test_a_row_that_is_anothers_is_found_and_named() -> None:
    exact = drawn(66)
    found = noisy(exact, 0.01, 2)
    found[41] = found[40]
    said = why(found, exact, noisy(exact, 0.01, 1))
    assert said.startswith("token by token, position 41: KL(float32 || compiled) is")
    found = noisy(exact, 0.01, 2)
    found[41:] = found[40:-1].clone()
    assert "and at 24 more of 66 positions" in why(found, exact, noisy(exact, 0.01, 1))


def test_the_shortest_sequence_that_is_wrong_is_named_first() -> None:
    long, short = walk(40, seed=1), walk(9, prompt=4, seed=2)
    exact = [drawn(40, seed=1), drawn(len(short.scored), seed=2)]
    found = torch.cat(exact).clone()
    found[0], found[41] = -found[0], -found[41]
    said = fault([long, short], compared([long, short], exact, [None, None], found))
    assert said.startswith("a prompt of 4 tokens and 1 decoded, position 4: ")


def test_one_position_may_lose_what_eager_loses_there_or_usually_and_no_multiple_of_it() -> None:
    usual = RIGHT.kl
    assert not lost(replace(RIGHT, kl=23 * usual), usual)
    assert lost(replace(RIGHT, kl=25 * usual), usual)
    assert not lost(replace(RIGHT, kl=25 * usual, kl_eager=2 * usual), usual)
    assert lost(replace(RIGHT, kl=25 * usual, kl_eager=None), usual)


def test_a_perplexity_that_is_another_is_wrong_though_its_divergence_is_small() -> None:
    assert not drifted([replace(RIGHT, log_ratio=4e-4)] * 100)
    said = drifted([replace(RIGHT, log_ratio=6e-4)] * 100)
    assert said.startswith("ln(perplexity compiled / float32) is 0.0006 over 100")
    assert not drifted([replace(RIGHT, log_ratio=6e-4, log_ratio_eager=6e-4)] * 100)
    # Wide apart from position to position, a mean tells nothing.
    assert not drifted([replace(RIGHT, log_ratio=6e-4 + (0.1 if at % 2 else -0.1)) for at in range(100)])


def test_too_few_rows_have_no_mean() -> None:
    far = replace(RIGHT, kl=1e-2, log_ratio=0.1)
    assert drifted([far] * FEW)
    assert not drifted([far] * (FEW - 1))


def test_greedy_tokens_may_differ_among_the_likeliest_five_alone() -> None:
    logits = torch.arange(10.0)
    assert mutual(logits, logits.flip(0)) is False
    near = logits.clone()
    near[6] = 9.5
    assert mutual(logits, near)
    near[4] = 9.75
    assert mutual(logits, near) is False
    one_sided = logits.clone()
    one_sided[5] = 20.0
    assert mutual(logits, one_sided)
    one_sided[[0, 1, 2, 3]] = 15.0  # float32's likeliest is sixth here, though this one's is fifth there
    assert mutual(logits, one_sided) is False


def test_many_greedy_tokens_beyond_the_five_likeliest_are_wrong_unless_eagers_are_too() -> None:
    wrong = [replace(RIGHT, mismatch=True, beyond=True)]
    assert not drifted([*wrong * 2, *[RIGHT] * 98])
    assert "5 of 100 positions" in drifted([*wrong * 5, *[RIGHT] * 95])
    assert not drifted([*[replace(one, beyond_eager=True) for one in wrong] * 5, *[RIGHT] * 95])


def test_a_phases_figures_are_of_its_own_positions() -> None:
    own = walk(12, prompt=8)
    exact = drawn(len(own.scored))
    found = exact.clone()
    found[0] = exact[0].roll(1)
    by_phase = {one.phase: one for one in phases([own], compared([own], [exact], [None], found))}
    assert (by_phase["prefill"].positions, by_phase["decode"].positions) == (1, 4)
    assert by_phase["prefill"].kl > 0.1
    assert by_phase["decode"].kl == pytest.approx(0.0, abs=1e-12)


def test_the_mean_is_of_positions_that_eager_was_asked_about() -> None:
    alone = replace(RIGHT, kl=5.0, kl_eager=None)
    found = summary("decode", [RIGHT, RIGHT, alone])
    assert (found.kl, found.kl_eager, found.kl_worst, found.positions) == (RIGHT.kl, RIGHT.kl, 5.0, 3)
    assert summary("decode", [alone]).kl == 5.0


def captured(kl_of_noise: float, *, shifted: int = -1) -> str:
    """What is said of a graph whose logits in float64 are so much of eager's noise away, one row being another's."""
    own, exact = walk(60, prompt=20), drawn(41)
    eager, graph = noisy(exact, 0.01, 1), noisy(exact, 0.01 * math.sqrt(kl_of_noise), 2)
    if shifted >= 0:
        graph[shifted] = graph[shifted - 1]
    return miscaptured([own], [exact], [eager], [graph])


def test_a_graph_that_loses_little_of_what_eager_does_without_any_rounding_is_captured_right() -> None:
    assert captured(0.0) == captured(0.03) == captured(0.3) == ""


def test_a_graph_that_loses_as_much_as_eager_without_any_rounding_is_another_model() -> None:
    assert "as captured, without any rounding: mean KL(float32 || captured)" in captured(1.3)
    assert "a prompt of 20 tokens and 4 decoded, position 23: KL(float32 || captured)" in captured(0.03, shifted=4)


def test_what_was_not_run_in_float64_is_not_called_wrong() -> None:
    own, exact = walk(60, prompt=20), drawn(41)
    assert miscaptured([own], [exact], [noisy(exact, 0.01, 1)], [None]) == ""
    assert miscaptured([own], [exact], [None], [-exact]) == ""
