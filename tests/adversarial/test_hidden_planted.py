"""Planted kernels of decode steps that are wrong for few inputs, and there only at some lengths of a cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor

from agentcompile.ir.region import Region
from agentcompile.validate import DeclaredArithmetic, validate
from tests.kernels.float32 import float32
from tests.templates.shapes import Extents, region

LONG = Extents(q_heads=2, kv_heads=1, head_dim=64, context=2048)
"""Two heads, of which half are zero in a walk, and more lengths than it visits."""
Attended = Mapping[str, Tensor]


@pytest.fixture(autouse=True)
def _one_torch_thread() -> None:
    torch.set_num_threads(1)


def _length(buffers: Attended) -> int:
    return int(buffers["positions"].max()) + 1


def _scores(buffers: Attended) -> Tensor:
    """The scores [heads, length] of what lies in the caches, where a right kernel has appended."""
    n, (q, cos, sin) = _length(buffers), (buffers[name].float().view(-1, 64) for name in ("q", "cos", "sin"))
    turned = q * cos + torch.cat((-q[:, 32:], q[:, :32]), dim=1) * sin
    return turned @ buffers["k_cache"][0, 0, :n].float().T * 64**-0.5


def _weighed(scores: Tensor, buffers: Attended) -> None:
    values = buffers["v_cache"][0, 0, : _length(buffers)].float()
    buffers["y"].copy_((scores.softmax(-1) @ values).view(buffers["y"].shape))


def _middle(buffers: Attended) -> bool:
    return 70 <= _length(buffers) <= 600


def _lost_below(buffers: Attended) -> None:
    if _middle(buffers):
        buffers["y"].view(2, 64)[_scores(buffers).amax(1) < -80.0] = torch.nan


def _lost_above(buffers: Attended) -> None:
    if _middle(buffers):
        buffers["y"].view(2, 64)[_scores(buffers).amax(1) > 80.0] = torch.nan


def _held(buffers: Attended) -> None:
    if _middle(buffers):
        buffers["y"].clamp_(-500.0, 500.0)


def _old_held(buffers: Attended) -> None:
    values = buffers["v_cache"][0, 0, : _length(buffers) - 1]
    if bool((values.abs() > 3000.0).any()):
        before = values.clone()
        values.clamp_(-3000.0, 3000.0)
        _weighed(_scores(buffers), buffers)
        values.copy_(before)


def _neighbours_key(buffers: Attended) -> None:
    n = _length(buffers)
    if n > 100 and n % 64 == 37:
        scores = _scores(buffers)
        scores[:, n // 3] = scores[:, n // 3 - 1]
        _weighed(scores, buffers)


def _key_once(buffers: Attended) -> None:
    n = _length(buffers)
    if n == 1372:
        buffers["k_cache"][0, 0, n - 1, 63] += 1.0


WRONG: dict[str, Callable[[Attended], None]] = {
    "the largest score is taken for zero or more": _lost_below,
    "no largest score is subtracted": _lost_above,
    "results are held": _held,
    "old values are held": _old_held,
    "a key is its neighbour's": _neighbours_key,
    "one key is stored wrong": _key_once,
}


def failed(made: Region, spoil: Callable[[Attended], None], seed: int) -> set[str]:
    """The checks that a kernel fails that is right and then spoiled."""
    right = float32(made)

    def run(buffers: Attended) -> None:
        right(buffers)
        spoil(buffers)

    report = validate(made, DeclaredArithmetic(), run, seed=seed, repeats=2, depth="accept")
    return {check.name for check in report.checks if not check.ok}


@pytest.mark.parametrize("fault", WRONG)
def test_what_is_wrong_at_some_lengths_for_some_inputs_is_not_accepted(fault: str) -> None:
    assert failed(region("rope-attention-decode", LONG), WRONG[fault], 1)


@pytest.mark.parametrize("kind", ["rope-attention-decode", "qknorm-rope-attention-decode"])
def test_a_right_kernel_is_accepted(kind: str) -> None:
    assert failed(region(kind, LONG), lambda _: None, 1) == set()


@pytest.mark.parametrize("longer_than", [2048, 1000])
def test_ranks_that_wait_for_another_at_some_lengths_are_seen(longer_than: int) -> None:
    made = region("rope-attention-decode", LONG)
    right = float32(made)

    def serial(buffers: Attended, backwards: bool) -> None:
        right(buffers)
        if backwards and _length(buffers) > longer_than:
            buffers["y"].fill_(torch.nan)

    report = validate(made, DeclaredArithmetic(), right, seed=1, repeats=2, depth="accept", serial=serial)
    assert report.ok is (longer_than == 2048)
