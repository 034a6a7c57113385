"""Models that keep more than keys and values are told by what they do; names and lengths of other versions are read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from agentcompile.capture import capture
from agentcompile.capture.cached import load_model
from agentcompile.checkpoint.numbers import context_limit
from agentcompile.errors import AgentCompileError
from agentcompile.system.store import Store
from tests.models import tiny

pytestmark = pytest.mark.usefixtures("captured_anew")

CONTEXT = 48


def written(directory: Path, kind: str, **config: Any) -> Path:
    """A checkpoint of any architecture of transformers, one layer, seeded."""
    import transformers

    parsed = getattr(transformers, kind)(**{**tiny.BASE, "num_hidden_layers": 1, **config})
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(parsed, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.copy_(torch.randn(parameter.shape) * parameter.shape[-1] ** -0.5)
    model.save_pretrained(directory)
    return directory


def edited(path: Path, *drop: str, **change: Any) -> Path:
    config = json.loads((path / "config.json").read_text())
    kept = {key: value for key, value in config.items() if key not in drop}
    (path / "config.json").write_text(json.dumps({**kept, **change}))
    return path


def renamed(path: Path, old: str, new: str) -> Path:
    file = path / "model.safetensors"
    save_file({k.replace(old, new): v for k, v in load_file(file).items()}, file, metadata={"format": "pt"})
    return path


def assert_right(path: Path) -> None:
    import transformers

    captured = capture(path, context=CONTEXT)
    tokens = torch.randint(3, 90, (24,), generator=torch.Generator().manual_seed(3))
    got = tiny.Stepper(captured).logits(tokens, chunks=(11,))
    model = transformers.AutoModelForCausalLM.from_pretrained(path, attn_implementation="eager").eval()
    with torch.no_grad():
        want = model(tokens[None], use_cache=False).logits[0]
    assert max(float((logits - want[at]).abs().max()) for at, logits in got.items()) < 2e-5


def test_a_renamed_head_is_read_whichever_version_saved_it(tmp_path: Path) -> None:
    path = written(tmp_path, "GPTNeoXConfig")
    assert "embed_out.weight" in load_file(path / "model.safetensors")
    assert_right(path)
    assert_right(renamed(path, "embed_out.", "lm_head."))


def test_names_without_the_models_prefix_are_read(tmp_path: Path) -> None:
    path = written(tmp_path, "GPT2Config", max_position_embeddings=64)
    assert_right(renamed(path, "transformer.", ""))


def test_heads_are_the_models_own_whatever_its_config_calls_them(tmp_path: Path) -> None:
    path = written(tmp_path, "FalconConfig", new_decoder_architecture=False, multi_query=True)
    assert capture(path, context=CONTEXT).info.kv_heads == 1


def test_long_rope_is_right_within_its_first_factors_and_refused_beyond(tmp_path: Path) -> None:
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "short_factor": [1.0 + 0.1 * i for i in range(8)],
        "long_factor": [2.0 + i for i in range(8)],
        "original_max_position_embeddings": 64,
    }
    path = written(tmp_path, "Phi3Config", original_max_position_embeddings=64, rope_parameters=rope)
    assert_right(path)
    with pytest.raises(AgentCompileError, match=r"65 is more than .*original_max_position_embeddings 64"):
        capture(path, context=65)


def test_a_recurrent_state_is_told_by_the_model_where_its_config_is_silent(tmp_path: Path) -> None:
    path = written(tmp_path, "RecurrentGemmaConfig", block_types=["recurrent"], lru_width=64)
    silent = edited(path, "block_types", "_block_types", "lru_width")
    with pytest.raises(AgentCompileError, match="no key-value cache"):
        capture(silent, context=CONTEXT)


def test_a_model_without_a_cache_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, "OpenAIGPTConfig", max_position_embeddings=64)
    with pytest.raises(AgentCompileError, match="takes no key-value cache"):
        capture(path, context=CONTEXT)


def test_positions_that_the_config_leaves_to_its_class_bound_the_context(tmp_path: Path) -> None:
    path = edited(written(tmp_path, "GPT2Config", max_position_embeddings=1024), "n_positions", "n_ctx")
    assert context_limit(json.loads((path / "config.json").read_text())) is None
    with pytest.raises(AgentCompileError, match="1025 is more than max_position_embeddings 1024"):
        capture(path, context=1025)


def test_an_unasked_context_is_the_models_own_where_that_is_smaller(tmp_path: Path) -> None:
    path = written(tmp_path / "model", "GPT2Config", max_position_embeddings=1024)
    assert "n_positions" in (path / "config.json").read_text()
    for silent in (path, edited(path, "n_positions")):
        model = load_model(silent, 0, Store(tmp_path / "store"), tmp_path / "hashes.json")
        assert model.captured.info.context == 1024


def test_a_weight_that_is_no_number_is_refused_by_its_name_also_when_it_was_seen_before(tmp_path: Path) -> None:
    path = written(tmp_path / "model", "LlamaConfig")
    tensors = load_file(path / "model.safetensors")
    tensors["model.norm.weight"][3] = torch.nan
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    for _ in range(2):
        with pytest.raises(AgentCompileError, match=r"model\.norm\.weight: holds NaN or infinity"):
            load_model(path, CONTEXT, Store(tmp_path / "store"), tmp_path / "hashes.json")


@pytest.mark.parametrize("ending", [".json", ".safetensors"])
def test_a_damaged_capture_in_the_store_is_made_again(tmp_path: Path, ending: str) -> None:
    path, store = written(tmp_path / "model", "LlamaConfig"), tmp_path / "store"
    made = load_model(path, CONTEXT, Store(store), tmp_path / "hashes.json")
    (kept,) = [one for one in store.rglob(f"*{ending}") if one.stat().st_size > 0]
    kept.write_bytes(b"\xff\xff\xff\xff\xff\xff\xff\x7f" + kept.read_bytes()[:40])
    again = load_model(path, CONTEXT, Store(store), tmp_path / "hashes.json")
    assert again.captured.decode == made.captured.decode
    assert kept.stat().st_size > 100
