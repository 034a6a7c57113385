"""What a config.json says is not supported, or cannot be: refused before anything is built, in one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentcompile.checkpoint import Checkpoint, check_config
from agentcompile.checkpoint.finite import unfit
from agentcompile.checkpoint.numbers import check_context, context_limit
from agentcompile.errors import AgentCompileError, ExitCode
from tests.unit.test_checkpoint import CONFIG, checkpoint, safetensors

WHERE = Path("config.json")
STATE = "no key-value cache"
UNSUPPORTED: dict[str, tuple[dict[str, Any], str]] = {
    "mamba": ({"model_type": "mamba"}, STATE),
    "mamba2": ({"model_type": "mamba2", "state_size": 128}, STATE),
    "lfm2": ({"model_type": "lfm2", "layer_types": ["conv", "full_attention"]}, STATE),
    "falcon-h1": ({"model_type": "falcon_h1"}, STATE),
    "qwen3-next": ({"model_type": "qwen3_next", "layer_types": ["linear_attention", "full_attention"]}, STATE),
    "recurrentgemma": ({"model_type": "recurrent_gemma", "block_types": ["recurrent", "attention"]}, STATE),
    "unknown with a state space": ({"model_type": "gizmo", "mamba_d_state": 16}, STATE),
    "unknown with a convolution": ({"model_type": "gizmo", "conv_L_cache": 3}, STATE),
    "unknown with recurrent layers": ({"model_type": "gizmo", "layer_types": ["delta", "full_attention"]}, STATE),
    "state in the text part": ({"text_config": {"linear_num_value_heads": 4}}, STATE),
    "latent attention": ({"model_type": "deepseek_v2", "kv_lora_rank": 512}, "latent attention"),
    "dynamic rope": ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "dynamic rotary frequencies"),
    "dynamic rope by layer": (
        {"rope_parameters": {"full_attention": {"rope_type": "dynamic", "rope_theta": 1e4}}},
        "rope_parameters.full_attention.rope_type: dynamic",
    ),
    "t5": ({"model_type": "t5"}, "encoder-decoder models"),
    "says encoder-decoder": ({"is_encoder_decoder": True}, "encoder-decoder models"),
    "bert": ({"model_type": "bert"}, "encoder-only models"),
    "bidirectional": ({"use_bidirectional_attention": True}, "in both directions"),
    "vision": ({"vision_config": {"hidden_size": 4}}, "images or sound"),
    "experts in the text part": ({"text_config": {"num_experts": 8}}, "mixture-of-experts"),
    "quantised": ({"quantization_config": {"quant_method": "gptq"}}, r"quantised weights \(gptq\)"),
}


@pytest.mark.parametrize("case", UNSUPPORTED)
def test_what_is_not_supported_is_named_in_one_sentence(case: str) -> None:
    change, words = UNSUPPORTED[case]
    with pytest.raises(AgentCompileError, match=words) as caught:
        check_config(WHERE, {**CONFIG, **change})
    assert caught.value.exit_code is ExitCode.USAGE
    assert caught.value.hint
    assert "\n" not in caught.value.message


def test_layers_that_are_all_attention_are_no_state_whatever_keys_stand_beside_them() -> None:
    check_config(WHERE, {**CONFIG, "layer_types": ["attention"], "mamba_d_state": 16})


NUMBERS: dict[str, tuple[dict[str, Any], str]] = {
    "NaN": ({"rms_norm_eps": float("nan")}, "rms_norm_eps: nan"),
    "infinity anywhere": ({"a": {"b": [1.0, float("inf")]}}, r"a\.b\[1\]: inf"),
    "rope base zero": ({"rope_theta": 0}, "rope_theta: 0"),
    "rope base negative": ({"rope_parameters": {"rope_theta": -1.0}}, r"rope_parameters\.rope_theta: -1.0"),
    "a factor as text": ({"rope_scaling": {"type": "linear", "factor": "2"}}, r"rope_scaling\.factor: '2'"),
    "long factors": ({"rope_scaling": {"long_factor": [1.0, -1.0]}}, r"long_factor\[1\]: -1.0"),
    "an epsilon as text": ({"layer_norm_epsilon": "1e-5"}, "layer_norm_epsilon: '1e-5'"),
    "GPT-2's positions": ({"n_positions": 0}, "n_positions: 0"),
    "a size as text": ({"hidden_size": "64"}, "hidden_size: '64'"),
    "a stop token as text": ({"eos_token_id": [1, "2"]}, r"eos_token_id\[1\]: '2'"),
    "half a character": ({"_name_or_path": "\ud800"}, "_name_or_path"),
}


@pytest.mark.parametrize("case", NUMBERS)
def test_a_number_that_no_decoder_has_is_named_with_its_key(case: str) -> None:
    change, words = NUMBERS[case]
    with pytest.raises(AgentCompileError, match=words) as caught:
        check_config(WHERE, {**CONFIG, **change})
    assert caught.value.exit_code is ExitCode.USAGE
    caught.value.message.encode()


@pytest.mark.parametrize(
    ("config", "limit"),
    [
        ({"max_position_embeddings": 512}, ("max_position_embeddings", 512)),
        ({"n_positions": 1024, "n_ctx": 512}, ("n_ctx", 512)),
        ({"max_sequence_length": 64}, ("max_sequence_length", 64)),
        ({"seq_length": 64}, ("seq_length", 64)),
        ({"text_config": {"max_position_embeddings": 32}}, ("text_config.max_position_embeddings", 32)),
        (
            {
                "max_position_embeddings": 131072,
                "original_max_position_embeddings": 4096,
                "rope_scaling": {"type": "longrope"},
            },
            ("original_max_position_embeddings", 4096),
        ),
        (
            {
                "max_position_embeddings": 131072,
                "rope_parameters": {"rope_type": "yarn", "original_max_position_embeddings": 4096},
            },
            ("max_position_embeddings", 131072),
        ),
        ({}, None),
    ],
)
def test_the_context_is_bounded_by_what_the_model_was_made_for(
    config: dict[str, Any], limit: tuple[str, int] | None
) -> None:
    assert context_limit(config) == limit
    if limit is None:
        check_context(WHERE, config, 1_000_000)
        return
    check_context(WHERE, config, limit[1])
    with pytest.raises(AgentCompileError, match=f"{limit[1] + 1} is more than {limit[0]} {limit[1]}"):
        check_context(WHERE, config, limit[1] + 1)


def test_tensors_with_nan_or_infinity_are_found_and_remembered(tmp_path: Path) -> None:
    bad = {"bf16": b"\x80\x7f", "fp16": b"\x00\xfc", "fp32": b"\x00\x00\xc0\x7f", "fp64": b"\x00" * 6 + b"\xf0\x7f"}
    wide = {"bf16": "BF16", "fp16": "F16", "fp32": "F32", "fp64": "F64"}
    tensors = {name: (wide[name], [3], b"\0" * len(raw) + raw + b"\0" * len(raw)) for name, raw in bad.items()}
    tensors |= {f"good {name}": (wide[name], [2], b"\0" * 2 * len(raw)) for name, raw in bad.items()}
    tensors |= {"whole": ("I32", [1], b"\xff\xff\xff\xff"), "large": ("BF16", [1], b"\x7f\x7f")}
    opened = Checkpoint.open(checkpoint(tmp_path, weights=safetensors(tensors)))
    known: dict[str, str] = {}
    assert unfit(opened, known) == set(bad)
    (key,) = known
    assert json.loads(known[key]) == sorted(bad)
    known[key] = '["remembered"]'
    assert unfit(opened, known) == {"remembered"}
