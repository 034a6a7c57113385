"""What a walk is fed: queries that look at one slot alone, whatever the angles of the two halves of a head are."""

from __future__ import annotations

import pytest
import torch

from agentcompile.ir.graph import DType
from agentcompile.validate import DeclaredArithmetic
from agentcompile.validate.inputs import Generator
from agentcompile.validate.walk_inputs import Feed
from tests.kernels.regions_for import region_for


def fed(kind: str, dtype: DType) -> Feed:
    region = region_for(kind, dtype, heads=4, kv_heads=2, head_dim=64, context=64)
    parameters = Generator(region, seed=3).parameters(0)
    return Feed(region, DeclaredArithmetic(), parameters, torch.arange(48)[:, None], seed=3, tokens=1)


def test_the_two_halves_of_a_head_turn_by_different_angles() -> None:
    feed = fed("rope-attention-decode", "fp32")
    rope = next(node for node in feed.region.body.nodes if node.op == "rope")
    for use in rope.inputs[1:]:
        first, second = feed.moving[use.value].chunk(2, dim=-1)
        assert ((first - second).abs() > 1e-3).float().mean() > 0.9


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_quarter_of_the_queries_score_one_slot_above_all_others(dtype: DType) -> None:
    feed = fed("rope-attention-decode", dtype)
    assert feed.attention is not None
    assert feed.queries is not None
    assert feed.zero is not None
    scale = float(str(dict(feed.attention.attrs)["scale"]))
    queries = feed.queries.value[:, 0, :, 0]  # [N, heads, D]
    keys = feed.news[0].value[:, 0, :, 0].repeat_interleave(2, dim=1)  # [N, heads, D]
    scores = torch.einsum("nhd,mhd->nhm", queries, keys) * scale
    past = torch.arange(48)[:, None] >= torch.arange(48)
    best = scores.masked_fill(~past[:, None], -torch.inf).topk(2, dim=-1).values[2:]
    peaked = (best[..., 0] - 24.0).abs() < (0.01 if dtype == "fp32" else 0.4)
    assert 0.15 < peaked.float().mean() < 0.45
    assert (best[peaked][:, 0] > best[peaked][:, 1] + 2.0).float().mean() > 0.9
    assert 0.25 < feed.zero.float().mean() < 0.45
    assert not queries[feed.zero].any()
