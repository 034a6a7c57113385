"""The library's two functions: `compile` makes a lockfile, `load` runs one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from agentcompile import arguments
from agentcompile.errors import AgentCompileError
from agentcompile.events import Emit, silent
from agentcompile.lockfile.schema import Lock
from agentcompile.options import DEFAULT_CONTEXT, resolve
from agentcompile.replay.load import load

if TYPE_CHECKING:
    import torch

MOST = 2**31
"""The greatest value that `context`, `threads` and `budget` may have."""

__all__ = ["compile", "load"]


def compile(
    model: str | Path | torch.nn.Module,
    *,
    out: str | Path = "agentcompile.lock.toml",
    context: int | None = None,
    threads: int | None = None,
    budget: int | None = None,
    advisor: str | None = None,
    strategy: str | None = None,
    save_to: str | Path = "",
    emit: Emit = silent,
) -> Lock:
    """Compile a checkpoint or a module of the decoder protocol, and write its lock to `out`.

    A checkpoint is a directory, a GGUF file or `preset:NAME`. The weights and graphs of a module
    are saved to `save_to` first, which then serves as its checkpoint. An argument that is None takes its value from
    the environment, the settings files or the defaults, as on the command line.

    Raises:
        AgentCompileError: an argument is wrong, or compilation failed for a reason that the user can fix.
    """  # noqa: DOC501
    import torch

    from agentcompile.capture.cached import save_module
    from agentcompile.pipeline import compile_model

    if not callable(emit):
        raise arguments.wrong("emit", emit, "a function of one event")
    directory = arguments.path("save_to", save_to)
    flags: dict[str, object] = {"context": context, "threads": threads, "budget": budget}
    flags = {name: value if value is None else arguments.whole(name, value, 0, MOST) for name, value in flags.items()}
    module = model if isinstance(model, torch.nn.Module) else None
    if isinstance(model, torch.nn.Module):
        if not directory:
            raise AgentCompileError("save_to: a module needs a directory for its weights", hint="give save_to")
        save_module(model, Path(directory), resolve({"context": context}).options.context or DEFAULT_CONTEXT)
        model = Path(directory)
    flags |= {
        "model": arguments.path("model", model),
        "out": arguments.path("out", out),
        "advisor": advisor if advisor is None else arguments.text("advisor", advisor),
        "strategy": strategy if strategy is None else arguments.text("strategy", strategy),
    }
    return compile_model(resolve(flags).options, emit, module=module)
