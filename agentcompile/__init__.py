"""An LLM-guided inference compiler for decoder-only transformers.

`load` runs a lock, or compiles a checkpoint on first use; `compile` makes a lock. Both import PyTorch when they are
called, never before. `agentcompile.hf` wraps a compiled model for pipelines of Hugging Face.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentcompile import hf
    from agentcompile.api import compile, load
    from agentcompile.errors import AgentCompileError
    from agentcompile.runtime.completion import Completion, Piece
    from agentcompile.runtime.model import CompiledModel

__version__ = "0.1.0"
__all__ = ["__version__", "compile", "load", "CompiledModel", "Completion", "Piece", "AgentCompileError", "hf"]

_LATE = {
    "compile": "agentcompile.api",
    "load": "agentcompile.api",
    "CompiledModel": "agentcompile.runtime.model",
    "Completion": "agentcompile.runtime.completion",
    "Piece": "agentcompile.runtime.completion",
    "AgentCompileError": "agentcompile.errors",
    "hf": "agentcompile.hf",
}


def _late(name: str) -> object:
    """Import the object of that name on first use, because `import agentcompile` itself must cost milliseconds.

    Raises:
        AttributeError: the package has no such name.
    """
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    module = import_module(_LATE[name])
    value: object = module if _LATE[name] == f"{__name__}.{name}" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if not TYPE_CHECKING:  # a type checker would accept any missing name as an object
    __getattr__ = _late
