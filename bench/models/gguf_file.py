"""Conversion of a Qwen3 or Llama checkpoint to GGUF with the same bits: bf16 matrices, fp32 norms, no tokenizer.

It needs the packages `gguf` and `numpy` in the interpreter that has llama.cpp's Python bindings, and none of our code.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    """Return llama.cpp's name for a tensor of a Hugging Face checkpoint.

    Raises:
        KeyError: llama.cpp has no name for it.
    """
    if name in NAMES:
        return NAMES[name]
    layer, _, rest = name.removeprefix("model.layers.").partition(".")
    part, _, kind = rest.rpartition(".")
    return f"blk.{layer}.{LAYER_NAMES[part]}.{kind}"


def write_gguf(model: Path, out: Path) -> None:
    """Write the checkpoint in the directory `model` to the GGUF file `out`.

    Raises:
        ValueError: the architecture is neither, its rotary embedding is scaled, or a tensor is not bf16.
    """
    import gguf
    import numpy as np

    config, rotary = _known(json.loads((model / "config.json").read_text(encoding="utf-8")))
    kind = config["model_type"]
    writer = gguf.GGUFWriter(str(out), kind)
    heads, width = config["num_attention_heads"], config.get("head_dim") or 0
    width = width or config["hidden_size"] // heads
    turned = {} if kind == "qwen3" else {"q_proj": heads, "k_proj": config["num_key_value_heads"]}
    writer.add_name(model.name)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(width)
    writer.add_value_length(width)
    writer.add_rope_dimension_count(width)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(float(rotary.get("rope_theta") or config["rope_theta"]))
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    writer.add_tokenizer_model("none")
    for name, shape, bits in _tensors(model):
        if name == "lm_head.weight" and config["tie_word_embeddings"]:
            continue
        if len(shape) == 1:
            writer.add_tensor(gguf_name(name), (np.frombuffer(bits, "<u2").astype(np.uint32) << 16).view(np.float32))
        else:
            rows = np.frombuffer(bits, dtype=np.uint8).reshape(shape[0], 2 * shape[1])
            if parts := turned.get(name.split(".")[-2]):  # llama.cpp turns neighbours, Hugging Face's model halves
                rows = rows.reshape(parts, 2, -1, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)
            writer.add_tensor(gguf_name(name), rows, raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _known(config: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a configuration and its settings of the rotary embedding, which versions of transformers keep elsewhere.

    Raises:
        ValueError: the architecture is neither Qwen3 nor Llama, or its rotary embedding is scaled.
    """
    if config["model_type"] not in ("qwen3", "llama"):
        raise ValueError(f"{config['model_type']} is neither qwen3 nor llama")
    rotary = {**(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})}
    if rotary.get("rope_type", "default") != "default":
        raise ValueError(f"a rotary embedding of the type {rotary['rope_type']} is not written")
    return config, rotary


def _tensors(model: Path) -> Iterator[tuple[str, list[int], memoryview]]:
    """Yield the name, shape and raw bits of every tensor of a checkpoint.

    Raises:
        ValueError: a tensor is not bf16.
    """
    import numpy as np

    for path in sorted(model.glob("*.safetensors")):
        data = memoryview(np.memmap(path, dtype=np.uint8, mode="r"))  # type: ignore[arg-type]
        length = int.from_bytes(data[:8], "little")
        header = json.loads(bytes(data[8 : 8 + length]))
        for name, tensor in header.items():
            if name == "__metadata__":
                continue
            if tensor["dtype"] != "BF16":
                raise ValueError(f"{path}: {name} is {tensor['dtype']}, not BF16")
            begin, end = (8 + length + offset for offset in tensor["data_offsets"])
            yield name, tensor["shape"], data[begin:end]
