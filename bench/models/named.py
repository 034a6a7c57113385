"""The checkpoint that a recipe is to measure, by what its command line calls it."""

from __future__ import annotations

import functools
from pathlib import Path

from agentcompile.catalog.decode import hint_of
from agentcompile.checkpoint.locate import find_model
from agentcompile.errors import AgentCompileError

from .locate import MAKERS


def checkpoint(model: str, cache: Path) -> Path:
    """Return the directory that `model` means: one of `MAKERS`, or whatever the compiler takes for a model.

    What is made, or converted from a GGUF file, lies below `cache`.

    Raises:
        AgentCompileError: there is no such checkpoint (usage); the hint names the nearest.
    """
    if model in MAKERS:
        return MAKERS[model](cache / "presets" / model)
    if not Path(model).exists() and Path(model).name == model:
        raise AgentCompileError(f"{model}: no such checkpoint", hint=hint_of(model, list(MAKERS)))
    found = find_model(model, cache, functools.partial(print, flush=True)).resolve()
    if not (found / "config.json").is_file():
        raise AgentCompileError(f"{model}: has no config.json", hint="name a checkpoint's directory or a GGUF file")
    return found
