"""Operators of a prefill chunk that read packed weights where they lie, instead of unpacking them first."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

import torch

from agentcompile.ops.layouts import LAYOUTS, Shape
from agentcompile.runtime.native import Executor
from agentcompile.runtime.openmp import team

PackedOperator = Callable[[Sequence[torch.Tensor]], torch.Tensor]
"""An operator of its operands in their order; the second is the packed weight, flat."""


class _Team(ctypes.Structure):
    _fields_ = (
        ("parallel", ctypes.c_void_p),
        ("rank", ctypes.c_void_p),
        ("size", ctypes.c_void_p),
        ("threads", ctypes.c_int64),
    )


class Packed:
    """The operators that this process can run on packed weights.

    Rows of them (embeddings) are always possible, products where PyTorch's threads are libgomp's. Products run on
    PyTorch's own threads, which would otherwise spin on the cores beside them.
    """

    def __init__(self, executor: Executor) -> None:
        """Take the product's entry point from `executor`; no thread of its pool is used."""
        self._product = executor.product
        addresses = team()
        self._team = None if addresses is None else _Team(*addresses)

    def operator(self, name: str, layout: str, shape: Shape, dtype: torch.dtype) -> PackedOperator | None:
        """Return operator `name` for a weight of `shape` that lies in `layout`; None where it must be unpacked."""
        kept = LAYOUTS[layout]
        if dtype not in kept.products or len(shape) != 2:
            return None
        if name == "embedding":
            return lambda tensors: kept.take(tensors[1], tensors[0], shape)
        if name == "linear" and self._team is not None:
            return lambda tensors: self._linear(shape, *tensors)
        return None

    def _linear(self, shape: Shape, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None = None) -> torch.Tensor:
        """Multiply x [B, T, in] by w [out, in] transposed, add b [out] -> [B, T, out]: float32, rounded once."""
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
