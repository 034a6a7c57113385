"""The location of a model's checkpoint: a directory, `preset:NAME`, or the location that a lock keeps."""

from __future__ import annotations

import difflib
import os
import posixpath
import re
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from agentcompile.errors import AgentCompileError

PRESET = "preset:"
_GROUP = "agentcompile.models"
_PRESET = re.compile(r"preset:[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_NEAR = 3
"""Levels above a lock that a relative location may climb; a path further away describes a machine, not a model."""


def find_model(name: str, cache: Path) -> Path:
    """Return the checkpoint directory that `name` means; a preset is made below `cache` on first use.

    Raises:
        AgentCompileError: no such preset (usage); the hint names the nearest.
    """
    if not name.startswith(PRESET):
        return Path(name)
    preset = name.removeprefix(PRESET)
    known: dict[str, Any] = {}
    for entry in entry_points(group=_GROUP):
        makers: Mapping[str, Any] = entry.load()
        known |= dict(makers)
    if preset not in known:
        near = difflib.get_close_matches(preset, list(known), n=1)
        meant = f"did you mean {near[0]}? " if near else ""
        raise AgentCompileError(f"{name}: no such preset", hint=f"{meant}presets: {', '.join(sorted(known))}")
    path: Path = known[preset](cache / "presets" / preset)
    return path


def location(name: str, lock: Path) -> str:
    """Return how a lock at `lock` records a model's location: the preset, a relative path that is near, or ""."""
    if name.startswith(PRESET):
        return name
    relative = os.path.relpath(Path(name).resolve(), lock.resolve().parent)
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
    if remembered and (lock.resolve().parent / remembered).is_dir():
        return str((lock.resolve().parent / remembered).resolve())
    text = f"{lock}: the checkpoint of this lock (config {config[:12]}) is not where it was"
    raise AgentCompileError(text, hint="give its directory with --model or AGENTCOMPILE_MODEL")
