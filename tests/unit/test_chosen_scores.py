"""Caches with chosen scores: values cancel, and the slots of an edge lie on both of its sides, whatever rounds."""

from __future__ import annotations

import math

import pytest
import torch

from agentcompile.validate.scores import chosen, met_alike

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


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("heads", "kv_heads", "width"), [(4, 2, 16), (9, 3, 64), (16, 2, 128), (3, 3, 2)])
def test_a_towering_key_towers_for_every_query_of_its_group_however_it_is_rounded(
    heads: int, kv_heads: int, width: int, seed: int
) -> None:
    queries = torch.randn(2, heads, width, generator=torch.Generator().manual_seed(seed)).double()
    keys = met_alike(queries, kv_heads, 1e5).to(torch.bfloat16).double().repeat_interleave(heads // kv_heads, dim=1)
    rounded = (queries.to(torch.bfloat16).double() * keys).sum(-1)
    assert float((queries * keys).sum(-1).sub(1e5).abs().max()) < 1.5e4
    assert float(rounded.min()) > 5e4


def test_queries_that_no_key_meets_alike_have_none() -> None:
    queries = torch.tensor([[[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [1.0, 0.001]]]).double()
    assert bool((met_alike(queries, 2, 100.0)[0, 0] == 0).all()), "one against the other"
    assert bool((met_alike(queries.roll(1, 1), 2, 100.0)[0, 0] != 0).any())
    near = torch.tensor([[[1.0, 0.0], [-1.0, 0.004]]]).double()
    assert bool((met_alike(near, 1, 100.0) == 0).all()), "so long that rounding decides"
