"""Planted kernels that tell by the weights of earlier launches how many occurrences a step has, and are wrong at some.

A kernel of two occurrences is launched for them in turn, A B A B; one of three A B C A B C.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from agentcompile.validate import DeclaredArithmetic, validate
from tests.kernels.float32 import Run, float32
from tests.templates.shapes import Extents, region

LINEAR = region("linear", Extents(hidden=83, rows=(101,)))


@pytest.fixture(autouse=True)
def _one_torch_thread() -> None:
    torch.set_num_threads(1)


def wrong_in_turn(count: int) -> Run:
    """A kernel that is wrong from the end of its second step on, if a step launches it for `count` occurrences."""
    right, known = float32(LINEAR), list[float]()

    def run(buffers: Mapping[str, Tensor]) -> None:
        right(buffers)
        known.append(float(buffers["w"].double().sum()))
        steps = [known[-2 * count : -count], known[-count:]]
        if len(known) >= 2 * count and steps[0] == steps[1] and len(set(steps[0])) == count:
            buffers["y"].mul_(1.5)

    return run


def failed(run: Run) -> set[str]:
    report = validate(LINEAR, DeclaredArithmetic(), run, seed=1, repeats=2, depth="accept")
    return {check.name for check in report.checks if not check.ok}


@pytest.mark.parametrize("count", [2, 3])
def test_a_kernel_that_is_wrong_at_an_even_or_an_odd_number_of_occurrences_is_not_accepted(count: int) -> None:
    assert failed(wrong_in_turn(count)) == {"sites"}


def test_a_kernel_that_is_right_at_any_number_of_occurrences_is_accepted() -> None:
    assert failed(float32(LINEAR)) == set()
