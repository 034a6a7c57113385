"""NVIDIA's Python bindings: load them on first use, and check their results, which are a status and values."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from agentcompile.errors import AgentCompileError, ExitCode


def load(name: str, start: Callable[[Any], object], *, what: str, hint: str) -> Any:
    """Import the module `name` of `cuda.bindings`, call `start` on it, and return it.

    Raises:
        AgentCompileError: the module or its library is missing, or `start` fails (environment); it says `what` and
            `hint`.
    """
    try:
        found = importlib.import_module(f"cuda.bindings.{name}")
        start(found)
    except (ImportError, RuntimeError) as error:
        raise AgentCompileError(f"{what}: {error}", exit_code=ExitCode.ENVIRONMENT, hint=hint) from error
    return found


def checked(result: tuple[Any, ...], what: str, hint: str) -> Any:
    """Return the values of a call's `result` without its status: one value, a tuple of several, or None.

    Raises:
        AgentCompileError: the status is not success (environment); it says `what` and `hint`.
    """
    status, *values = result
    if int(status) != 0:
        text = f"{what}: {getattr(status, 'name', status)}"
        raise AgentCompileError(text, exit_code=ExitCode.ENVIRONMENT, hint=hint)
    return values[0] if len(values) == 1 else tuple(values) or None
