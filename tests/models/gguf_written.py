"""GGUF files of tiny models, written as llama.cpp's converter writes them, and the weights that each type keeps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

KINDS = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_K", "Q6_K")
HIDDEN, WIDE, VOCAB, LAYERS = 256, 512, 320, 2
"""Rows of every matrix are whole blocks of 256 values, which the types that end in K need."""
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.qkv_proj": "attn_qkv",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A tiny architecture: how its config is made, and what GGUF calls it."""

    name: str
    heads: int
    kv_heads: int
    head_dim: int
    more: Mapping[str, Any]

    def model(self, seed: int = 0) -> Any:
        """The architecture with random weights in float32; norms and biases are not what they start from."""
        from transformers import AutoConfig, AutoModelForCausalLM

        common = {
            "vocab_size": VOCAB,
            "hidden_size": HIDDEN,
            "intermediate_size": WIDE,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "max_position_embeddings": 64,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": 0,
        }
        if self.name != "phi3":
            common["head_dim"] = self.head_dim
        config: Any = AutoConfig.for_model(self.name, **{**common, **self.more})
        torch.manual_seed(seed)
        model: Any = AutoModelForCausalLM.from_config(config)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if weight.ndim == 1:
                    weight.add_(0.1 * torch.randn_like(weight))
                elif "embed" not in name:
                    weight.mul_(4)  # attention that looks at some places more than at others
        return model.eval()


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 8192, "rope_theta": 500000.0}
SHAPES = {
    "llama": Shape(
        name="llama",
        heads=4,
        kv_heads=2,
        head_dim=64,
        more={"rope_parameters": LLAMA3, "max_position_embeddings": 16384},
    ),
    "qwen3": Shape(name="qwen3", heads=8, kv_heads=2, head_dim=64, more={"tie_word_embeddings": True}),
    "qwen2": Shape(name="qwen2", heads=4, kv_heads=1, head_dim=64, more={"rms_norm_eps": 1e-5}),
    "phi3": Shape(name="phi3", heads=4, kv_heads=2, head_dim=64, more={"sliding_window": 8}),
}


def blocks(values: np.ndarray, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the bytes of [rows, columns] in a type of GGUF, and the float32 values that they stand for."""
    if kind in PACKED:
        return PACKED[kind](values)
    raw = gguf.quantize(values, gguf.GGMLQuantizationType[kind])
    if kind == "F32":
        return raw, values
    if kind == "F16":
        return raw, values.astype(np.float16).astype(np.float32)
    if kind == "BF16":
        return raw, torch.from_numpy(values).bfloat16().float().numpy()
    return raw, gguf.dequantize(raw, gguf.GGMLQuantizationType[kind])


def _steps(values: np.ndarray, group: int, most: int, wide: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scales of blocks of 256 as fp16, whole scales of their groups, and whole values: `most` and `wide` are bounds."""
    cut = values.reshape(-1, 256 // group, group)
    peak = np.abs(cut).max(axis=2)
    d = (peak.max(axis=1, keepdims=True) / most / wide).astype(np.float16)
    unit = np.maximum(d.astype(np.float32), 1e-9)
    scale = np.clip(np.ceil(peak / most / unit), 1, wide)
    whole = np.clip(np.round(cut / (unit * scale)[..., None]), -most - 1, most)
    return d, scale.astype(np.int32), whole.astype(np.int32)


def _q4_k(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Eight groups of 32 four-bit values; the minimum of a group is eight steps below zero."""
    d, scale, whole = _steps(values, 32, 7, 63)
    dmin = (8 * d.astype(np.float32)).astype(np.float16)
    low, high = scale[:, :4], scale[:, 4:]
    six = np.concatenate([low | (high >> 4) << 6, low | (high >> 4) << 6, (high & 15) | (high & 15) << 4], axis=1)
    nibbles = (whole + 8).reshape(-1, 4, 2, 32)
    packed = (nibbles[:, :, 0] | nibbles[:, :, 1] << 4).reshape(-1, 128)
    raw = np.concatenate([d.view(np.uint8), dmin.view(np.uint8), six.astype(np.uint8), packed.astype(np.uint8)], axis=1)
    return _rows(raw, values), (d.astype(np.float32)[..., None] * scale[..., None] * whole).reshape(values.shape)


def _q6_k(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sixteen groups of 16 six-bit values: four bits in one plane, two in another."""
    d, scale, whole = _steps(values, 16, 31, 127)
    six = (whole + 32).reshape(-1, 2, 4, 32)
    low = np.concatenate(
        [six[:, :, 0] & 15 | (six[:, :, 2] & 15) << 4, six[:, :, 1] & 15 | (six[:, :, 3] & 15) << 4], 2
    )
    high = sum((six[:, :, k] >> 4) << 2 * k for k in range(4))
    parts = [low.reshape(-1, 128).astype(np.uint8), np.asarray(high).reshape(-1, 64).astype(np.uint8)]
    raw = np.concatenate([*parts, scale.astype(np.int8).view(np.uint8), d.view(np.uint8)], axis=1)
    return _rows(raw, values), (d.astype(np.float32)[..., None] * scale[..., None] * whole).reshape(values.shape)


def _rows(raw: np.ndarray, values: np.ndarray) -> np.ndarray:
    return raw.reshape(values.shape[0], -1)


PACKED: Mapping[str, Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]] = {"Q4_K": _q4_k, "Q6_K": _q6_k}
"""Types that the package reads and does not write."""


def interleaved(rows: np.ndarray, heads: int) -> np.ndarray:
    """Reorder rows of a query or key projection from Hugging Face's halves to llama.cpp's pairs."""
    return rows.reshape(heads, 2, -1, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def gguf_name(name: str) -> str:
    """llama.cpp's name of a parameter of Hugging Face's model."""
    stem, _, kind = name.rpartition(".")
    if stem in NAMES:
        return f"{NAMES[stem]}.{kind}"
    layer, _, part = stem.removeprefix("model.layers.").partition(".")
    return f"blk.{layer}.{NAMES[part]}.{kind}"


def write(
    path: Path,
    shape: Shape,
    model: Any,
    kind: str = "F32",
    *,
    architecture: str = "",
    each: int = 0,
    text: Callable[[Any], None] = lambda _: None,
    change: Callable[[Any], None] = lambda _: None,
) -> dict[str, torch.Tensor]:
    """Write a model to a GGUF file, matrices in `kind`; return the float32 weights that the file stands for.

    `text` adds a tokenizer to the writer, `change` whatever else. With `each`, the model is split into parts of that
    many tensors after a first part that has none.
    """
    config = model.config
    writer: Any = gguf.GGUFWriter(
        str(path), architecture or shape.name, split_max_tensors=each, small_first_shard=each > 0
    )
    writer.add_name("tiny")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    rope = config.rope_parameters
    writer.add_rope_freq_base(rope["rope_theta"])
    if shape.name in ("qwen3", "llama"):
        writer.add_key_length(shape.head_dim)
        writer.add_value_length(shape.head_dim)
    if shape.name in ("llama", "phi3"):
        writer.add_rope_dimension_count(shape.head_dim)
    if shape.name == "phi3":
        writer.add_sliding_window(config.sliding_window)
    if rope["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_table(rope, shape.head_dim))
    text(writer)
    change(writer)
    kept: dict[str, torch.Tensor] = {}
    for name, weight in model.named_parameters():
        values = weight.detach().float().numpy()
        if shape.name == "llama" and ("q_proj" in name or "k_proj" in name):
            values = interleaved(values, shape.heads if "q_proj" in name else shape.kv_heads)
        if values.ndim == 1:
            writer.add_tensor(gguf_name(name), values)
            kept[name] = weight.detach().clone()
            continue
        raw, known = blocks(np.ascontiguousarray(values), kind)
        dtype = None if raw.dtype != np.uint8 else gguf.GGMLQuantizationType[kind]
        writer.add_tensor(gguf_name(name), raw, raw_dtype=dtype)
        back = torch.from_numpy(np.ascontiguousarray(known))
        if shape.name == "llama" and ("q_proj" in name or "k_proj" in name):
            heads = shape.heads if "q_proj" in name else shape.kv_heads
            back = back.reshape(heads, -1, 2, back.shape[1]).transpose(1, 2).reshape(back.shape)
        kept[name] = back
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return kept


def llama3_table(rope: Mapping[str, Any], head_dim: int) -> np.ndarray:
    """The factors of Llama 3's rotary frequencies as llama.cpp's converter computes them: [head_dim / 2]."""
    length, factors = rope["original_max_position_embeddings"], []
    for at in range(0, head_dim, 2):
        wavelength = 2 * np.pi * rope["rope_theta"] ** (at / head_dim)
        if wavelength < length / rope["high_freq_factor"]:
            factors.append(1.0)
        elif wavelength > length / rope["low_freq_factor"]:
            factors.append(rope["factor"])
        else:
            low, high = rope["low_freq_factor"], rope["high_freq_factor"]
            smooth = (length / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(factors, dtype=np.float32)
