"""Checkpoints: a local directory of config.json and safetensors, one file or shards; checked early, read lazily.

In: a path. Out: the config, where every tensor lies, the tensors themselves (memory-mapped), and a digest of their
bytes. Everything that the user can fix raises `AgentCompileError` with the file, the value and the remedy.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentcompile.checkpoint.hashes import sha256_of
from agentcompile.checkpoint.numbers import check_numbers
from agentcompile.checkpoint.support import refuse_unsupported
from agentcompile.errors import AgentCompileError
from agentcompile.ir.digest import digest as digest_of
from agentcompile.ir.graph import ITEM_BYTES, DType
from agentcompile.system.plain_files import special_in

if TYPE_CHECKING:
    import torch

DTYPES: dict[str, DType] = {
    "BF16": "bf16",
    "F16": "fp16",
    "F32": "fp32",
    "F64": "fp64",
    "I64": "int64",
    "I32": "int32",
    "BOOL": "bool",
}
"""The element types that are supported, by safetensors' names."""

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
HEADER_LIMIT = 100_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInfo:
    """The place of one tensor: its file, its offset there in bytes, its shape and element type."""

    name: str
    shape: tuple[int, ...]
    dtype: DType
    file: Path
    offset: int

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor's data."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """An opened checkpoint directory."""

    path: Path
    config: Mapping[str, Any]
    _tensors: Mapping[str, TensorInfo]
    _mapped: dict[Path, Any] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def open(cls, path: str | Path) -> Checkpoint:
        """Open a checkpoint directory: read and check its config and the headers of its tensor files.

        Raises:
            AgentCompileError: something is missing, cut short or not supported (exit 2).
        """
        path = Path(path)
        if not path.is_dir():
            what = "is a file, not a directory" if path.is_file() else "no such directory"
            raise AgentCompileError(
                f"{path}: {what}", hint="give a local directory that holds config.json and model.safetensors"
            )
        if special := special_in(path):
            raise AgentCompileError(f"{path}: {special}", hint="a checkpoint has plain files alone: remove it")
        config = read_json(path / "config.json", "download the model's config.json into the directory")
        check_config(path / "config.json", config)
        return cls(path=path, config=config, _tensors=_index(path))

    def tensors(self) -> Mapping[str, TensorInfo]:
        """Return every tensor's place by its name."""
        return self._tensors

    def info(self, name: str) -> TensorInfo:
        """Return one tensor's place.

        Raises:
            AgentCompileError: the checkpoint has no tensor of that name (usage).
        """
        if name not in self._tensors:
            raise AgentCompileError(
                f"{self.path}: {name}: no such tensor among {len(self._tensors)}",
                hint="the checkpoint does not belong to its config.json, or is incomplete: download it again",
            )
        return self._tensors[name]

    def expect(self, name: str, shape: tuple[int, ...], dtype: DType) -> TensorInfo:
        """Return one tensor's place, checked against the shape and element type that the model needs.

        Raises:
            AgentCompileError: it is missing, or shape or element type differ (usage); the message has both values.
        """
        info = self.info(name)
        if info.shape != shape:
            raise AgentCompileError(
                f"{info.file}: {name}: shape {list(info.shape)}, but config.json asks for {list(shape)}",
                hint="use the config.json that the weights were saved with",
            )
        if info.dtype != dtype:
            raise AgentCompileError(
                f"{info.file}: {name}: {info.dtype}, but the model is {dtype}", hint=f"save every tensor as {dtype}"
            )
        return info

    def element_type(self) -> DType:
        """Return the element type that holds most bytes of the checkpoint.

        Raises:
            AgentCompileError: the checkpoint has no tensors (usage).
        """
        counts: dict[DType, int] = {}
        for info in self._tensors.values():
            counts[info.dtype] = counts.get(info.dtype, 0) + info.nbytes
        if not counts:
            raise AgentCompileError(f"{self.path}: no tensors", hint="download the weights again")
        return max(counts, key=lambda kind: counts[kind])

    def tensor(self, name: str) -> torch.Tensor:
        """Return the tensor itself, memory-mapped copy-on-write: reading is lazy, and nothing writes to the file."""
        import torch

        info = self.info(name)
        if info.file not in self._mapped:
            self._mapped[info.file] = torch.UntypedStorage.from_file(
                str(info.file), shared=False, nbytes=info.file.stat().st_size
            )
        kinds = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "fp64": torch.float64}
        kinds |= {"int64": torch.int64, "int32": torch.int32, "bool": torch.bool}
        storage, dtype, count = self._mapped[info.file], kinds[info.dtype], math.prod(info.shape)
        if info.offset % ITEM_BYTES[info.dtype]:
            raw = torch.empty(0, dtype=torch.uint8).set_(storage, info.offset, (info.nbytes,), (1,))
            return raw.clone().view(dtype).reshape(info.shape)
        raw = torch.empty(0, dtype=torch.uint8).set_(storage, info.offset, (count * ITEM_BYTES[info.dtype],), (1,))
        return raw.view(dtype).reshape(info.shape)

    def config_digest(self) -> str:
        """Return the identity of config.json's content, independent of how it is written."""
        return digest_of("config/1", dict(self.config))

    def digest(self, cache: MutableMapping[str, str] | None = None) -> str:
        """Return the identity of the tensor files' bytes; `cache` keeps each file's hash by path, size and mtime."""
        files = sorted({info.file for info in self._tensors.values()})
        parts: list[Any] = []
        parts += ([file.name, sha256_of(file, cache)] for file in files)
        return digest_of("weights/1", parts)


def read_json(path: Path, remedy: str) -> dict[str, Any]:
    """Return the JSON object in a file.

    Raises:
        AgentCompileError: the file is missing, unreadable or not a JSON object (usage).
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise AgentCompileError(f"{path}: no such file", hint=remedy) from None
    except OSError as error:
        raise AgentCompileError(f"{path}: {error.strerror}", hint="make the file readable") from None
    except (ValueError, RecursionError) as error:  # not JSON, not UTF-8, or a number of thousands of digits
        raise AgentCompileError(f"{path}: not JSON: {error}", hint=remedy) from None
    if not isinstance(value, dict):
        raise AgentCompileError(f"{path}: a {type(value).__name__}, not an object", hint=remedy)
    return value


def _index(path: Path) -> dict[str, TensorInfo]:
    """Return every tensor of the directory, from the single file or from the shards that the index names.

    Raises:
        AgentCompileError: there are no weights, or index and shards do not fit together (usage).
    """
    if (path / SINGLE).exists():
        return _header(path / SINGLE)
    if not (path / INDEX).exists():
        others = sorted(p.name for p in path.glob("*.bin"))
        hint = f"convert {others[0]} to safetensors" if others else "download the weights into the directory"
        if files := sorted(p.name for p in path.glob("*.gguf")):
            hint = f"give {files[0]} itself, or its directory without the other config.json"
        raise AgentCompileError(f"{path}: neither {SINGLE} nor {INDEX}", hint=hint)
    weights = read_json(path / INDEX, "download the index again").get("weight_map")
    if not isinstance(weights, dict) or not weights or not all(isinstance(v, str) for v in weights.values()):
        raise AgentCompileError(
            f"{path / INDEX}: weight_map: not a table of file names", hint="download the index again"
        )
    shards: dict[str, dict[str, TensorInfo]] = {}
    for name in sorted(set(weights.values())):
        if Path(name).name != name:
            raise AgentCompileError(
                f"{path / INDEX}: weight_map: {name!r} is no plain file name",
                hint="keep every shard in the checkpoint's directory",
            )
        if not (path / name).is_file():
            raise AgentCompileError(
                f"{path / INDEX}: weight_map: {name}: no such file", hint=f"download {name} into {path}"
            )
        shards[name] = _header(path / name)
    out: dict[str, TensorInfo] = {}
    for tensor, name in sorted(weights.items()):
        if tensor not in shards[name]:
            raise AgentCompileError(
                f"{path / name}: {tensor}: no such tensor, though {INDEX} puts it there",
                hint="download index and shards from the same revision",
            )
        out[tensor] = shards[name][tensor]
    return out


def _header(path: Path) -> dict[str, TensorInfo]:
    """Return the tensors of one safetensors file, with every offset checked against the file's size.

    Raises:
        AgentCompileError: the file is unreadable, cut short or not a safetensors file (usage).
    """
    remedy = "download the file again"
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(size - 8, HEADER_LIMIT):
                raise AgentCompileError(
                    f"{path}: cut short or no safetensors: {size} bytes, header of {length}", hint=remedy
                )
            raw = json.loads(file.read(length))
    except OSError as error:
        raise AgentCompileError(f"{path}: {error.strerror}", hint="make the file readable") from None
    except (ValueError, RecursionError):
        raise AgentCompileError(f"{path}: the header is not JSON", hint=remedy) from None
    if not isinstance(raw, dict):
        raise AgentCompileError(f"{path}: the header is not an object", hint=remedy)
    return {name: _entry(path, name, entry, 8 + length, size) for name, entry in raw.items() if name != "__metadata__"}


def _entry(path: Path, name: str, entry: Any, start: int, size: int) -> TensorInfo:
    try:
        kind, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        sound = all(type(n) is int and n >= 0 for n in (*shape, begin, end))
    except (TypeError, KeyError, ValueError):
        sound, kind, shape, begin, end = False, "", (), 0, 0
    if not sound:
        raise AgentCompileError(f"{path}: {name}: a broken header entry", hint="download the file again")
    if kind not in DTYPES:
        raise AgentCompileError(
            f"{path}: {name}: element type {kind} is not supported",
            hint=f"use a checkpoint in one of {', '.join(DTYPES)}; quantised weights are not supported yet",
        )
    info = TensorInfo(name=name, shape=shape, dtype=DTYPES[kind], file=path, offset=start + begin)
    if end - begin != info.nbytes:
        raise AgentCompileError(
            f"{path}: {name}: {end - begin} bytes for shape {list(shape)} of {kind}, which needs {info.nbytes}",
            hint="download the file again",
        )
    if start + end > size:
        raise AgentCompileError(
            f"{path}: {name}: cut short: ends at byte {start + end} of a file of {size}", hint="download the file again"
        )
    return info


def check_config(path: Path, config: Mapping[str, Any]) -> None:
    """Check that a config is sound and its model supported.

    Raises:
        AgentCompileError: it is not (usage); the error has the key, its value and the remedy.
    """
    if not isinstance(config.get("model_type"), str):
        raise AgentCompileError(
            f"{path}: model_type: {config.get('model_type')!r}",
            hint='config.json must name the architecture: "model_type": "qwen3"',
        )
    refuse_unsupported(path, config)
    check_numbers(path, config)
