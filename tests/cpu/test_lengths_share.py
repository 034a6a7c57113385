"""A kernel that is made anew for every length of a chunk: what a third of the cases finds at each, and all together."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from torch import Tensor

from agentcompile.ir.region import Region
from agentcompile.validate import DeclaredArithmetic, validate
from tests.kernels.float32 import float32
from tests.templates.shapes import Extents, region

LENGTHS = (8, 16, 32)
"""Each takes another third of the cases."""
Buffers = Mapping[str, Tensor]


def attention(tokens: int) -> Region:
    return region("rope-attention-prefill", Extents(context=300, q_heads=2, kv_heads=1, head_dim=16, tokens=tokens))


def passes(tokens: int, spoil: Callable[[Buffers, Buffers], None]) -> bool:
    """Whether a right kernel passes whose buffers are spoilt after every launch, as they are known before it."""
    made = attention(tokens)
    right = float32(made)

    def run(buffers: Buffers) -> None:
        before = {name: tensor.clone() for name, tensor in buffers.items()}
        right(buffers)
        spoil(before, buffers)

    return validate(made, DeclaredArithmetic(), run, seed=0, repeats=2, depth="length").ok


def _the_first_token_for_the_last(before: Buffers, buffers: Buffers) -> None:
    y = buffers["y"]
    y[..., -1, :] = y[..., 0, :]


def _no_value_is_kept_of_the_last_token(before: Buffers, buffers: Buffers) -> None:
    slot = int(before["positions"].max())
    buffers["v_cache"][:, :, slot] = before["v_cache"][:, :, slot]


def _results_are_held(before: Buffers, buffers: Buffers) -> None:
    buffers["y"].clamp_(-6.0, 6.0)


def _no_result_is_nan(before: Buffers, buffers: Buffers) -> None:
    buffers["y"].nan_to_num_()


def _results_lose_digits(before: Buffers, buffers: Buffers) -> None:
    y = buffers["y"]
    y.copy_((y.double() * (1.0 + 2.0**-5)).to(y.dtype))


@pytest.mark.parametrize("tokens", LENGTHS)
def test_what_is_right_passes(tokens: int) -> None:
    assert passes(tokens, lambda before, buffers: None)


@pytest.mark.parametrize("tokens", LENGTHS)
@pytest.mark.parametrize(
    "spoil", [_the_first_token_for_the_last, _no_value_is_kept_of_the_last_token, _results_lose_digits]
)
def test_what_is_wrong_everywhere_is_found_at_every_length(
    tokens: int, spoil: Callable[[Buffers, Buffers], None]
) -> None:
    assert not passes(tokens, spoil)


@pytest.mark.parametrize("spoil", [_results_are_held, _no_result_is_nan])
def test_what_is_wrong_for_few_inputs_is_found_at_one_of_them(spoil: Callable[[Buffers, Buffers], None]) -> None:
    assert not all(passes(tokens, spoil) for tokens in LENGTHS)
