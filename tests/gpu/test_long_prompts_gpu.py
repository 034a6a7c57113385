"""Prompts of thousands of tokens on a device: chunks in pieces, attention in two parts behind earlier chunks."""

from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F
from agentcompile.bench.models.presets import materialise

from agentcompile.ops import attention
from agentcompile.options import Options
from agentcompile.planning import chunks
from agentcompile.replay.load import replay_lock
from agentcompile.runtime.model import CompiledModel
from tests.cpu import flows

pytestmark = pytest.mark.gpu

CONTEXT = 8704


@pytest.fixture(scope="module", params=["tiny-qwen3 bf16", "tiny-llama fp16"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> CompiledModel:
    """One whose cache has room for every length; weights as small as these would leave no memory for long chunks."""
    name, dtype = request.param.split()
    home = tmp_path_factory.mktemp(name)
    materialise(name, home / "model", dtype=dtype)
    config = home / "model" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "max_position_embeddings": CONTEXT}))
    lock = flows.write(home, home / "model", CONTEXT, home / "long.lock.toml", target="cuda:0")
    options = Options(model=str(home / "model"), context=CONTEXT, home=str(home), target="cuda:0")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "ROOM", 1000.0)
        return replay_lock(lock, options)


@pytest.mark.parametrize("count", [100, 2048, 2300, 4096, 5000, 8192, 8193, CONTEXT])
def test_a_long_prompt_gives_the_logits_of_its_decode_steps(model: CompiledModel, count: int) -> None:
    ids = [(7 * i * i + 3 * i + 1) % 500 for i in range(count)]
    chunked = model.prefill(ids)
    assert model._open().generator.chunks.capacity == 8192
    stepped = model.logits(ids, [count - 1])[0]
    assert float((chunked - stepped).norm() / stepped.norm()) < 0.05
    assert torch.equal(model.prefill(ids), chunked)


@pytest.mark.parametrize(("heads", "groups", "width"), [(32, 8, 64), (16, 8, 128), (4, 4, 80), (8, 1, 256)])
@pytest.mark.parametrize(("first", "count"), [(1, 128), (128, 128), (2048, 256), (3001, 500)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_chunk_behind_others_attends_as_in_float64(
    heads: int, groups: int, width: int, first: int, count: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(heads * first + width)
    settings = {"device": "cuda", "dtype": dtype}
    q = 2 * torch.randn(1, count, heads, width, **settings).transpose(1, 2)  # type: ignore[arg-type]
    keys, values = (torch.randn(1, groups, 4096, width, **settings) for _ in range(2))  # type: ignore[arg-type]
    keys[:, :, first + count :] = torch.nan  # what is behind the chunk is not read
    values[:, :, first + count :] = torch.nan
    last = first + count - 1
    positions = torch.arange(first, first + count, device="cuda")
    scale = width**-0.5
    found = attention.attention_at(first, last)(q, keys, values, positions, scale=scale)
    k, v = (x[:, :, : last + 1].double().repeat_interleave(heads // groups, 1) for x in (keys, values))
    mask = torch.arange(last + 1, device="cuda") <= positions[:, None]
    expected = F.scaled_dot_product_attention(q.double(), k, v, mask, scale=scale)
    assert float((found.double() - expected).norm() / expected.norm()) < 0.01
    if torch.cuda.get_device_capability() == (9, 0) and width in (64, 128) and first > 1:
        assert attention._cudnn_serves(q, keys[:, :, : last + 1], values[:, :, : last + 1])
