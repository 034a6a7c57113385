"""GGUF files, llama.cpp's format: found, opened with the package `gguf`, and checked before anything is converted.

Everything that the user can fix raises `AgentCompileError` with the file, the value and the remedy.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentcompile.checkpoint.names import MAGIC, PART
from agentcompile.errors import AgentCompileError, ExitCode

ARCHITECTURES = ("llama", "phi3", "qwen2", "qwen3")
"""Values of `general.architecture` that are converted; llama.cpp calls Mistral and SmolLM `llama`, as they are."""
EXPERTS = "expert_count"
NEEDED = ("context_length", "block_count", "embedding_length", "feed_forward_length", "attention.head_count")
"""Keys of an architecture's metadata without which there is no model."""
NOT_HERE = ("attention.scale", "attn_logit_softcapping", "final_logit_softcapping", "logit_scale", "embedding_scale")
"""Keys of an architecture's metadata that change what a model computes, and that no supported architecture has."""
_UNKNOWN = re.compile(r"(\d+)\)? is not a valid GGMLQuantizationType")
_AGAIN = "download the file again"
_JOIN = "join them with llama.cpp's `llama-gguf-split --merge FIRST_PART OUT.gguf`, and give that file"


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufFile:
    """An opened GGUF file; `tensors` are the package's, memory-mapped."""

    path: Path
    architecture: str
    tensors: Sequence[Any]
    _fields: Any

    def get(self, key: str, default: Any = None) -> Any:
        """Return the metadata value of `key`; `ARCH.` at its beginning stands for the architecture."""
        found = self._fields.get(key.replace("ARCH.", f"{self.architecture}.", 1))
        return default if found is None else found.contents()

    def names(self) -> frozenset[str]:
        """Return the names of all tensors, as llama.cpp has them."""
        return frozenset(tensor.name for tensor in self.tensors)

    def tensor(self, name: str) -> Any:
        """Return the package's record of one tensor.

        Raises:
            AgentCompileError: the file has none of that name (usage).
        """
        for tensor in self.tensors:
            if tensor.name == name:
                return tensor
        raise AgentCompileError(f"{self.path}: {name}: no such tensor among {len(self.tensors)}", hint=_AGAIN)


def check_plain(path: Path) -> None:
    """Check that a path leads to a whole file that begins as GGUF does, without reading further.

    Raises:
        AgentCompileError: it does not, or the file is one part of several (usage).
    """
    try:
        if path.exists() and not path.is_file():  # a FIFO would block its reader
            raise AgentCompileError(f"{path}: no plain file", hint="give the path of a GGUF file")
        with path.open("rb") as file:
            begin = file.read(len(MAGIC))
    except FileNotFoundError:
        raise AgentCompileError(f"{path}: no such file", hint="give the path of a GGUF file") from None
    except OSError as error:
        raise AgentCompileError(f"{path}: {error.strerror}", hint="make the file readable") from None
    if begin != MAGIC:
        raise AgentCompileError(f"{path}: no GGUF: it begins with {begin!r}, not {MAGIC!r}", hint=_AGAIN)
    if part := PART.search(path.name):
        raise AgentCompileError(f"{path}: one part of {int(part[1])}: split files are not read", hint=_JOIN)


def open_gguf(path: Path) -> GgufFile:
    """Open a GGUF file: read its metadata and the table of its tensors, and check both.

    Raises:
        AgentCompileError: it is damaged, cut short, split, or holds an architecture or a quantisation type that is not
            supported (usage); the package `gguf` is not installed (environment).
    """
    check_plain(path)
    gguf = package()
    try:
        reader: Any = gguf.GGUFReader(str(path))
        fields, tensors = reader.fields, list(reader.tensors)
    except Exception as error:  # whatever the package and NumPy raise at bytes that make no sense
        if unknown := _UNKNOWN.search(str(error)):
            text = f"{path}: an unknown quantisation type, number {unknown[1]}"
            raise AgentCompileError(text, hint="use a file in F16, BF16, Q8_0, Q4_K or Q6_K") from error
        text = f"{path}: cut short or damaged: {type(error).__name__}: {str(error)[:120]}"
        raise AgentCompileError(text, hint=_AGAIN) from error
    if reader.byte_order != "I":
        raise AgentCompileError(f"{path}: written for the other byte order", hint="use the little-endian file")
    try:
        found = GgufFile(path=path, architecture=_architecture(fields), tensors=tensors, _fields=fields)
        _check(found)
    except (UnicodeDecodeError, IndexError) as error:
        raise AgentCompileError(f"{path}: damaged metadata: {error}", hint=_AGAIN) from error
    return found


def package() -> Any:
    """Return the package `gguf`.

    Raises:
        AgentCompileError: it is not installed (environment).
    """
    try:
        import gguf
    except ImportError as error:
        text = "GGUF files are read with the package gguf, which is not installed"
        hint = "pip install 'agentcompile[gguf]'"
        raise AgentCompileError(text, exit_code=ExitCode.ENVIRONMENT, hint=hint) from error
    return gguf


def _architecture(fields: Any) -> str:
    found = fields.get("general.architecture")
    return "" if found is None else str(found.contents())


def _check(file: GgufFile) -> None:
    """Refuse what the conversion does not know.

    Raises:
        AgentCompileError: the first reason (usage).
    """
    known = f"supported: {', '.join(ARCHITECTURES)} (also Mistral and SmolLM, which are llama)"
    if file.architecture not in ARCHITECTURES:
        text = f"{file.path}: general.architecture: {file.architecture or 'missing'}: not supported"
        raise AgentCompileError(text, hint=known)
    if (parts := file.get("split.count", 1)) > 1:
        raise AgentCompileError(f"{file.path}: one part of {parts}: split files are not read", hint=_JOIN)
    if not file.tensors:
        raise AgentCompileError(f"{file.path}: no tensors", hint="give the file of a whole model")
    if file.get(f"ARCH.{EXPERTS}"):
        text = f"{file.path}: {file.architecture}.{EXPERTS}: mixture-of-experts models are not supported"
        raise AgentCompileError(text, hint="use a dense model")
    for key in NEEDED:
        value = file.get(f"ARCH.{key}")
        if type(value) is not int or value < 1:
            said = "missing" if value is None else f"{str(value)[:60]}: one positive number is needed"
            raise AgentCompileError(f"{file.path}: {file.architecture}.{key}: {said}", hint=known)
    for key in NOT_HERE:
        if file.get(f"ARCH.{key}"):
            text = f"{file.path}: {file.architecture}.{key}: {file.get(f'ARCH.{key}')}: not supported"
            raise AgentCompileError(text, hint=known)
    if file.get("ARCH.attention.causal") is False:
        text = f"{file.path}: {file.architecture}.attention.causal: models that read both ways are not supported"
        raise AgentCompileError(text, hint="use a decoder-only transformer")
    gguf = package()
    for kind in sorted({tensor.tensor_type for tensor in file.tensors}):
        if not _readable(gguf, kind):
            (first, *_) = (tensor.name for tensor in file.tensors if tensor.tensor_type == kind)
            text = f"{file.path}: {first}: the quantisation type {kind.name} is not supported"
            raise AgentCompileError(text, hint="use a file in F16, BF16, Q8_0, Q4_K or Q6_K")


def _readable(gguf: Any, kind: Any) -> bool:
    """Whether the package can dequantise a type, tried on one block of zeros."""
    import numpy as np

    _, size = gguf.GGML_QUANT_SIZES[kind]
    try:
        gguf.dequantize(np.zeros((1, size), dtype=np.uint8), kind)
    except NotImplementedError:
        return False
    return True
