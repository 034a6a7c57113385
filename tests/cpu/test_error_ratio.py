"""The error ratio: what a right kernel's declared roundings may cost by chance is no fault; anything beside is."""

from __future__ import annotations

import pytest
import torch

from agentcompile.validate.bound import Bounded
from agentcompile.validate.compare import compare, finish
from agentcompile.validate.tally import Tally

HEADS, WIDTH = 4, 64
SCALE = 2.0**-10
"""How far the weights of the one head that attends to a single slot move its results, one standard deviation."""


def evaluated(*, shared: bool, declared: bool, off: float) -> bool:
    """Whether a kernel passes that is right but in one head, whose results are all `off` standard deviations away."""
    rng = torch.Generator().manual_seed(0)
    value = torch.randn(HEADS, WIDTH, generator=rng).double()
    moved = torch.zeros(HEADS, WIDTH).double()
    moved[1] = SCALE
    direction = torch.randn(WIDTH, generator=rng).sign().double()
    variance = moved.square() if declared else None
    rounded = None if variance is None else 20 * moved
    reference = Bounded(value=value, rounded=rounded, variance=variance, shared=shared)
    y = value.clone()
    y[1] += off * SCALE * direction
    stored, tally = value.to(torch.bfloat16), Tally()
    compare(tally, y.to(torch.bfloat16), reference, stored, dtype="bf16", where="y", everyday=True)
    finish(tally)
    return tally.checks["error-ratio"].ok


@pytest.mark.parametrize(
    ("shared", "declared", "off", "passes"),
    [(True, True, 3.0, True), (True, True, 6.0, False), (False, True, 6.0, False), (True, False, 6.0, False)],
)
def test_one_head_that_a_rounded_query_moves_as_a_whole_is_a_matter_of_chance(
    shared: bool, declared: bool, off: float, passes: bool
) -> None:
    assert evaluated(shared=shared, declared=declared, off=off) == passes


def test_what_is_right_passes_whatever_moves_together() -> None:
    assert all(evaluated(shared=shared, declared=True, off=0.0) for shared in (True, False))


def far_row(rows: int, off: float) -> bool:
    """Whether one row passes that is `off` standard deviations away, of so many that roundings move as one."""
    rng = torch.Generator().manual_seed(0)
    value = torch.randn(rows, WIDTH, generator=rng).double()
    moved = torch.full((rows, WIDTH), SCALE * 64).double()
    reference = Bounded(value=value, rounded=20 * moved, variance=moved.square(), shared=True)
    y, tally = value.clone(), Tally()
    y[rows // 2] += off * moved[0]
    compare(tally, y.float(), reference, value.float(), dtype="fp32", where="y", everyday=False)
    return tally.checks["row-rms"].ok


@pytest.mark.parametrize(("rows", "within", "beyond"), [(8, 2.99, 3.01), (1024, 2.99, 3.01), (65536, 4.1, 4.2)])
def test_of_many_rows_that_move_as_one_some_are_farther_away(rows: int, within: float, beyond: float) -> None:
    assert far_row(rows, within)
    assert not far_row(rows, beyond)
