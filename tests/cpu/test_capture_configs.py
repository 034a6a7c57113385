"""What a config.json says of other things than the model changes no answer; what it says wrongly is named."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from agentcompile.capture import capture
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.options import resolve
from agentcompile.pipeline import compile_model
from agentcompile.runtime import eager
from tests.cpu.test_capture_limits import CONTEXT, edited, written


@pytest.mark.parametrize(
    "change",
    [{"return_dict": False}, {"attn_implementation": "flash_attention_2"}, {"_attn_implementation": "flex_attention"}],
)
def test_how_results_and_attention_are_wanted_changes_neither_capture_nor_reference(
    change: dict[str, Any], tmp_path: Path
) -> None:
    path = edited(written(tmp_path, "LlamaConfig"), **change)
    assert capture(path, context=CONTEXT).info.kv_heads
    model = eager.load(path, torch.float32)
    assert model.config._attn_implementation == "sdpa"
    assert model(torch.tensor([[5, 6]])).logits.shape[1] == 2


def test_the_references_own_dtype_is_that_of_the_weights(tmp_path: Path) -> None:
    path = edited(written(tmp_path, "LlamaConfig"), dtype="float32")
    file = path / "model.safetensors"
    save_file({name: one.bfloat16() for name, one in load_file(file).items()}, file, metadata={"format": "pt"})
    assert capture(path, context=CONTEXT).info.dtype == "bf16"
    assert eager.load(path).dtype is torch.bfloat16


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"dtype": "int8"}, "dtype: 'int8'"),
        ({"torch_dtype": "nonsense"}, "torch_dtype: 'nonsense'"),
        ({"dtype": 5}, "dtype: 5"),
        ({"dtype": ["float32"]}, r"dtype\[0\]: 'float32'"),
        ({"hidden_act": "frobnicate"}, "hidden_act: 'frobnicate'"),
        ({"hidden_act": ""}, "hidden_act: ''"),
    ],
)
def test_a_wrong_name_in_a_config_is_named_with_its_key(change: dict[str, Any], named: str, tmp_path: Path) -> None:
    path = edited(written(tmp_path, "LlamaConfig"), **change)
    with pytest.raises(AgentCompileError, match=named) as caught:
        capture(path, context=CONTEXT)
    assert caught.value.exit_code is ExitCode.USAGE


def test_stops_are_the_classs_own_where_no_file_says_any(tmp_path: Path) -> None:
    path = edited(written(tmp_path, "LlamaConfig", eos_token_id=2), "eos_token_id")
    (path / "generation_config.json").unlink()
    assert capture(path, context=CONTEXT).info.eos == (2,)


@pytest.mark.parametrize("value", ["2", 2.0, True, [2, [3]], {}, [2, "3"]])
def test_a_stop_that_is_no_token_is_refused_in_generation_config_too(value: object, tmp_path: Path) -> None:
    path = written(tmp_path, "LlamaConfig")
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": value}))
    with pytest.raises(AgentCompileError, match=r"generation_config\.json: eos_token_id"):
        capture(path, context=CONTEXT)


def test_code_that_decides_by_content_is_refused_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, "BioGptConfig", max_position_embeddings=64)
    with pytest.raises(AgentCompileError, match="decides by the content of tensors"):
        capture(path, context=CONTEXT)
    assert capsys.readouterr().err == ""


def test_a_norm_after_rotation_reads_a_prompt_in_any_order(tmp_path: Path) -> None:
    """Rotated heads lie as PyTorch made them, not one behind another, and the norm reads them in another shape."""
    path = written(tmp_path / "model", "HunYuanDenseV1Config", head_dim=16)
    lock = tmp_path / "one.lock.toml"
    flags = {"model": str(path), "out": str(lock), "context": CONTEXT, "choose": "pytorch", "target": "cpu"}
    compile_model(replace(resolve(flags).options, home=str(tmp_path / "home")))
    assert lock.exists()
