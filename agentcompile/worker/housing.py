"""Buffers of one candidate laid out as in a model: in the runtime's arenas, by its own placement, with neighbours."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import cast

import torch
from torch import Tensor

from agentcompile.ir.graph import DType
from agentcompile.ir.program import Buffer, NativeCall
from agentcompile.ir.template import Launch
from agentcompile.ops.reference import DTYPES
from agentcompile.runtime.arena import Arena, aligned
from agentcompile.runtime.lower import place
from agentcompile.validate.production import House, Wanted

_NEIGHBOUR = 2112
"""Elements of a neighbouring tensor: longer than a page of cache lines, and no multiple of a power of two above 64."""
_FILLED = 1 << 16


def house(device: str = "cpu", seed: int = 0) -> House:
    """Return a function that lays buffers out on a device as the runtime does."""

    def laid(wanted: Sequence[Wanted]) -> Mapping[str, Tensor]:
        generator = torch.Generator(device).manual_seed(seed)
        found = _resident([one for one in wanted if one.role == "resident"], device, generator)
        found |= _passing([one for one in wanted if one.role in ("input", "output", "scratch")], device, generator)
        for one in wanted:
            if one.role == "number":
                found[one.name] = torch.zeros(one.shape, dtype=DTYPES[one.dtype], device=device)
        return found

    return laid


def _resident(wanted: Sequence[Wanted], device: str, generator: torch.Generator) -> dict[str, Tensor]:
    """Place weights and states one behind another, with other weights before, between and after them."""
    beside = aligned(_NEIGHBOUR * 2)
    sizes = [aligned(math.prod(one.shape) * DTYPES[one.dtype].itemsize) for one in wanted]
    arena = Arena(sum(sizes) + beside * (len(wanted) + 1), device)
    found = {}
    for one in (*wanted, None):
        _fill(arena.take((_NEIGHBOUR,), torch.bfloat16), generator)
        if one is not None:
            found[one.name] = arena.take(one.shape, DTYPES[one.dtype])
    return found


def _passing(wanted: Sequence[Wanted], device: str, generator: torch.Generator) -> dict[str, Tensor]:
    """Place activations and scratch as `lower` does for a step with other calls around this one."""
    buffers = [
        Buffer(
            name=one.name,
            role="workspace" if one.role == "scratch" else "activation",
            dtype=cast(DType, one.dtype),
            shape=one.shape,
            zeroed=one.zeroed,
        )
        for one in wanted
    ]
    buffers += [Buffer(name=name, role="activation", dtype="bf16", shape=(_NEIGHBOUR,)) for name in ("#past", "#next")]
    inputs = [one.name for one in wanted if one.role == "input"]
    outputs = [one.name for one in wanted if one.role == "output"]
    scratch = [one.name for one in wanted if one.role == "scratch"]
    calls = [_call(names) for names in (["#past", *inputs], [*inputs, *outputs, *scratch], [*outputs, "#next"])]
    placed, size = place(buffers, calls, {"#past", "#next"}, largest_first=False)
    arena = Arena(size, device)
    _fill(arena.view(0, (arena.nbytes // 2,), torch.bfloat16), generator)
    found = {}
    for buffer in placed:
        view = arena.view(buffer.offset, tuple(cast(tuple[int, ...], buffer.shape)), DTYPES[buffer.dtype])
        found[buffer.name] = view.zero_() if buffer.zeroed else view
    return {one.name: found[one.name] for one in wanted}


def _call(names: Sequence[str]) -> NativeCall:
    launch = Launch(entry="", arguments=tuple(names))
    return NativeCall(region="", source="", launch=launch, pointers=tuple(names))


def _fill(tensor: Tensor, generator: torch.Generator) -> None:
    some = torch.randn(min(tensor.numel(), _FILLED), generator=generator, device=tensor.device).to(tensor.dtype)
    for begin in range(0, tensor.numel(), some.numel()):
        part = tensor[begin : begin + some.numel()]
        part.copy_(some[: part.numel()])
