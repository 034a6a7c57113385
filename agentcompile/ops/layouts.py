"""Resident layouts of weights: one table of how each packs, unpacks and gathers rows, and which dtypes it is for.

In: a row-major tensor. Out: a flat tensor of the same dtype with zero padding, and back. Every template that names a
layout reads what `pack` writes here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from agentcompile.ops.reference import DTYPES

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidentLayout:
    """One resident layout of a weight."""

    pack: Callable[[torch.Tensor], torch.Tensor]
    """Packs a dense row-major tensor into a flat one; that of the row-major layout may share its memory."""
    unpack: Callable[[torch.Tensor, Shape], torch.Tensor]
    """Turns the flat tensor and the logical shape into a row-major tensor of that shape."""
    take: Callable[[torch.Tensor, torch.Tensor, Shape], torch.Tensor]
    """Returns rows [*rows, K] of the flat tensor by int64 indices and shape [N, K]; IndexError outside 0 … N - 1."""
    numel: Callable[[Shape], int]
    """Returns the number of elements of the flat tensor for a logical shape, padding included."""
    dtypes: tuple[torch.dtype, ...] = ()
    """The dtypes that the layout is made for; empty means any."""
    matrix: bool = True
    """Whether the layout takes two-dimensional tensors only."""
    products: tuple[torch.dtype, ...] = ()
    """The dtypes for which `runtime.packed` multiplies with the packed weight; others are unpacked first."""

    def applies(self, shape: Shape, dtype: torch.dtype) -> bool:
        """Return whether the layout can hold a tensor of this shape and dtype."""
        return (len(shape) == 2 or not self.matrix) and (not self.dtypes or dtype in self.dtypes)


def _tiled(rows: int, group: int, dtypes: tuple[torch.dtype, ...], products: tuple[torch.dtype, ...]) -> ResidentLayout:
    """Make the layout [N, K] -> [ceil(N / rows)][ceil(K / group)][rows][group], zero-padded."""

    def grid(shape: Shape) -> tuple[int, int]:
        if len(shape) != 2:
            raise ValueError(f"a packed layout takes a matrix, not shape {tuple(shape)}")
        return -(-shape[0] // rows), -(-shape[1] // group)

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        (n, k), (tiles, groups) = tensor.shape, grid(tuple(tensor.shape))
        if (n, k) != (tiles * rows, groups * group):
            tensor = torch.nn.functional.pad(tensor, (0, groups * group - k, 0, tiles * rows - n))
        flat = torch.empty(tiles * groups * rows * group, dtype=tensor.dtype)
        source, target = _words(tensor.contiguous(), group), _words(flat, group)
        target.view(tiles, groups, rows, -1).copy_(source.view(tiles, rows, groups, -1).transpose(1, 2))
        return flat

    def unpack(flat: torch.Tensor, shape: Shape) -> torch.Tensor:
        tiles, groups = grid(shape)
        whole = torch.empty(tiles * rows, groups * group, dtype=flat.dtype)
        source, target = _words(flat, group), _words(whole, group)
        target.view(tiles, rows, groups, -1).copy_(source.view(tiles, groups, rows, -1).transpose(1, 2))
        return whole[: shape[0], : shape[1]].contiguous()

    def take(flat: torch.Tensor, wanted: torch.Tensor, shape: Shape) -> torch.Tensor:
        low, high = (int(end) for end in wanted.aminmax()) if wanted.numel() else (0, 0)
        if low < 0 or high >= shape[0]:  # padding rows of the last tile exist in memory
            raise IndexError(f"rows {low} to {high} of a table of {shape[0]}")
        tiles, groups = grid(shape)
        cells = flat.view(tiles, groups, rows, group)[wanted // rows, :, wanted % rows]
        return cells.reshape(*wanted.shape, groups * group)[..., : shape[1]].contiguous()

    def numel(shape: Shape) -> int:
        tiles, groups = grid(shape)
        return tiles * groups * rows * group

    return ResidentLayout(pack=pack, unpack=unpack, take=take, numel=numel, dtypes=dtypes, products=products)


def _words(tensor: torch.Tensor, group: int) -> torch.Tensor:
    """Return the tensor with each group as one 32-bit integer when it is 4 bytes wide, which copies twice as fast."""
    if group * tensor.element_size() != 4:
        return tensor
    # A slice may begin in the middle of a 32-bit word.
    return (tensor.clone() if tensor.storage_offset() % group else tensor).view(torch.int32)


LAYOUTS: dict[str, ResidentLayout] = {
    "row-major": ResidentLayout(  # as in the checkpoint: rows one after another
        pack=lambda tensor: tensor.reshape(-1),
        unpack=lambda flat, shape: flat.view(shape),
        take=lambda flat, wanted, shape: torch.nn.functional.embedding(wanted, flat.view(shape)),
        numel=math.prod,
        matrix=False,
    ),
    # Tiles of 16 rows, two neighbours of each row at a time: one 512-bit vector of 16-bit pairs, a lane a row.
    "rows16-k2": _tiled(16, 2, (torch.bfloat16, torch.float16), (torch.bfloat16,)),
    # Tiles of 16 rows, one element of each at a time: one 512-bit vector of floats, a lane a row.
    "rows16-k1": _tiled(16, 1, (torch.float32,), (torch.float32,)),
}
"""Every layout by name. Templates, plans and lockfiles use these names."""


def multiplied(name: str, dtype: str) -> bool:
    """Return whether prefill products read a weight in layout `name` and graph dtype `dtype` without unpacking it."""
    return DTYPES.get(dtype, torch.int64) in LAYOUTS[name].products


def fits(name: str, shape: tuple[int | str, ...], dtype: str) -> bool:
    """Return whether layout `name` can hold a tensor of this shape and graph dtype."""
    sizes = tuple(dim for dim in shape if isinstance(dim, int))
    return name in LAYOUTS and len(sizes) == len(shape) and LAYOUTS[name].applies(sizes, DTYPES.get(dtype, torch.int64))
