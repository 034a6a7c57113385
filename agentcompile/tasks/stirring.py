"""Changes of inputs between timed launches: a kernel that keeps results must compute every one of them anew.

A table in an arena lists the changes: each puts another number of the tensor at one of its places. Before each launch a
kernel of our own makes the next one; the process that holds the task wrote the table, and knows what the inputs become.
"""

from __future__ import annotations

import torch
from torch import Tensor

from agentcompile.ir.graph import ITEM_BYTES
from agentcompile.tasks.wire import Signature

TABLE = "stir table"
"""The buffer of an arena that holds the changes; no port has such a name."""
MOST = 1 << 12
"""The most changes of one arena."""
_HEAD = 2
"""The numbers before the changes: how many were made, and the bytes of an element."""
_WARM = 4
"""The part of a batch, one in `_WARM`, that is run before each interval."""
_FLOATS = ("fp32", "bf16", "fp16", "fp64")


def table_numbers() -> int:
    """Return how many int64 a table holds."""
    return _HEAD + 2 * MOST


def stirred_input(signature: Signature) -> str:
    """Return the name of the largest input of floating-point numbers, which is the one to change; "" for none."""
    floats = [one for one in signature.of("input") if one.dtype in _FLOATS and one.varies]
    sized = {one.name: torch.Size(one.shape).numel() * ITEM_BYTES[one.dtype] for one in floats}
    return max(sized, key=lambda name: sized[name], default="")


def fill(table: Tensor, tensor: Tensor, steps: int, generator: torch.Generator) -> None:
    """Write `steps` changes of a dense `tensor` to a `table` of int64, and begin with the first."""
    flat, nbytes = tensor.reshape(-1), tensor.element_size()
    places = torch.randint(0, flat.numel(), (steps,), generator=generator)
    values = flat[torch.randint(0, flat.numel(), (steps,), generator=generator)]
    table[0], table[1] = 0, nbytes
    rows = table[_HEAD : _HEAD + 2 * steps].view(steps, 2)
    rows[:, 0] = places * nbytes
    held = torch.zeros(steps, 8, dtype=torch.uint8)
    held[:, :nbytes] = values.contiguous().view(torch.uint8).view(steps, nbytes)
    rows[:, 1] = held.view(torch.int64).view(steps)


def applied(rows: Tensor, tensor: Tensor) -> Tensor:
    """Return a copy of a dense `tensor` after the changes in `rows` of two int64, in order."""
    flat = tensor.clone().reshape(-1)
    nbytes = flat.element_size()
    words = rows[:, 1].clone(memory_format=torch.contiguous_format).view(torch.uint8).view(-1, 8)
    values = words[:, :nbytes].contiguous().view(flat.dtype).view(-1)
    for place, value in zip((rows[:, 0] // nbytes).tolist(), values, strict=True):
        flat[place] = value
    return flat.view(tensor.shape)


def rows_of(table: Tensor, steps: int) -> Tensor:
    """Return a copy of the first `steps` changes of a table."""
    return table[_HEAD : _HEAD + 2 * steps].view(steps, 2).clone()


def warm_up(batch: int) -> int:
    """Return the launches that are run before those of a timed `batch`."""
    return max(1, batch // _WARM)


def steps_of(batch: int, sets: int, arena: int) -> int:
    """Return the launches on one of `sets` arenas in a timed batch; it and what is run before walk over all of them."""
    return sum((count - arena + sets - 1) // sets for count in (warm_up(batch), batch))
