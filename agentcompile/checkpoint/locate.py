"""The directory of a model's checkpoint: as it is, made for `preset:NAME`, or converted from a GGUF file."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from agentcompile.checkpoint.convert import Say, converted
from agentcompile.checkpoint.names import ENDING, PRESET, gguf_at
from agentcompile.errors import AgentCompileError
from agentcompile.system import hub

_GROUP = "agentcompile.models"


def find_model(name: str, cache: Path, say: Say = lambda _: None) -> Path:
    """Return the checkpoint directory that `name` means.

    A preset is made, and a GGUF file is converted, below `cache` on first use; `say` is told how far a conversion is.

    Raises:
        AgentCompileError: no such preset or path (usage; the hint names the nearest, or how to download it), or a GGUF
            file cannot be converted.
    """
    if not name.startswith(PRESET):
        _check_there(Path(name))
        file = gguf_at(Path(name))
        return Path(name) if file is None else converted(file, cache, say)
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


def _check_there(path: Path) -> None:
    """Refuse a directory that is not there; of a GGUF file its reader says so.

    Raises:
        AgentCompileError: there is nothing (usage).
    """
    if not os.path.lexists(path) and path.suffix.lower() != ENDING:
        hint = "give a local directory that holds config.json and model.safetensors, a GGUF file, or preset:NAME"
        more = hub.missing(path, Path.cwd())
        what = "no such directory, and not in the local cache of Hugging Face's hub" if more else "no such directory"
        raise AgentCompileError(f"{path}: {what}", hint=f"{hint}; {more}" if more else hint)
