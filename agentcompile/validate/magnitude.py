"""How large a region's activations may be before a correct kernel's float32 sums or its dtype overflow.

The bound on a value's magnitude follows from those of its inputs: for a product from the absolute sums of its rows, for
a norm's squares from its width. Inputs are raised one after another for as long as every bound fits.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from agentcompile.ir.graph import Graph
from agentcompile.ir.region import Region
from agentcompile.ops.reference import DTYPES

_FULL = 0.99  # the share of the largest number that a bound may reach
_SQUARES = 1e38
_STEP = 2.0**-0.25
_UNARY = {"silu": 1.0, "gelu": 1.0, "gelu_tanh": 1.0, "relu": 1.0, "cast": 1.0, "rope": 2.0}


def raised(region: Region, found: dict[str, Tensor], place: float) -> None:
    """Scale the activations in `found` until a bound is reached: first the input at `place`, then the others.

    Regions with an operator that has no bound stay as they are, as do attention's queries and keys.
    """
    kept = {use.value for node in region.body.nodes if node.op == "rope" for use in node.inputs}
    names = [name for name in activations(region.body) if name not in kept]
    if not names:
        return
    first = round(place * (len(names) - 1))
    sizes, sums = _measured(region, found)
    for name in (*names[first:], *names[:first]):
        if sizes[name] == 0.0:
            continue
        low, top = sizes[name], _FULL * torch.finfo(found[name].dtype).max
        size = top
        while size > low and not _fits(region, {**sizes, name: size}, found, sums):
            size *= _STEP
        if size > low:
            found[name] = (found[name].double() * (size / low)).to(found[name].dtype)
            sizes[name] = size


def room(region: Region, found: Mapping[str, Tensor], names: Collection[str]) -> int:
    """Return the largest power of two, at least 0, by which the inputs `names` may be multiplied together.

    `found` has every input of the region. It is 0 where an operator has no bound.
    """
    sizes, sums = _measured(region, found)
    tops = [math.log2(_FULL * torch.finfo(found[name].dtype).max / sizes[name]) for name in names if sizes[name]]
    power = math.floor(min(tops, default=0.0))
    while power > 0 and not _fits(region, {**sizes, **{n: sizes[n] * 2.0**power for n in names}}, found, sums):
        power -= 1
    return max(power, 0)


def activations(body: Graph) -> list[str]:
    """Return the names of a region's activations in floating point."""
    table = body.table()
    return [
        name for name in body.inputs if table[name].role == "activation" and DTYPES[table[name].dtype].is_floating_point
    ]


def _measured(region: Region, found: Mapping[str, Tensor]) -> tuple[dict[str, float], dict[str, float]]:
    """Return the largest magnitude of each floating-point input, and the largest absolute sum of a matrix's rows."""
    floats = {name: tensor for name, tensor in found.items() if tensor.is_floating_point()}
    sizes = {name: float(t.abs().nan_to_num(nan=0.0).max()) if t.numel() else 0.0 for name, t in floats.items()}
    matrices = {node.inputs[1].value for node in region.body.nodes if node.op == "linear"} & found.keys()
    return sizes, {name: float(found[name].abs().sum(1, dtype=torch.float32).max()) for name in matrices}


def _fits(region: Region, sizes: Mapping[str, float], found: Mapping[str, Tensor], sums: Mapping[str, float]) -> bool:
    """Return whether every value of the body stays within its dtype, and every sum within float32."""
    at, table = dict(sizes), region.body.table()
    for node in region.body.nodes:
        size = [at.get(use.value, 0.0) for use in node.inputs]
        op, width = node.op, table[node.inputs[0].value].shape[-1] if table[node.inputs[0].value].shape else 1
        count = width if isinstance(width, int) else 1
        if op == "linear" and node.inputs[1].value in sums:
            made = size[0] * sums[node.inputs[1].value] + (size[2] if len(size) > 2 else 0.0)
        elif op == "rms_norm":
            if size[0] * size[0] * count > _SQUARES:
                return False
            made = math.sqrt(count) * (size[1] + abs(float(str(dict(node.attrs).get("offset", 0.0)))))
        elif op in ("add", "sub"):
            made = size[0] + size[1]
        elif op == "mul":
            made = size[0] * size[1]
        elif op in _UNARY:
            made = size[0] * _UNARY[op]
        elif op == "cache_append":
            made = max(size[:2])
        elif op == "attention":
            made = size[2] * int(str(table[node.inputs[2].value].shape[2]))  # before it is divided
        elif op == "argmax":
            made = 0.0
        else:
            return False
        dtype = DTYPES[table[node.outputs[0]].dtype]
        if dtype.is_floating_point and made > _FULL * torch.finfo(dtype).max:
            return False
        at |= dict.fromkeys(node.outputs, made)
    return True
