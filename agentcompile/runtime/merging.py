"""Neighbouring products of one activation merged into one call, where each alone leaves some of a GPU idle.

The products of a short chunk wait for memory, for the last tiles of a wave and for the next launch, not for arithmetic.
Two of one size become a batch. Products of any sizes whose weights lie one behind another become a single product, if
the kernel that reads their results can read them as columns of its matrix.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import NamedTuple

import torch

from agentcompile.ir.program import Buffer, NativeCall, Program, TorchCall
from agentcompile.ir.region import Region
from agentcompile.runtime.sites import Action

_TILE = 64  # the rows and columns of the tile of a small product that one block computes
_WAVES = 8
"""The number of waves below which a product gains by a merge.

On an H200 two products of 12 layers each took 17 to 1 % less time as a batch, for 16 to 512 tokens; beyond that, the
part of the last wave that is idle is small.
"""
Room = Callable[[tuple[int, ...], torch.dtype], torch.Tensor]
"""A function that returns a dense scratch tensor, unused by others while a layer runs."""


class _Product(NamedTuple):
    """A product without a bias: activations [1, T, in] by name, weights [out, in], and the result [1, T, out]."""

    x: str
    w: torch.Tensor
    y: torch.Tensor
    made: str

    @property
    def tiles(self) -> int:
        rows, columns = self.y.numel() // self.w.shape[0], self.w.shape[0]
        return math.ceil(rows / _TILE) * math.ceil(columns / _TILE)


def merged(
    program: Program,
    regions: Mapping[str, Region],
    env: MutableMapping[str, torch.Tensor],
    dying: Sequence[Sequence[str]],
    blocks: int,
    room: Room,
) -> dict[int, Action]:
    """Return actions that replace calls of `program`, by call index; a merged group runs in its first call.

    Products of a group share an activation of several rows (one row is left to the matrix-vector product) and are small
    for a device that runs `blocks` at once. `env` holds the tensors that have a place; an activation without one is
    looked up there when its product runs. Results that become columns of one matrix get new tensors in `env`, within
    what `room` returns, and the workspace that tells their reader the matrix's width is filled with it. The names in
    `dying`, by call, are removed from `env` after the call.
    """
    buffers = {buffer.name: buffer for buffer in program.buffers}
    users = _users(program)
    products = [_product(call, regions, buffers, env) for call in program.calls]
    found: dict[int, Action] = {}
    for at in range(len(products)):
        run = _neighbours(products[at:]) if at not in found else []
        together = _side_by_side(run, program, users, env, blocks, room) or _batch(run, env, blocks)
        if together is not None:
            act, count = together
            dead = tuple(itertools.chain.from_iterable(dying[at : at + count]))
            found[at] = functools.partial(_dropping, act, env, dead)
            found |= dict.fromkeys(range(at + 1, at + count), lambda: None)
    return found


def _neighbours(products: Sequence[_Product | None]) -> list[_Product]:
    """Return the products at the front that read the same activation as the first."""
    found: list[_Product] = []
    for one in products:
        if one is None or (found and one.x != found[0].x):
            break
        found.append(one)
    return found


_Together = tuple[Action, int] | None
"""The action that runs a group of products, and the size of the group; None when they cannot be merged."""


def _batch(run: Sequence[_Product], env: Mapping[str, torch.Tensor], blocks: int) -> _Together:
    """Merge the first two into a batch, where one stride leads from the first's operands to the second's."""
    if len(run) < 2 or run[0].tiles >= _WAVES * blocks:
        return None
    one, other = run[:2]
    weights, results = _stepped(one.w, other.w), _stepped(one.y, other.y)
    if weights is None or results is None:
        return None
    return functools.partial(_batched, env, one.x, weights.transpose(1, 2), results), 2


def _side_by_side(
    run: Sequence[_Product],
    program: Program,
    users: Mapping[str, Sequence[int]],
    env: MutableMapping[str, torch.Tensor],
    blocks: int,
    room: Room,
) -> _Together:
    """Merge all of them, where their weights form one matrix and one launch reads all results, at any row pitch."""
    if len(run) < 2 or min(product.tiles for product in run) >= blocks:
        return None
    space = _pitch_of(run, program, users)
    weights = _joined([product.w for product in run])
    if not space or weights is None:
        return None
    rows, width = run[0].y.numel() // run[0].w.shape[0], weights.shape[0]
    whole, begin = room((rows, width), weights.dtype), 0
    for product in sorted(run, key=lambda product: product.w.storage_offset()):
        columns = product.w.shape[0]
        env[product.made] = whole[:, begin : begin + columns].view(product.y.shape)
        begin += columns
    env[space].fill_(width)
    return functools.partial(_multiplied, env, run[0].x, weights.t(), whole), len(run)


def _pitch_of(run: Sequence[_Product], program: Program, users: Mapping[str, Sequence[int]]) -> str:
    """Return the workspace that tells the launches reading exactly these results their matrix's width; or none.

    Launches of one kernel may share it: then together they read each result once, and nothing else at its width.
    """
    names = sorted(product.made for product in run)
    readers = [program.calls[at] for at in sorted({at for name in names for at in users[name][1:]})]
    spaces = {space for call in readers for name, space in _pitched(call) if name in names}
    space = spaces.pop() if len(spaces) == 1 else ""
    readers = [program.calls[at] for at in users.get(space, ())]
    pitched = sorted(name for call in readers for name, width in _pitched(call) if width == space)
    once = all(sum(call.uses.count(name) for call in readers) == 1 for name in names)
    return space if pitched == names and once else ""


def _pitched(call: NativeCall | TorchCall) -> list[tuple[str, str]]:
    """Return the buffers that a launch reads at any row pitch, each with the workspace that holds it."""
    if not isinstance(call, NativeCall):
        return []
    of = dict(zip(call.launch.arguments, call.pointers, strict=True))
    return [(of[name], of[space]) for name, space in call.launch.pitched]


def _users(program: Program) -> dict[str, list[int]]:
    """Return the indices of the calls that use each buffer; a use of a part counts as a use of the whole buffer too."""
    whole = {buffer.name: buffer.whole for buffer in program.buffers if buffer.whole}
    found: dict[str, list[int]] = {}
    for at, call in enumerate(program.calls):
        for name in {*call.uses, *(whole[used] for used in call.uses if used in whole)}:
            found.setdefault(name, []).append(at)
    return found


def _product(
    call: NativeCall | TorchCall,
    regions: Mapping[str, Region],
    buffers: Mapping[str, Buffer],
    env: Mapping[str, torch.Tensor],
) -> _Product | None:
    """Return the call as a product; None unless it is only that and its operands and result have a place."""
    if isinstance(call, NativeCall) or call.call:
        return None
    body, names = regions[call.region].body, dict(call.bindings)
    if [node.op for node in body.nodes] != ["linear"] or len(body.nodes[0].inputs) != 2 or body.nodes[0].attrs:
        return None
    (node,), ((port, result),) = body.nodes, body.outputs
    if any(use.views for use in (*node.inputs, result)):
        return None
    x, w, made = *(names[use.value] for use in node.inputs), names[port]
    if buffers[w].layout != "row-major" or not {w, made} <= env.keys() or env[made].numel() == env[w].shape[0]:
        return None
    return _Product(x, env[w], env[made], made)


def _stepped(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor | None:
    """View two dense matrices as one tensor [2, rows, columns]; None unless they are alike and lie in order."""
    same = one.shape == other.shape and one.dtype == other.dtype and one.is_contiguous() and other.is_contiguous()
    if not same or one.untyped_storage().data_ptr() != other.untyped_storage().data_ptr():
        return None
    step, columns = other.storage_offset() - one.storage_offset(), one.shape[-1]
    rows = one.numel() // columns
    return one.as_strided((2, rows, columns), (step, columns, 1)) if step >= one.numel() else None


def _joined(matrices: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """View dense matrices that lie directly one behind another in one storage as one matrix of all rows; else None."""
    ordered = sorted(matrices, key=lambda matrix: matrix.storage_offset())
    for one, other in itertools.pairwise(ordered):
        alike = one.shape[1] == other.shape[1] and one.dtype == other.dtype
        alike = alike and one.is_contiguous() and other.is_contiguous()
        alike = alike and one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
        if not alike or other.storage_offset() != one.storage_offset() + one.numel():
            return None
    rows, columns = sum(matrix.shape[0] for matrix in ordered), ordered[0].shape[1]
    return ordered[0].as_strided((rows, columns), (columns, 1))


def _batched(env: Mapping[str, torch.Tensor], name: str, weights: torch.Tensor, results: torch.Tensor) -> None:
    x = env[name].reshape(-1, weights.shape[1])
    torch.bmm(x.expand(2, *x.shape), weights, out=results)


def _multiplied(env: Mapping[str, torch.Tensor], name: str, weights: torch.Tensor, result: torch.Tensor) -> None:
    torch.mm(env[name].reshape(-1, weights.shape[0]), weights, out=result)


@torch.no_grad()
def _dropping(act: Action, env: MutableMapping[str, torch.Tensor], dead: Sequence[str]) -> None:
    act()
    for gone in dead:
        env.pop(gone, None)
