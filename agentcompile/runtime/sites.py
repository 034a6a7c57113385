"""One site of a program run by PyTorch: its captured body, or a library call, on the program's buffers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from agentcompile.ir.graph import concrete
from agentcompile.ir.program import Buffer, NativeCall, Program, TorchCall
from agentcompile.ir.region import Region
from agentcompile.reference import Interpreter, attention_at
from agentcompile.runtime import library
from agentcompile.runtime.memory import Memory

Action = Callable[[], None]
Span = tuple[int, int]
"""First and last position of a chunk."""


def torch_site(
    call: TorchCall,
    region: Region,
    buffers: Mapping[str, Buffer],
    env: dict[str, torch.Tensor],
    memory: Memory,
    tokens: int = 1,
    *,
    span: Span | None = None,
    dying: Sequence[str] = (),
) -> Action:
    """What runs one site on the tensors of `env`, by buffer name, at `tokens` tokens.

    An output that has a place in `env` now is copied there, since others know its address; any other is put into
    `env`, and those named `dying` are dropped from it. A port may see its buffer in another shape: both are dense, so
    that is a view. With a `span` the positions are known, and nothing is asked of the device.
    """
    operators = {} if span is None else {"attention": attention_at(*span)}
    body = (
        library.bind(call.call, region, call.settings) if call.call else Interpreter(region.body, operators=operators)
    )
    names = dict(call.bindings)
    inputs = [
        (port.name, names[port.name], concrete(port.shape, tokens)) for port in region.ports if port.role != "output"
    ]
    outputs = [
        (port.name, names[port.name], concrete(buffers[names[port.name]].shape, tokens))
        for port in region.ports
        if port.role == "output"
    ]
    places = {name for _, name, _ in outputs if name in env}

    def dense(name: str) -> torch.Tensor:
        """A buffer as PyTorch wants it: row-major."""
        return memory.dense(buffers[name]) if buffers[name].layout != "row-major" else env[name]

    def act() -> None:
        made = body({port: dense(name).view(shape) for port, name, shape in inputs})
        for port, name, shape in outputs:
            if name in places:
                env[name].copy_(made[port].reshape(shape))
            else:
                env[name] = made[port].reshape(shape)
        for name in dying:
            env.pop(name, None)

    return act


def dying_after(program: Program, keep: set[str]) -> list[tuple[str, ...]]:
    """For every call in order, the activations that no later one reads, but for those to `keep`."""
    kept = keep | {buffer.name for buffer in program.buffers if buffer.role != "activation"}
    last: dict[str, int] = {}
    for at, call in enumerate(program.calls):
        names = call.pointers if isinstance(call, NativeCall) else [name for _, name in call.bindings]
        last.update(dict.fromkeys(names, at))
    return [
        tuple(name for name, end in last.items() if end == at and name not in kept) for at in range(len(program.calls))
    ]
