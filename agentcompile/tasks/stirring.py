"""Changes between timed launches: a kernel that keeps results, or what it made of parameters, must compute them anew.

Before each launch a kernel of our own changes every buffer that a right kernel cannot count on: elements of inputs and
parameters, which results depend on, and of outputs and workspaces, which a launch must write before it reads them. A
table in an arena lists these changes; inputs of which single elements cannot be changed are exchanged as a whole with
a second draw, their twin. The process that holds the task wrote both, and knows what the buffers become.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from agentcompile.ir.graph import ITEM_BYTES
from agentcompile.ops.reference import DTYPES
from agentcompile.tasks.wire import Scratch, Signature

TABLE = "stir table"
"""The buffer of an arena that holds the changes; no port has such a name."""
MOST = 1 << 14
"""The most elements that are changed in one arena."""
_ELEMENTS = 8
"""The most elements of a buffer that are changed before one launch."""
_HEAD = 2
"""The numbers before the changes: how many were made, and how many are made before a launch."""
_PORT, _WIDTH = 52, 48
"""The bits of a change's first number at which its buffer's place in the list and its element's bytes begin; its offset
in the buffer is below. The second number holds the element."""
_WARM = 4
"""The part of a batch, one in `_WARM`, that is run before each interval."""
_FLOATS = ("fp32", "bf16", "fp16", "fp64")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stirred:
    """The buffers that change before a launch."""

    elements: tuple[str, ...] = ()
    """Those of which elements change."""
    swapped: tuple[str, ...] = ()
    """Inputs that are exchanged with their twins."""

    @property
    def most_steps(self) -> int:
        """The most launches on an arena for which changes can be listed."""
        return MOST // max(len(self.elements), 1)


def stirred(signature: Signature, scratch: Sequence[Scratch], *, whole: bool = False) -> Stirred:
    """Return which buffers change: of inputs those that vary; with `whole` no element of an input changes alone.

    Whole numbers and masks are only what ``get_inputs`` draws, so that they are exchanged; as parameters they stay.
    """
    varying = [one for one in signature.of("input") if one.varies]
    alone = [one.name for one in varying if one.dtype in _FLOATS and not whole]
    parameters = [one.name for one in signature.of("parameter") if one.dtype in _FLOATS]
    spoilt = [one.name for one in signature.of("output")] + [one.name for one in scratch if not one.zeroed]
    swapped = tuple(one.name for one in varying if one.name not in alone)
    return Stirred(elements=(*alone, *parameters, *spoilt), swapped=swapped)


def twin(name: str) -> str:
    """Return the buffer with which an input is exchanged."""
    return f"{name} twin"


def sizes_of(signature: Signature, ports: Stirred) -> dict[str, int]:
    """Return the bytes of what an arena holds beside a kernel's buffers."""
    facts = {one.name: math.prod(one.shape) * ITEM_BYTES[one.dtype] for one in signature.tensors}
    return {TABLE: 8 * table_numbers()} | {twin(name): facts[name] for name in ports.swapped}


def table_numbers() -> int:
    """Return how many int64 a table holds."""
    return _HEAD + 2 * MOST


def places_of(ports: Stirred, addresses: Mapping[str, int], nbytes: Mapping[str, int]) -> list[int]:
    """Return what our own kernel reads: how many inputs are exchanged, each with its twin and bytes, then buffers."""
    swaps = [(addresses[name], addresses[twin(name)], nbytes[name]) for name in ports.swapped]
    return [len(swaps), *(number for swap in swaps for number in swap), *(addresses[name] for name in ports.elements)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Changing:
    """A buffer of which elements change, and what they become at given places of the flat buffer."""

    numel: int
    draw: Callable[[Tensor, torch.Generator], Tensor]


def shuffled(tensor: Tensor) -> Changing:
    """Return changes to the values that other elements of a tensor have."""
    flat = tensor.reshape(-1)

    def draw(places: Tensor, generator: torch.Generator) -> Tensor:
        return flat[torch.randint(0, flat.numel(), places.shape, generator=generator)]

    return Changing(numel=flat.numel(), draw=draw)


def spoilt(tensor: Tensor) -> Changing:
    """Return changes to values that other elements of a result have, and to NaN: no look at some tells the two."""
    flat, inner = tensor.reshape(-1), shuffled(tensor)

    def draw(places: Tensor, generator: torch.Generator) -> Tensor:
        values = inner.draw(places, generator)
        if not flat.is_floating_point():
            return values
        return values.masked_fill(torch.rand(places.shape, generator=generator) < 0.5, math.nan)

    return Changing(numel=flat.numel(), draw=draw)


def noisy(dtype: str, numel: int) -> Changing:
    """Return changes of a workspace of which nothing is known: noise, NaN, whole numbers."""
    kind = DTYPES[dtype]

    def draw(places: Tensor, generator: torch.Generator) -> Tensor:
        if kind.is_floating_point:
            values = torch.randn(places.shape, generator=generator)
            return values.masked_fill(torch.rand(places.shape, generator=generator) < 0.5, math.nan).to(kind)
        return torch.randint(0, 2 if kind == torch.bool else 127, places.shape, generator=generator).to(kind)

    return Changing(numel=numel, draw=draw)


def fill(table: Tensor, buffers: Sequence[Changing], steps: int, generator: torch.Generator) -> Tensor:
    """Write the changes before `steps` launches to a `table` of int64, begin with the first, and return them.

    They are one row for each launch, each change of two int64; where a row has a place twice, it has the same value.
    """
    each = max(1, min(_ELEMENTS, MOST // max(steps * len(buffers), 1)))
    listed = [_rows(at, one, steps, each, generator) for at, one in enumerate(buffers)]
    rows = torch.cat(listed, dim=1) if listed else torch.zeros(steps, 0, 2, dtype=torch.int64)
    table[0], table[1] = 0, rows.shape[1]
    table[_HEAD : _HEAD + rows.numel()] = rows.reshape(-1)
    return rows


def _rows(port: int, buffer: Changing, steps: int, each: int, generator: torch.Generator) -> Tensor:
    places = torch.randint(0, buffer.numel, (steps, each), generator=generator)
    values = buffer.draw(places, generator).contiguous()
    nbytes = values.element_size()
    held = torch.zeros(steps, each, 8, dtype=torch.uint8)
    held[:, :, :nbytes] = values.view(torch.uint8).view(steps, each, nbytes)
    words = held.view(torch.int64).view(steps, each)
    for at in range(1, each):  # threads of a device make the changes of a row at once
        for before in range(at):
            words[:, at] = torch.where(places[:, at] == places[:, before], words[:, before], words[:, at])
    return torch.stack([places * nbytes + (port << _PORT) + (nbytes << _WIDTH), words], dim=-1)


def applied(rows: Tensor, port: int, tensor: Tensor) -> Tensor:
    """Return a copy of a dense `tensor`, the buffer at place `port`, after the changes in `rows`, in order."""
    flat = tensor.clone().reshape(-1)
    nbytes = flat.element_size()
    own = rows.reshape(-1, 2)
    own = own[own[:, 0] >> _PORT == port]
    places = ((own[:, 0] & ((1 << _WIDTH) - 1)) // nbytes).numpy()
    words = own[:, 1].clone(memory_format=torch.contiguous_format).view(torch.uint8).view(-1, 8)[:, :nbytes]
    # Of several values for one place NumPy keeps the last; PyTorch promises nothing.
    flat.view(torch.uint8).view(-1, nbytes).numpy()[places] = words.numpy()
    return flat.view(tensor.shape)


def warm_up(batch: int) -> int:
    """Return the launches that are run before those of a timed `batch`."""
    return max(1, batch // _WARM)


def steps_of(batch: int, sets: int, arena: int) -> int:
    """Return the launches on one of `sets` arenas in a timed batch; it and what is run before walk over all of them."""
    return sum((count - arena + sets - 1) // sets for count in (warm_up(batch), batch))


def in_order(rows: Sequence[Tensor], batch: int) -> Tensor:
    """Return the changes in `rows`, those of each arena, in the order in which launches of a timed batch are made."""
    sets, made = len(rows), [0] * len(rows)
    found = list[Tensor]()
    for count in (warm_up(batch), batch):
        for launch in range(count):
            at = launch % sets
            found.append(rows[at][made[at]])
            made[at] += 1
    return torch.cat(found)
