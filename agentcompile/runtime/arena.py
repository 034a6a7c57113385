"""Memory for weights, states and activations: large anonymous mappings with huge pages, divided once into tensors."""

from __future__ import annotations

import math
import mmap

import torch

from agentcompile.backends import backend_of

ALIGN = 64
"""The alignment in bytes: a cache line and a full-width vector register."""


def aligned(nbytes: int) -> int:
    """Round a size up to `ALIGN` bytes."""
    return (nbytes + ALIGN - 1) // ALIGN * ALIGN


class Arena:
    """One zero-filled piece of memory of a fixed size; tensors carved from it keep it alive."""

    def __init__(self, nbytes: int, device: str = "cpu") -> None:
        size = max(aligned(nbytes), mmap.PAGESIZE)
        self._next = 0
        self._bytes = backend_of(device).zeroed(size, device)

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        return self._bytes.numel()

    def take(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Carve the next aligned tensor.

        Raises:
            MemoryError: the arena is full.
        """
        tensor = self.view(self._next, shape, dtype)
        self._next += aligned(tensor.numel() * tensor.element_size())
        return tensor

    def view(self, offset: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return the tensor of `shape` and `dtype` at byte `offset`.

        Raises:
            MemoryError: the tensor does not fit behind `offset`.
        """
        nbytes = math.prod(shape) * dtype.itemsize
        if offset + nbytes > self._bytes.numel():
            raise MemoryError(f"arena of {self._bytes.numel()} bytes cannot hold {nbytes} more at {offset}")
        return self._bytes[offset : offset + nbytes].view(dtype).view(shape)
