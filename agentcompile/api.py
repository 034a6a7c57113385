"""The library's two verbs: `compile` makes a lock, `load` runs one."""

from __future__ import annotations

from pathlib import Path

from agentcompile.events import Emit, silent
from agentcompile.lockfile import Lock
from agentcompile.options import resolve
from agentcompile.replay import load

__all__ = ["compile", "load"]


def compile(
    model: str | Path,
    *,
    out: str | Path = "agentcompile.lock.toml",
    context: int | None = None,
    threads: int | None = None,
    budget: int | None = None,
    advisor: str | None = None,
    emit: Emit = silent,
) -> Lock:
    """Compile a checkpoint directory, or `preset:NAME`, and write its lock to `out`.

    What is None comes from the environment, the settings files or the defaults, as on the command line. Raises
    AgentCompileError for what the user can fix.
    """
    from agentcompile.pipeline import compile_model

    flags = {
        "model": str(model),
        "out": str(out),
        "context": context,
        "threads": threads,
        "budget": budget,
        "advisor": advisor,
    }
    return compile_model(resolve(flags).options, emit)
