"""What a program calls: `agentcompile.compile` here, `agentcompile.load` beside it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from agentcompile.events import Emit, silent
from agentcompile.options import resolve

if TYPE_CHECKING:
    from agentcompile.lockfile import Lock


def compile(
    model: str | Path, out: str | Path = "agentcompile.lock.toml", *, emit: Emit = silent, **settings: object
) -> Lock:
    """Compile a checkpoint directory (or ``preset:NAME``), write the lock to `out` and return it.

    `settings` are the command line's flags with underscores (``budget=100``, ``threads=2``); the environment and the
    settings files stand below them. Raises AgentCompileError for whatever the user can fix.
    """
    from agentcompile.pipeline import compile_model

    options = resolve({**settings, "model": str(model), "out": str(out)}).options
    return compile_model(options, emit)
