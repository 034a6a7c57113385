"""The bound of outputs of timed launches: what rounding of queries and keys makes passes, what skips work does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from agentcompile.worker.outputs import Witness
from agentcompile.worker.protocol import WrongOutput

RIGHT = torch.randn(64, 64, generator=torch.Generator().manual_seed(3))
OTHER = torch.randn(64, 64, generator=torch.Generator().manual_seed(4))


def held(y: Tensor) -> None:
    witness: Any = object.__new__(Witness)
    witness._index = 0
    witness._bounded("y", y, RIGHT, "here")


def off(share: float, every: int = 1) -> Tensor:
    """Every so many elements are off by a share of their row's root mean square."""
    y = RIGHT.clone()
    y[:, ::every] += share * y.square().mean(-1, keepdim=True).sqrt()
    return y


def row_of_another() -> Tensor:
    y = RIGHT.clone()
    y[41] = OTHER[41]
    return y


def stale_element() -> Tensor:
    y = RIGHT.clone()
    y[7, 9] += 0.8 * y[7].square().mean().sqrt()
    return y


@pytest.mark.parametrize("share", [0.07, 0.13])
def test_a_row_that_is_off_by_rounding_passes(share: float) -> None:
    held(off(share))


def test_a_few_elements_are_off_by_more_in_a_right_kernel() -> None:
    held(off(0.3, every=32))


@pytest.mark.parametrize(
    "wrong", [row_of_another, stale_element, lambda: off(0.2), lambda: RIGHT * 1.2, lambda: 0 * RIGHT]
)
def test_what_skips_work_is_seen(wrong: Callable[[], Tensor]) -> None:
    with pytest.raises(WrongOutput):
        held(wrong())


def test_a_number_that_is_none_is_seen() -> None:
    y = RIGHT.clone()
    y[0, 0] = torch.nan
    with pytest.raises(WrongOutput):
        held(y)
