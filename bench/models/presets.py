"""Presets: published model shapes with seeded random weights, written on demand.

In: a preset's name, a dtype, a seed. Out: a checkpoint directory in Hugging Face form (`config.json`,
`generation_config.json`, safetensors), which appears whole or not at all. Invariant: the same name, dtype, seed, layers
and shard size give the same bytes on every machine, because `random.Random` picks each value from a table of normal
quantiles and no vectorised transcendental function takes part. At most one chunk of one tensor is in memory.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import math
import random
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import NormalDist
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from agentcompile.ir.graph import ITEM_BYTES

if TYPE_CHECKING:
    import torch

Dtype = Literal["bf16", "fp16", "fp32"]

STD = 0.02  # the published initializer_range of every preset
NORM_NOISE_STD = 0.05  # norm weights are 1 + noise, so that a dropped norm weight shows
QUANTILES = 1 << 16  # one value per 16-bit draw
CHUNK_ELEMENTS = 1 << 22
SHARD_BYTES = 2_000_000_000
FORMAT_VERSION = 1  # raise it when the bytes of any preset change
RECEIPT = "preset.json"

_SAFETENSORS_DTYPE: Mapping[Dtype, str] = {"bf16": "BF16", "fp16": "F16", "fp32": "F32"}
TORCH_DTYPE: Mapping[Dtype, str] = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


class TensorSpec(NamedTuple):
    """One tensor of a checkpoint: its name, its shape, and the mean and standard deviation of its values."""

    name: str
    shape: tuple[int, ...]
    mean: float = 0.0
    std: float = STD

    @property
    def elements(self) -> int:
        """The number of values that the tensor holds."""
        return math.prod(self.shape)


class Preset(NamedTuple):
    """A model shape: its name and the `config.json` it is published with."""

    name: str
    config: Mapping[str, Any]

    @property
    def tensors(self) -> tuple[TensorSpec, ...]:
        """Every tensor of the checkpoint, in file order; a tied head is none."""
        return tuple(_tensors(self.config))


class Receipt(NamedTuple):
    """The arguments that a checkpoint directory was made from; stored as `preset.json` beside the weights."""

    preset: str
    dtype: Dtype
    seed: int
    layers: int
    shard_bytes: int
    version: int = FORMAT_VERSION


_KNOWN = json.loads(Path(__file__).with_name("presets.json").read_text(encoding="utf-8"))
PRESETS: Mapping[str, Preset] = MappingProxyType({name: Preset(name, of) for name, of in _KNOWN["presets"].items()})
"""The presets by name.

The four query heads of the tiny Qwen3 are together wider than its hidden size. All three bands of the scaled rope
(kept, blended, stretched) occur at the tiny Llama's head_dim of 32, and only that preset has biases.
"""
SHAPES: Mapping[str, Preset] = MappingProxyType({name: Preset(name, of) for name, of in _KNOWN["shapes"].items()})
"""Shapes for which no checkpoint is written, by name.

No extent of `uneven` is a multiple of any vector or tile, like GPT-2's vocabulary and Phi's heads.
"""


def materialise(
    preset_name: str,
    out_dir: str | Path,
    *,
    dtype: Dtype = "bf16",
    seed: int = 0,
    layers: int | None = None,
    shard_bytes: int = SHARD_BYTES,
) -> Path:
    """Write a preset's checkpoint to `out_dir` and return that path.

    `layers` keeps the shape and changes the depth; a tensor present at both depths has the same values. A directory
    already made from the same arguments is returned untouched.

    Raises:
        KeyError: the preset is unknown.
        ValueError: the dtype, the depth or the shard size is invalid.
        FileExistsError: `out_dir` holds anything else.
        OSError: the directory cannot be written.
    """
    if preset_name not in PRESETS:
        raise KeyError(f"{preset_name}: no such preset; there are {', '.join(PRESETS)}")
    if dtype not in get_args(Dtype):
        raise ValueError(f"{preset_name}: dtype {dtype!r} is not one of {get_args(Dtype)}")
    if shard_bytes < 1:
        raise ValueError(f"{preset_name}: shard_bytes {shard_bytes} is less than 1")
    preset = with_layers(PRESETS[preset_name], layers)
    receipt = Receipt(preset_name, dtype, seed, preset.config["num_hidden_layers"], shard_bytes)
    out = Path(out_dir)
    if out.exists():
        if _receipt_matches(out, receipt):
            return out
        raise FileExistsError(f"{out}: exists and was not made by {receipt}; remove it first")
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        temporary.chmod(0o755)
        _write_checkpoint(preset, receipt, temporary)
        try:
            temporary.rename(out)
        except OSError:
            # Two processes raced: the other's directory serves if it is the same one.
            if not _receipt_matches(out, receipt):
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return out


def with_layers(preset: Preset, layers: int | None) -> Preset:
    """Return the preset with `layers` layers; None keeps its own number.

    Raises:
        ValueError: `layers` is less than 1.
    """
    if layers is None:
        return preset
    if layers < 1:
        raise ValueError(f"{preset.name}: layers {layers} is less than 1")
    return Preset(preset.name, {**preset.config, "num_hidden_layers": layers})


def _receipt_matches(directory: Path, receipt: Receipt) -> bool:
    path = directory / RECEIPT
    return path.is_file() and path.read_text(encoding="utf-8") == _json(receipt._asdict())


def _write_checkpoint(preset: Preset, receipt: Receipt, directory: Path) -> None:
    config = {**preset.config, "torch_dtype": TORCH_DTYPE[receipt.dtype]}
    generation = {key: config[key] for key in ("bos_token_id", "eos_token_id")}
    (directory / "config.json").write_text(_json(config), encoding="utf-8")
    (directory / "generation_config.json").write_text(_json(generation), encoding="utf-8")
    item = ITEM_BYTES[receipt.dtype]
    shards, names = list(_shards(preset.tensors, receipt.shard_bytes // item)), ["model.safetensors"]
    if len(shards) > 1:
        names = [f"model-{i:05d}-of-{len(shards):05d}.safetensors" for i in range(1, len(shards) + 1)]
        index = {
            "metadata": {"total_size": sum(tensor.elements for tensor in preset.tensors) * item},
            "weight_map": {tensor.name: name for name, shard in zip(names, shards, strict=True) for tensor in shard},
        }
        (directory / "model.safetensors.index.json").write_text(_json(index), encoding="utf-8")
    for name, shard in zip(names, shards, strict=True):
        # Not by `safetensors.torch.save_file`, which needs every tensor in memory.
        with (directory / name).open("wb") as file:
            file.write(safetensors_header(shard, receipt.dtype)[0])
            file.writelines(_values(shard, receipt.dtype, receipt.seed))
    (directory / RECEIPT).write_text(_json(receipt._asdict()), encoding="utf-8")


def _shards(tensors: Sequence[TensorSpec], limit: int) -> Iterator[tuple[TensorSpec, ...]]:
    """Yield groups of tensors in file order, each of at most `limit` values; a larger tensor has its own group."""
    shard: list[TensorSpec] = []
    held = 0
    for tensor in tensors:
        if shard and held + tensor.elements > limit:
            yield tuple(shard)
            shard, held = [], 0
        shard.append(tensor)
        held += tensor.elements
    yield tuple(shard)


def safetensors_header(tensors: Sequence[TensorSpec], dtype: Dtype) -> tuple[bytes, int]:
    """Return the bytes before the data of a safetensors file of `tensors`, and the number of bytes of data.

    They are the header's length (u64, little endian) and the header in JSON.
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for tensor in tensors:
        end, kind = offset + tensor.elements * ITEM_BYTES[dtype], _SAFETENSORS_DTYPE[dtype]
        header[tensor.name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    return len(encoded).to_bytes(8, "little") + encoded, offset


def _values(tensors: Sequence[TensorSpec], dtype: Dtype, seed: int) -> Iterator[bytes]:
    """Yield the tensors' data, little endian, at most CHUNK_ELEMENTS values at a time."""
    import torch

    quantiles = _quantiles()
    for tensor in tensors:
        table = (tensor.mean + tensor.std * quantiles).to(getattr(torch, TORCH_DTYPE[dtype]))
        key = f"agentcompile/preset/{FORMAT_VERSION}/{seed}/{tensor.name}"
        generator = random.Random(hashlib.sha256(key.encode()).digest())
        for start in range(0, tensor.elements, CHUNK_ELEMENTS):
            count = min(CHUNK_ELEMENTS, tensor.elements - start)
            draws = torch.frombuffer(bytearray(generator.randbytes(2 * count)), dtype=torch.uint16)
            values = table.index_select(0, draws.to(torch.int32))
            yield ctypes.string_at(values.data_ptr(), values.nbytes)


def _quantiles() -> torch.Tensor:
    """Return midpoint quantiles of the standard normal distribution, mirrored about zero: [QUANTILES] fp64."""
    import torch

    normal = NormalDist()
    upper = [normal.inv_cdf(0.5 + (i + 0.5) / QUANTILES) for i in range(QUANTILES // 2)]
    return torch.tensor([-z for z in reversed(upper)] + upper, dtype=torch.float64)


def _tensors(config: Mapping[str, Any]) -> Iterator[TensorSpec]:
    """Yield the tensors with the names and shapes that `Qwen3ForCausalLM` and `LlamaForCausalLM` store."""
    hidden, inner, head_dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    query, key = (config[f"num_{heads}_heads"] * head_dim for heads in ("attention", "key_value"))
    projections = {"q": (query, hidden), "k": (key, hidden), "v": (key, hidden), "o": (hidden, query)}
    yield TensorSpec("model.embed_tokens.weight", (config["vocab_size"], hidden))
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        yield _norm(f"{prefix}.input_layernorm.weight", hidden)
        for name, shape in projections.items():
            yield TensorSpec(f"{prefix}.self_attn.{name}_proj.weight", shape)
            if config["attention_bias"]:
                yield TensorSpec(f"{prefix}.self_attn.{name}_proj.bias", shape[:1])
        if config["model_type"] == "qwen3":
            yield _norm(f"{prefix}.self_attn.q_norm.weight", head_dim)
            yield _norm(f"{prefix}.self_attn.k_norm.weight", head_dim)
        yield _norm(f"{prefix}.post_attention_layernorm.weight", hidden)
        for name, shape in {"gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner)}.items():
            yield TensorSpec(f"{prefix}.mlp.{name}_proj.weight", shape)
    yield _norm("model.norm.weight", hidden)
    if not config["tie_word_embeddings"]:
        yield TensorSpec("lm_head.weight", (config["vocab_size"], hidden))


def _norm(name: str, width: int) -> TensorSpec:
    return TensorSpec(name, (width,), mean=1.0, std=NORM_NOISE_STD)


def _json(value: object) -> str:
    return json.dumps(value, indent=2, sort_keys=True) + "\n"


def main(argv: Sequence[str] | None = None) -> None:
    """Write one preset to a directory."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("preset", choices=list(PRESETS))
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--dtype", choices=get_args(Dtype), default="bf16")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--layers", type=int)
    asked = parser.parse_args(argv)
    materialise(asked.preset, asked.out, dtype=asked.dtype, seed=asked.seed, layers=asked.layers)


if __name__ == "__main__":
    main()
