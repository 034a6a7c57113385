"""The comparison of one output: what a row's root mean square may say, and of which rows it says nothing."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from agentcompile.validate.bound import Bounded, rounded_by
from agentcompile.validate.compare import compare
from agentcompile.validate.tally import Tally
from agentcompile.validate.tolerance import ROUNDOFF

NEAR_ONE = 1.0 + 2.0**-12
"""Just above a bf16, so that its own rounding loses next to nothing."""


def seen(r: Tensor, y: Tensor) -> Tally:
    """The checks of y in bf16 beside r, whose factor was allowed to be rounded to bf16 before."""
    tally = Tally()
    made = rounded_by(Bounded(value=r), ROUNDOFF["bf16"] * r.abs())
    compare(tally, y.bfloat16(), made, r.bfloat16(), dtype="bf16", where="", everyday=False)
    return tally


def test_equal_values_that_share_one_unlucky_rounding_are_no_fault() -> None:
    factor = torch.tensor(1.0 + 0.96 * ROUNDOFF["bf16"], dtype=torch.float64)
    r = torch.full((1, 128), NEAR_ONE, dtype=torch.float64)
    assert seen(r, r * factor).ok


def test_a_row_of_different_values_that_are_all_that_wrong_is_one() -> None:
    generator = torch.Generator().manual_seed(0)
    r = NEAR_ONE + torch.randint(0, 100, (1, 128), generator=generator).double() / 128
    tally = seen(r, r + 1.9 * ROUNDOFF["bf16"])
    assert tally.checks["element"].ok
    assert not tally.checks["row-rms"].ok


@pytest.mark.parametrize(("off", "right"), [(0.9, True), (1.0, True), (4.0, False)])
def test_a_copied_row_that_one_declared_rounding_moves_may_be_stored_a_step_away(off: float, right: bool) -> None:
    """Attention whose weight is all in one slot gives that slot's value, and a kernel may round the weight."""
    generator = torch.Generator().manual_seed(0)
    r = (1.0 + torch.rand((1, 128), generator=generator)).bfloat16().double()
    step = ROUNDOFF["bf16"] * r
    made = Bounded(value=r, rounded=step, variance=2.0 * step.square() / 3.0, shared=True)
    tally = Tally()
    y = (r * (1.0 + off * ROUNDOFF["bf16"])).bfloat16()
    compare(tally, y, made, r.bfloat16(), dtype="bf16", where="", everyday=False)
    assert tally.checks["row-rms"].ok == right


def test_a_row_with_a_nan_is_as_right_as_its_numbers() -> None:
    r = torch.linspace(1.0, 2.0, 128, dtype=torch.float64)[None].bfloat16().double()
    r[0, 3] = torch.nan
    made = Bounded(value=r, rounded=ROUNDOFF["bf16"] * r, variance=(ROUNDOFF["bf16"] * r).square(), shared=True)
    tally = Tally()
    compare(tally, r.bfloat16(), made, r.bfloat16(), dtype="bf16", where="", everyday=False)
    assert tally.ok
