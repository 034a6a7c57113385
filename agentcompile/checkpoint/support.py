"""Detection of models that are not supported, from config.json alone, before anything is built or read.

What a config does not tell (state that a model's code keeps by itself) is found when the model is built and traced.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from agentcompile.errors import AgentCompileError

ATTENTION = ("full_attention", "sliding_attention", "attention", "global", "local", "global_attention")
"""Entries of a config's list of layers that keep only keys and values as state."""
LAYER_LISTS = ("layer_types", "layers_block_type", "block_types", "_block_types", "attention_types", "layer_kinds")
"""Keys under which configs list the kind of each layer."""
RECURRENT = (
    *("mamba", "mamba2", "falcon_mamba", "codestral_mamba", "rwkv", "rwkv5", "rwkv6", "rwkv7", "xlstm", "retnet"),
    *("recurrent_gemma", "jamba", "zamba", "zamba2", "bamba", "falcon_h1", "nemotron_h", "lfm2", "lfm2_moe"),
    *("qwen3_next", "qwen3_5", "qwen3_5_moe", "olmo_hybrid", "kimi_linear", "minimax", "gated_deltanet", "hgrn"),
)
"""Architectures all of whose checkpoints keep a recurrent or convolution state; others are recognised by their keys."""
STATE_KEYS = ("mamba_", "ssm_", "lru_", "conv_l_", "linear_conv_", "linear_num_", "rwkv", "time_step_", "gdn_")
"""Prefixes of keys, in lower case, that only layers with a recurrent or convolution state have."""
STATE_NAMES = ("state_size", "conv_kernel", "conv_kernel_size", "hybrid_override_pattern", "attn_layer_period", "wkv")
"""Whole keys that only layers with a recurrent or convolution state have."""
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "n_experts", "num_moe_experts")
ENCODER_DECODERS = (
    *("t5", "mt5", "umt5", "longt5", "t5gemma", "t5gemma2", "switch_transformers", "encoder-decoder", "led", "fsmt"),
    *("m2m_100", "nllb-moe", "pegasus_x", "whisper", "speech_to_text", "seamless_m4t", "seamless_m4t_v2", "bart"),
    *("mbart", "pegasus", "marian", "blenderbot", "blenderbot-small", "bigbird_pegasus", "mvp", "plbart"),
    *("prophetnet", "trocr", "vision-encoder-decoder", "speech-encoder-decoder"),
)
ENCODERS = (
    *("albert", "bert", "big_bird", "camembert", "convbert", "data2vec-text", "deberta", "deberta-v2", "distilbert"),
    *("electra", "ernie", "esm", "eurobert", "flaubert", "fnet", "funnel", "ibert", "layoutlm", "longformer", "luke"),
    *("megatron-bert", "mobilebert", "modernbert", "mpnet", "mra", "nomic_bert", "nystromformer", "rembert"),
    *("roberta", "roberta-prelayernorm", "roc_bert", "roformer", "squeezebert", "xlm-roberta", "xlm-roberta-xl"),
    *("xmod", "xlm", "xlnet", "yoso", "bert-generation"),
)
"""Architectures that read a text in both directions unless their config sets `is_decoder`."""
OTHER_SENSES = ("vision_config", "audio_config", "vision_tower", "speech_config", "image_size", "num_mel_bins")
"""Keys of models that take or produce images or sound."""


def refuse_unsupported(path: Path, config: Mapping[str, Any]) -> None:
    """Refuse a model of a kind that is not supported; `path` is that of its config.

    Raises:
        AgentCompileError: the first reason why it is not supported (usage).
    """
    kind = config["model_type"]
    for key, why, hint in _reasons(kind, config):
        value = kind if key == "model_type" else _said(config, key)
        raise AgentCompileError(f"{path}: {key}: {value}: {why}", hint=hint)


def _reasons(kind: str, config: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    decoder = "use a decoder-only transformer, such as Llama, Qwen3 or Mistral"
    for key in ("quantization_config", "compression_config"):
        if config.get(key):
            method = config[key].get("quant_method", "?") if isinstance(config[key], dict) else "?"
            why = f"quantised weights ({method}) are not supported"
            yield key, why, "use the unquantised checkpoint (bf16, fp16 or fp32)"
    if config.get("is_encoder_decoder") is True:
        yield "is_encoder_decoder", "encoder-decoder models are not supported", decoder
    if kind in ENCODER_DECODERS:
        yield "model_type", "encoder-decoder models are not supported", decoder
    if kind in ENCODERS and config.get("is_decoder") is not True:
        yield "model_type", "encoder-only models, which read a text in both directions, are not supported", decoder
    if config.get("use_bidirectional_attention") not in (None, False) or config.get("is_causal") is False:
        key = "is_causal" if config.get("is_causal") is False else "use_bidirectional_attention"
        yield key, "models that read a text in both directions are not supported", decoder
    for key in OTHER_SENSES:
        if config.get(key):
            yield key, "models of images or sound are not supported", "use the checkpoint of a text-only decoder"
    yield from _states(kind, config)
    for table, inner in _tables(config):
        if isinstance(inner.get("kv_lora_rank"), int) and inner["kv_lora_rank"] > 0:
            why = "multi-head latent attention (MLA), which caches a compressed state, is not supported"
            yield f"{table}kv_lora_rank", why, "use a model with multi-head, grouped-query or multi-query attention"
        for key in EXPERTS:
            if isinstance(inner.get(key), int) and inner[key] > 1:
                yield f"{table}{key}", "mixture-of-experts models are not supported", "use a dense model"
        for key, name in _rope_types(table, inner):
            if "dynamic" in name:
                why = "dynamic rotary frequencies, which change while a sequence grows, are not supported"
                yield key, why, "use rope_type default, linear, yarn or llama3 if the weights were trained for it"


def _states(kind: str, config: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield the reasons to refuse a recurrent or convolution state.

    It is recognised by the list of layers where there is one, else by the architecture or by keys that only it has.
    """
    hint = "use a model all of whose layers are attention, such as Llama, Qwen3 or Mistral"
    listed = False
    for table, inner in _tables(config):
        for key in LAYER_LISTS:
            kinds = inner.get(key)
            if not isinstance(kinds, list) or not kinds or not all(isinstance(one, str) for one in kinds):
                continue
            listed = True
            for other in (one for one in kinds if one not in ATTENTION):
                why = f"layers of the kind {other!r} keep a state that is no key-value cache, which is not supported"
                yield f"{table}{key}", why, hint
    why = "a recurrent or convolution state, which is no key-value cache, is not supported"
    if kind in RECURRENT:
        yield "model_type", why, hint
    for table, inner in () if listed else _tables(config):
        for key, value in inner.items():
            name = key.lower()
            if value and (name.startswith(STATE_KEYS) or name in STATE_NAMES):
                yield f"{table}{key}", why, hint


def _tables(config: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the config and the tables in it that describe parts of the model, each with the prefix of its keys."""
    yield "", config
    for key, value in config.items():
        if isinstance(value, dict) and key.endswith("_config"):
            yield f"{key}.", value


def _rope_types(table: str, config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the key and the name of each rotary scaling type, whether given once or for each kind of layer."""
    for key in ("rope_scaling", "rope_parameters"):
        value = config.get(key)
        for name, inner in (("", value), *(value.items() if isinstance(value, dict) else ())):
            found = (inner.get("rope_type") or inner.get("type")) if isinstance(inner, dict) else None
            if isinstance(found, str):
                yield ".".join(part for part in (f"{table}{key}", name, "rope_type") if part), found


def _said(config: Mapping[str, Any], key: str) -> str:
    """Return the value at a dotted key as text, cut short where it is long."""
    value: Any = config
    for part in key.split("."):
        value = value.get(part, value.get("type")) if isinstance(value, Mapping) else None
    text = str(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
