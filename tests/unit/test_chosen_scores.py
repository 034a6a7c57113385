"""Caches with chosen scores: values cancel, and the slots of an edge lie on both of its sides, whatever rounds."""

from __future__ import annotations

import math

import pytest
import torch

from agentcompile.validate.scores import chosen

SCALE, LENGTH, WIDTH = 0.25, 34, 16


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("seed", range(4))
def test_values_at_an_edge_cancel_for_the_lead_and_for_one_that_is_rounded(dtype: torch.dtype, seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    query = torch.randn(1, 2, WIDTH, generator=rng).double()
    keys, values = torch.zeros(2, 1, 1, LENGTH, WIDTH, dtype=dtype)
    chosen(keys, values, query, scale=SCALE, lengths=[LENGTH], how="edges", place=0.5, rng=rng)
    for lead in (query[0, 0], query[0, 0].to(torch.bfloat16).double()):
        scores = keys[0, 0].double() @ lead * SCALE
        weights = torch.softmax(scores, 0)
        made, size = weights @ values[0, 0].double(), weights @ values[0, 0].double().abs()
        assert float((made.abs() / size).max()) < 2e-4, "its own rounding is then 8e-7 of what is summed"
        below = scores.max() - math.log(2.0) / 2.0 - scores[1:]
        near = below[below.abs() < 0.01]
        assert len(near) >= LENGTH // 2 - 2
        assert bool((near > 0).any())
        assert bool((near < 0).any())


def test_a_cache_that_is_too_short_for_an_edge_stays_as_it_is() -> None:
    keys, values = torch.ones(2, 1, 1, 8, WIDTH)
    query, rng = torch.ones(1, 1, WIDTH).double(), torch.Generator().manual_seed(0)
    chosen(keys, values, query, scale=SCALE, lengths=[5], how="edges", place=0.5, rng=rng)
    assert bool((keys == 1).all())
    assert bool((values == 1).all())
