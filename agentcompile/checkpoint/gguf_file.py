"""A GGUF model, in one file or split into parts: opened, and checked before anything is converted.

Everything that the user can fix raises `AgentCompileError` with the file, the value and the remedy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentcompile.checkpoint.gguf_parts import AGAIN, GgufPart, open_parts, package
from agentcompile.errors import AgentCompileError

ARCHITECTURES = ("llama", "phi3", "qwen2", "qwen3")
"""Values of `general.architecture` that are converted; llama.cpp calls Mistral and SmolLM `llama`, as they are."""
EXPERTS = "expert_count"
NEEDED = ("context_length", "block_count", "embedding_length", "feed_forward_length", "attention.head_count")
"""Keys of an architecture's metadata without which there is no model."""
NOT_HERE = ("attention.scale", "attn_logit_softcapping", "final_logit_softcapping", "logit_scale", "embedding_scale")
"""Keys of an architecture's metadata that change what a model computes, and that no supported architecture has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufFile:
    """An opened GGUF file, or all parts of a split one.

    `tensors` are the package's, memory-mapped, and `files` says which file holds each; `first` has the metadata.
    """

    first: GgufPart
    parts: int
    architecture: str
    tensors: Sequence[Any]
    files: Mapping[str, Path]

    @property
    def path(self) -> Path:
        """The file, of a split model its first part."""
        return self.first.path

    def get(self, key: str, default: Any = None) -> Any:
        """Return the metadata value of `key`; `ARCH.` at its beginning stands for the architecture."""
        return self.first.get(key.replace("ARCH.", f"{self.architecture}.", 1), default)

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
        raise AgentCompileError(f"{self.path}: {name}: no such tensor among {len(self.tensors)}", hint=AGAIN)


def open_gguf(path: Path) -> GgufFile:
    """Open a GGUF file, all parts of a split one: read its metadata and the table of its tensors, and check both.

    Raises:
        AgentCompileError: a file is damaged, cut short or missing, parts are not those of one model, or they hold an
            architecture or a quantisation type that is not supported (usage); the package `gguf` is not installed
            (environment).
    """
    parts = open_parts(path)
    first, tensors = parts[0], [tensor for part in parts for tensor in part.tensors]
    files = {tensor.name: part.path for part in parts for tensor in part.tensors}
    try:
        architecture = str(first.get("general.architecture", ""))
        found = GgufFile(first=first, architecture=architecture, tensors=tensors, files=files, parts=len(parts))
        _check(found)
    except (UnicodeDecodeError, IndexError) as error:
        raise AgentCompileError(f"{first.path}: damaged metadata: {error}", hint=AGAIN) from error
    return found


def _check(file: GgufFile) -> None:
    """Refuse what the conversion does not know.

    Raises:
        AgentCompileError: the first reason (usage).
    """
    known = f"supported: {', '.join(ARCHITECTURES)} (also Mistral and SmolLM, which are llama)"
    if file.architecture not in ARCHITECTURES:
        text = f"{file.path}: general.architecture: {file.architecture or 'missing'}: not supported"
        raise AgentCompileError(text, hint=known)
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
            text = f"{file.files[first]}: {first}: the quantisation type {kind.name} is not supported"
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
