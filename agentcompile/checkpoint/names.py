"""Names of checkpoints, from paths alone: a preset, a directory or a GGUF file; how a lock records one."""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path

from agentcompile.errors import AgentCompileError

PRESET = "preset:"
ENDING = ".gguf"
MAGIC = b"GGUF"
PART = re.compile(r"-(\d{5})-of-(\d{5})(\.gguf)$", re.IGNORECASE)
"""The end of the name of one part of a split file: its number from 1, and how many there are."""
_PRESET = re.compile(r"preset:[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_NEAR = 3
"""Levels above a lock that a relative location may climb; a path further away describes a machine, not a model."""


def is_here(name: str) -> bool:
    """Return whether `name` can be a checkpoint: a preset, or a directory or GGUF file that is there."""
    return name.startswith(PRESET) or Path(name).is_dir() or is_gguf(Path(name))


def gguf_at(path: Path) -> Path | None:
    """Return the GGUF file that a path to a checkpoint means, or None when it means a Hugging Face directory.

    A directory means its GGUF file when it has just one and no config.json. A part of a split model means the first.

    Raises:
        AgentCompileError: a directory has several GGUF files and nothing else to read (usage).
    """
    if not path.is_dir():
        return parts_of(path)[0] if path.suffix.lower() == ENDING or is_gguf(path) else None
    if (path / "config.json").exists():
        return None
    files = sorted(file for file in path.iterdir() if file.suffix.lower() == ENDING and file.is_file())
    found = list(dict.fromkeys(parts_of(file)[0] for file in files))
    if len(found) > 1:
        names = ", ".join(file.name for file in found[:4])
        raise AgentCompileError(f"{path}: {len(found)} GGUF files: {names}", hint="name one of them")
    return found[0] if found else None


def parts_of(path: Path) -> tuple[Path, ...]:
    """Return all files of the split model that a path names one part of, in order; of any other path, it alone."""
    found = PART.search(path.name)
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        return (path,)
    begin = path.name[: found.start()]
    return tuple(path.with_name(f"{begin}-{no:05}-of-{found[2]}{found[3]}") for no in range(1, int(found[2]) + 1))


def is_gguf(path: Path) -> bool:
    """Return whether there is a plain file that begins as GGUF does."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def location(name: str, lock: Path) -> str:
    """Return how a lock at `lock` records a model's location: the preset, a relative path that is near, or "".

    A GGUF file is recorded itself, also where its directory was given for it: of a split model the first part, under
    the name that it has there, because links in a download cache lead to files whose names say no number.

    Raises:
        AgentCompileError: a directory has several GGUF files by now (usage).
    """
    if name.startswith(PRESET):
        return name
    file = gguf_at(Path(name))
    path = Path(name).resolve() if file is None else file.parent.resolve() / file.name
    relative = os.path.relpath(path, lock.resolve().parent)
    return "" if Path(relative).parts.count("..") > _NEAR else Path(relative).as_posix()


def misplaced(location: str) -> str:
    """Return why a lock may not record this location; "" for an empty one, a preset, or a near relative path."""
    if not location or _PRESET.fullmatch(location):
        return ""
    if location.startswith(PRESET) or not location.isprintable() or len(location) > 4096 or "\\" in location:
        return "no name of a preset and no path"
    if location.startswith(("/", "~")):
        return "a path relative to the lock is needed"
    if location != posixpath.normpath(location) or location.split("/").count("..") > _NEAR:
        return f"a path without detours is needed, at most {_NEAR} levels up"
    return ""


def model_of_lock(given: str, remembered: str, lock: Path, config: str) -> str:
    """Return what to open for a lock: the model given by flag or variable, else the location that the lock records.

    Raises:
        AgentCompileError: the recorded location is not allowed or not there (usage); names the configuration's digest.
    """
    if given:
        return given
    if reason := misplaced(remembered):
        raise AgentCompileError(f"{lock}: model.location: {remembered[:70]!r}: {reason}", hint="compile again")
    if remembered.startswith(PRESET):
        return remembered
    path = os.path.normpath(lock.resolve().parent / remembered)  # a link keeps its name, which may say a part
    if remembered and is_here(path):
        return path
    text = f"{lock}: the checkpoint of this lock (config {config[:12]}) is not where it was"
    raise AgentCompileError(text, hint="give its directory or GGUF file with --model or AGENTCOMPILE_MODEL")
