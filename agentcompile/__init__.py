"""An LLM-guided inference compiler for decoder-only transformers.

`load` runs a lock, `compile` makes one; both import PyTorch when they are called, never before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentcompile.api import compile, load

__version__ = "0.1.0"
__all__ = ["__version__", "compile", "load"]

_LATE = {"compile": "agentcompile.api", "load": "agentcompile.api"}


def _late(name: str) -> object:
    """Import the function of that name on first use, because `import agentcompile` itself must cost milliseconds.

    Raises:
        AttributeError: the package has no such name.
    """
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(_LATE[name]), name)
    globals()[name] = value
    return value


if not TYPE_CHECKING:  # a type checker would accept any missing name as an object
    __getattr__ = _late
