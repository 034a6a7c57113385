"""Operators of a prompt's chunk that read packed weights where they lie, in place of unpacking them first."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

import torch

from agentcompile.layouts import LAYOUTS
from agentcompile.runtime.native import Executor
from agentcompile.runtime.openmp import team

_ROWS = 16
"""Rows of a tile in every layout here."""

Shape = tuple[int, ...]
PackedOperator = Callable[[Sequence[torch.Tensor]], torch.Tensor]
"""Of an operator's operands in its order; the second is the packed weight, flat."""


class _Team(ctypes.Structure):
    _fields_ = (
        ("parallel", ctypes.c_void_p),
        ("rank", ctypes.c_void_p),
        ("size", ctypes.c_void_p),
        ("threads", ctypes.c_int64),
    )


class Packed:
    """What a process can do with packed weights: rows of them anywhere, products where PyTorch's threads are libgomp's.

    Products run on PyTorch's own threads, which would otherwise spin on the cores beside them.
    """

    def __init__(self, executor: Executor) -> None:
        """`executor` has the entry; no thread of its pool is used."""
        self._product = executor.product
        addresses = team()
        self._team = None if addresses is None else _Team(*addresses)

    def operator(self, name: str, layout: str, shape: Shape, dtype: torch.dtype) -> PackedOperator | None:
        """Operator `name` for a weight of `shape` that lies in `layout`; None where it must be unpacked."""
        if dtype not in LAYOUTS[layout].products or len(shape) != 2:
            return None
        if name == "embedding":
            return lambda tensors: rows_of(tensors[1], tensors[0], layout, shape)
        if name == "linear" and self._team is not None:
            return lambda tensors: self._linear(shape, *tensors)
        return None

    def _linear(self, shape: Shape, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None = None) -> torch.Tensor:
        """x [B, T, in] times w, of `shape` [out, in], transposed, plus b [out] -> [B, T, out]; summed in float32 and
        rounded once."""
        assert self._team is not None
        x, b = x.contiguous(), None if b is None else b.contiguous()
        y = x.new_empty(*x.shape[:-1], shape[0])
        self._team.threads = torch.get_num_threads()
        self._product(
            ctypes.byref(self._team),
            x.data_ptr(),
            w.data_ptr(),
            None if b is None else b.data_ptr(),
            y.data_ptr(),
            x.numel() // shape[1],
            shape[1],
            shape[0],
            x.dtype == torch.float32,
        )
        return y


def rows_of(flat: torch.Tensor, ids: torch.Tensor, layout: str, shape: Shape) -> torch.Tensor:
    """Rows `ids`, int64 of any shape, of a table of `shape` that lies packed -> [*ids.shape, width].

    Raises IndexError for a row that the table has not.
    """
    group = LAYOUTS[layout].numel((1, 1)) // _ROWS  # neighbours of a row that lie together
    groups = -(-shape[1] // group)
    if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < shape[0]:
        raise IndexError(f"row {int(ids.min())} or {int(ids.max())} of a table of {shape[0]}")
    cells = flat.view(-1, groups, _ROWS, group)[ids // _ROWS, :, ids % _ROWS]
    return cells.reshape(*ids.shape, groups * group)[..., : shape[1]].contiguous()
