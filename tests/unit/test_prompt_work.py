"""The roofline of a prompt: operations and bytes counted from a checkpoint's tensors, the longer of their two times."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from agentcompile.ir.target import Ceiling
from bench.figures.prompt_work import work_of

SAMPLE = Path(__file__).parents[2] / "bench" / "models" / "sample"


def test_operations_of_a_prompt_are_the_products_that_pytorch_counts_and_causal_attention() -> None:
    """PyTorch does not count a CPU's attention: each token's, to itself and those before it, is added here.

    Its products of batches are not work of the weights: some versions multiply the tables of positions so.
    """
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(str(SAMPLE), dtype=torch.float32)
    tokens, config, work = 24, model.config, work_of(SAMPLE)
    assert work is not None
    with FlopCounterMode(display=False) as counter, torch.inference_mode():
        model(torch.ones(1, tokens, dtype=torch.int64), use_cache=False, logits_to_keep=1)
    width = config.num_hidden_layers * config.num_attention_heads * config.head_dim
    attention = sum(4 * (before + 1) * width for before in range(tokens))
    assert work.flops(tokens) == counter.get_flop_counts()["Global"][torch.ops.aten.mm] + attention


@pytest.mark.parametrize(
    ("named", "windows"),
    [
        ({"sliding_window": 5}, (5, 5, 5, 5)),
        ({"sliding_window": None}, (0, 0, 0, 0)),
        ({"sliding_window": 5, "use_sliding_window": False}, (0, 0, 0, 0)),
        ({"sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"] * 2}, (5, 0, 5, 0)),
        ({"sliding_window": 5, "sliding_window_pattern": 2}, (5, 0, 5, 0)),
    ],
)
@pytest.mark.parametrize("tokens", [1, 4, 5, 6, 24])
def test_a_window_bounds_what_a_token_sees(
    named: dict[str, Any], windows: tuple[int, ...], tokens: int, tmp_path: Path
) -> None:
    from safetensors.torch import save_file

    given = {"num_attention_heads": 2, "hidden_size": 8, "vocab_size": 16, "num_hidden_layers": 4}
    (tmp_path / "config.json").write_text(json.dumps(given | named), encoding="utf-8")
    save_file({"model.layers.0.weight": torch.zeros(16, 8)}, tmp_path / "model.safetensors")
    work = work_of(tmp_path)
    assert work is not None
    pairs = sum(min(at + 1, window or tokens) for window in windows for at in range(tokens))
    assert work.flops(tokens) == 2 * tokens * 16 * 8 + 2 * 16 * 8 + 4 * 8 * pairs


@pytest.mark.parametrize(("flops_per_s", "bytes_per_s", "binds"), [(1e9, 1e15, "flops"), (1e15, 1e6, "bytes")])
def test_the_longer_time_counts(flops_per_s: float, bytes_per_s: float, binds: str) -> None:
    work = work_of(SAMPLE)
    assert work is not None
    ceiling = Ceiling(dram_bytes_per_s=bytes_per_s, cache_bytes_per_s=1e15, flops_per_s=flops_per_s)
    expected = work.flops(9) / flops_per_s if binds == "flops" else work.weight_bytes / bytes_per_s
    assert work.floor_s(9, ceiling) == expected


def test_a_checkpoint_whose_names_say_nothing_has_no_roofline(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    given = {"num_attention_heads": 2, "hidden_size": 8, "vocab_size": 16, "num_hidden_layers": 1}
    (tmp_path / "config.json").write_text(json.dumps(given), encoding="utf-8")
    save_file({"model.embed_tokens.weight": torch.zeros(16, 8)}, tmp_path / "model.safetensors")
    assert work_of(tmp_path) is None
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    assert work_of(tmp_path) is None
