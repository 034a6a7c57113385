"""The files of one GGUF model, each opened with the package `gguf`, and checked to be parts of one another.

What llama.cpp's `gguf-split` and converter write: the first part has the metadata, and no tensors where it was asked to
stay small; every part says its number from 0 (`split.no`), how many there are (`split.count`), and how many tensors all
of them hold (`split.tensors.count`). Everything that the user can fix raises `AgentCompileError` with the file, the
value and the remedy.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentcompile.checkpoint.names import MAGIC, parts_of
from agentcompile.errors import AgentCompileError, ExitCode

AGAIN = "download the file again"
OWN = ("split.", "GGUF.", "general.alignment")
"""Beginnings of the keys that parts of one model may differ in; `GGUF.` is what the package makes of the header."""
_UNKNOWN = re.compile(r"(\d+)\)? is not a valid GGMLQuantizationType")
_ONE_FOLDER = "put all parts of one model into one folder, under the names that they were published with"


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufPart:
    """An opened file: the package's metadata fields and its tensors, memory-mapped."""

    path: Path
    fields: Mapping[str, Any]
    tensors: Sequence[Any]

    def get(self, key: str, default: Any = None) -> Any:
        """Return the metadata value of `key`."""
        found = self.fields.get(key)
        return default if found is None else found.contents()


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


def check_plain(path: Path) -> None:
    """Check that a path leads to a whole file that begins as GGUF does, without reading further.

    Raises:
        AgentCompileError: it does not (usage).
    """
    try:
        if path.exists() and not path.is_file():  # a FIFO would block its reader
            raise AgentCompileError(f"{path}: no plain file", hint="give the path of a GGUF file")
        with path.open("rb") as file:
            begin = file.read(len(MAGIC))
    except FileNotFoundError:
        if (count := len(parts_of(path))) > 1:
            text = f"{path}: no such file, one of the {count} parts of its model"
            raise AgentCompileError(text, hint=f"download it into {path.parent}, beside the others") from None
        raise AgentCompileError(f"{path}: no such file", hint="give the path of a GGUF file") from None
    except OSError as error:
        raise AgentCompileError(f"{path}: {error.strerror}", hint="make the file readable") from None
    if begin != MAGIC:
        raise AgentCompileError(f"{path}: no GGUF: it begins with {begin!r}, not {MAGIC!r}", hint=AGAIN)


def open_parts(path: Path) -> list[GgufPart]:
    """Open a GGUF file, or all parts of the split model that it is one of, in order.

    Raises:
        AgentCompileError: a file is missing, damaged or cut short, or the parts are not those of one model (usage); the
            package `gguf` is not installed (environment).
    """
    paths = parts_of(path)
    for one in paths:
        check_plain(one)
    found = [_open(one) for one in paths]
    for no, part in enumerate(found):
        try:
            _check_place(part, no, found[0], len(found))
        except (UnicodeDecodeError, IndexError) as error:
            raise AgentCompileError(f"{part.path}: damaged metadata: {error}", hint=AGAIN) from error
    _check_tensors(found)
    return found


def _open(path: Path) -> GgufPart:
    """Open one file.

    Raises:
        AgentCompileError: it is damaged, or holds what the package does not know (usage).
    """
    gguf = package()
    try:
        reader: Any = gguf.GGUFReader(str(path))
        part = GgufPart(path=path, fields=reader.fields, tensors=list(reader.tensors))
    except Exception as error:  # whatever the package and NumPy raise at bytes that make no sense
        if unknown := _UNKNOWN.search(str(error)):
            text = f"{path}: an unknown quantisation type, number {unknown[1]}"
            raise AgentCompileError(text, hint="use a file in F16, BF16, Q8_0, Q4_K or Q6_K") from error
        text = f"{path}: cut short or damaged: {type(error).__name__}: {str(error)[:120]}"
        raise AgentCompileError(text, hint=AGAIN) from error
    if reader.byte_order != "I":
        raise AgentCompileError(f"{path}: written for the other byte order", hint="use the little-endian file")
    return part


def _check_place(part: GgufPart, no: int, first: GgufPart, count: int) -> None:
    """Check that a file is the part that its name says: number `no` of `count`, and of the first part's model.

    Raises:
        AgentCompileError: it is another (usage).
    """
    told = part.get("split.count", 1)
    if told != count:
        if count == 1:
            text = f"{part.path}: split.count: {_shown(told)}: one part of several, and its name does not say which"
            raise AgentCompileError(text, hint="name the parts NAME-00001-of-00003.gguf and so on, in one folder")
        raise AgentCompileError(
            f"{part.path}: split.count: {_shown(told)}, not {count} as its name says", hint=_ONE_FOLDER
        )
    if count == 1:
        return
    if (own := part.get("split.no")) != no:
        text = f"{part.path}: split.no: {_shown(own)}, not {no} as its name says"
        raise AgentCompileError(text, hint=_ONE_FOLDER)
    for key in ("split.tensors.count", *(key for key in part.fields if not key.startswith(OWN))):
        if (other := part.get(key)) != (expected := first.get(key)):
            text = f"{part.path}: {key}: {_shown(other)}, but {_shown(expected)} in {first.path.name}"
            raise AgentCompileError(f"{text}: parts of different models", hint=_ONE_FOLDER)


def _check_tensors(parts: Sequence[GgufPart]) -> None:
    """Check that parts hold every tensor once, and as many as they say.

    Raises:
        AgentCompileError: they do not (usage).
    """
    places: dict[str, Path] = {}
    for part in parts:
        for tensor in part.tensors:
            if tensor.name in places:
                text = f"{part.path}: {tensor.name}: this tensor is in {places[tensor.name].name} too"
                raise AgentCompileError(text, hint=_ONE_FOLDER)
            places[tensor.name] = part.path
    first = parts[0]
    if len(parts) > 1 and (told := first.get("split.tensors.count")) != len(places):
        text = f"{first.path}: split.tensors.count: {_shown(told)}, but its {len(parts)} parts hold {len(places)}"
        raise AgentCompileError(text, hint="download all parts again")


def _shown(value: Any) -> str:
    return "missing" if value is None else repr(value)[:60]
