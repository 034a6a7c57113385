"""NVIDIA's Python bindings: loaded on first use, and their results, a status and values, checked."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from agentcompile.errors import AgentCompileError, ExitCode


def load(name: str, start: Callable[[Any], object], *, what: str, hint: str) -> Any:
    """The module `name` of `cuda.bindings`, once `start` has run on it.

    Raises `AgentCompileError` (environment), which says `what` and `hint`, when it or the library behind it is not
    there.
    """
    try:
        found = importlib.import_module(f"cuda.bindings.{name}")
        start(found)
    except (ImportError, RuntimeError) as error:
        raise AgentCompileError(f"{what}: {error}", exit_code=ExitCode.ENVIRONMENT, hint=hint) from error
    return found


def checked(result: tuple[Any, ...], what: str, hint: str) -> Any:
    """What a call gave beside its status; None for nothing. Raises `AgentCompileError` (environment) on any failure."""
    status, *values = result
    if int(status) != 0:
        text = f"{what}: {getattr(status, 'name', status)}"
        raise AgentCompileError(text, exit_code=ExitCode.ENVIRONMENT, hint=hint)
    return values[0] if len(values) == 1 else tuple(values) or None
