"""Two products of one activation by one call, where each alone leaves some of a GPU idle.

A short chunk's keys and values are such: their products wait for memory and for the next launch, not for arithmetic.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, MutableMapping, Sequence
from typing import NamedTuple

import torch

from agentcompile.ir.program import Buffer, NativeCall, Program, TorchCall
from agentcompile.ir.region import Region
from agentcompile.runtime.sites import Action

_TILE = 64
"""Rows and columns of a result that a block makes of a small product."""


class _Product(NamedTuple):
    """Buffers of a product without a bias: activations [1, T, in], weights [out, in], and the result [1, T, out]."""

    x: str
    w: str
    y: str


def paired(
    program: Program,
    regions: Mapping[str, Region],
    env: MutableMapping[str, torch.Tensor],
    dying: Sequence[Sequence[str]],
    blocks: int,
) -> dict[int, Action]:
    """What runs instead of calls of `program`, by their places: two neighbours' products by the first, nothing by the
    second.

    They share their activation of several rows (one is for the matrix-vector product), are of one size, each with fewer
    tiles than the device runs `blocks` at once, and lie in memory so that one step leads from the first's operands to
    the second's: then both are one batched product. `env` holds the tensors that have a place; an activation without
    one is looked up there when its product runs. The names in `dying`, by call, are then dropped.
    """
    buffers = {buffer.name: buffer for buffer in program.buffers}
    found: dict[int, Action] = {}
    products = [_product(call, regions, buffers) for call in program.calls]
    for at in range(len(products) - 1):
        one, other = products[at], products[at + 1]
        if at in found or one is None or other is None or one.x != other.x:
            continue
        if not {one.w, one.y, other.w, other.y} <= env.keys() or not _small(env[one.w], env[one.y], blocks):
            continue
        weights, results = _stepped(env[one.w], env[other.w]), _stepped(env[one.y], env[other.y])
        if weights is not None and results is not None:
            dead = (*dying[at], *dying[at + 1])
            found[at] = functools.partial(_batched, env, one.x, weights.transpose(1, 2), results, dead)
            found[at + 1] = _nothing
    return found


def _product(
    call: NativeCall | TorchCall, regions: Mapping[str, Region], buffers: Mapping[str, Buffer]
) -> _Product | None:
    """A call that is nothing but a product; None for any other."""
    if isinstance(call, NativeCall) or call.call:
        return None
    body, names = regions[call.region].body, dict(call.bindings)
    if [node.op for node in body.nodes] != ["linear"] or len(body.nodes[0].inputs) != 2 or body.nodes[0].attrs:
        return None
    (node,), ((port, result),) = body.nodes, body.outputs
    if any(use.views for use in (*node.inputs, result)):
        return None
    x, w = (names[use.value] for use in node.inputs)
    return _Product(x, w, names[port]) if buffers[w].layout == "row-major" else None


def _small(w: torch.Tensor, y: torch.Tensor, blocks: int) -> bool:
    rows, columns = y.numel() // w.shape[0], w.shape[0]
    return rows > 1 and math.ceil(rows / _TILE) * math.ceil(columns / _TILE) < blocks


def _stepped(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor | None:
    """Two dense matrices [rows, columns] as one tensor [2, rows, columns]; None where the second does not lie behind
    the first in the same piece of memory."""
    same = one.shape == other.shape and one.dtype == other.dtype and one.is_contiguous() and other.is_contiguous()
    if not same or one.untyped_storage().data_ptr() != other.untyped_storage().data_ptr():
        return None
    step, columns = other.storage_offset() - one.storage_offset(), one.shape[-1]
    rows = one.numel() // columns
    return one.as_strided((2, rows, columns), (step, columns, 1)) if step >= one.numel() else None


@torch.no_grad()
def _batched(
    env: MutableMapping[str, torch.Tensor],
    name: str,
    weights: torch.Tensor,
    results: torch.Tensor,
    dead: Sequence[str],
) -> None:
    x = env[name].reshape(-1, weights.shape[1])
    torch.bmm(x.expand(2, *x.shape), weights, out=results)
    for gone in dead:
        env.pop(gone, None)


def _nothing() -> None:
    pass
