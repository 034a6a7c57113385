"""What a device does in other ways than the host: two products as one, results turned, the largest of many logits."""

from __future__ import annotations

import pytest
import torch

from agentcompile.attention import tokens_first
from agentcompile.runtime.arena import Arena
from agentcompile.runtime.device_step import captured
from agentcompile.runtime.pairs import _batched, _stepped
from agentcompile.runtime.sampling import Sampling, choose

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("rows", "hidden", "columns"), [(8, 2048, 512), (128, 2048, 512), (500, 1000, 264), (64, 64, 8192)]
)
def test_two_products_in_one_arena_are_two_products(rows: int, hidden: int, columns: int, dtype: torch.dtype) -> None:
    torch.manual_seed(rows)
    weights = Arena(4 * columns * hidden * 2 + 4096, "cuda")
    one, _, other = (weights.take((columns, hidden), dtype).normal_(std=hidden**-0.5) for _ in range(3))
    results = Arena(3 * rows * columns * 2 + 4096, "cuda")
    made, between, second = (results.take((1, rows, columns), dtype).fill_(torch.nan) for _ in range(3))
    x = torch.randn(1, rows, hidden, device="cuda").to(dtype)
    w, y = _stepped(one, other), _stepped(made, second)
    assert w is not None
    assert y is not None

    def both() -> None:
        _batched({"x": x}, "x", w.transpose(1, 2), y, ())

    graph = captured(both)
    made.fill_(torch.nan)
    graph.replay()
    for found, weight in ((made, one), (second, other)):
        expected = x.double() @ weight.double().t()
        assert float((found - expected).norm() / expected.norm()) < 0.01
    assert between.isnan().all()


@pytest.mark.parametrize(("heads", "tokens", "width"), [(32, 128, 64), (16, 3000, 128), (5, 7, 80)])
def test_a_turned_result_is_the_result(heads: int, tokens: int, width: int) -> None:
    made = torch.randn(1, heads, tokens, width, device="cuda", dtype=torch.bfloat16)
    found = tokens_first(made)
    assert torch.equal(found, made)
    assert found.transpose(1, 2).is_contiguous()
    assert tokens_first(found) is found


@pytest.mark.parametrize("vocab", [128256, 151936, 50257])
def test_the_greedy_token_is_the_first_of_the_largest(vocab: int) -> None:
    logits = torch.randn(vocab, device="cuda", dtype=torch.bfloat16)
    for _ in range(20):
        first = int((logits == logits.max()).nonzero()[0])
        assert choose(logits, Sampling(), 0) == first
        logits[first] = -1.0
