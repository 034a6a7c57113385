"""Buffers for a kernel under test: 64-byte aligned, between redzones, with poison on demand.

A redzone holds random NaNs in every float format, so a read past the end shows in a result and a write past the end
shows as a changed redzone. `fenced` buffers end, or begin, at an unmapped page, where even a read that changes nothing
faults.
"""

from __future__ import annotations

import ctypes
import hashlib
import math
import mmap
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from agentcompile.backends import backend_of
from agentcompile.ops.reference import DTYPES

ALIGN = 64
REDZONE = 1024
"""The number of bytes before and after every buffer: several rows of the widest vector unit."""

Poison = Literal["low", "high", "nan", "zero"]
Fence = Literal["", "after", "before"]
"""The side of a buffer on which nothing is mapped; the other side has a redzone."""
POISONS: tuple[Poison, ...] = ("low", "high", "nan")
"""The patterns that outputs hold before a launch; scratch has zeros for the second, as new memory has."""
_FINITE = {"low": (7.25, 1234567), "high": (-28672.0, -3), "zero": (0.0, 0)}


def poison(tensor: Tensor, pattern: Poison) -> None:
    """Fill with a finite pattern or with NaN; integers get a value that cannot be an index."""
    number, integer = _FINITE.get(pattern, (math.nan, -(2**31) + 5))
    if tensor.dtype == torch.bool:
        tensor.fill_(pattern == "low")
    else:
        tensor.fill_(number if tensor.is_floating_point() else integer)


def fingerprint(tensor: Tensor) -> str:
    """Return a digest of a tensor's bytes at memory speed, from row and column sums, so that moved values show too."""
    flat = tensor.detach().contiguous().view(-1).view(torch.uint8)
    width = 4096
    body = flat[: flat.numel() // width * width].view(torch.int64).view(-1, width // 8)
    rest = flat[body.numel() * 8 :]
    h = hashlib.blake2b(rest.cpu().numpy().tobytes() if rest.numel() else b"", digest_size=16)
    if body.numel():
        h.update(torch.cat((body.sum(0), body.sum(1))).cpu().numpy().tobytes())  # a device is waited for once
    return h.hexdigest()


def _noise(nbytes: int, generator: torch.Generator) -> Tensor:
    """Return random bytes that are NaN as bf16, fp16, fp32 and fp64 at even offsets."""
    pairs = torch.empty((nbytes + 1) // 2, 2, dtype=torch.uint8)
    pairs[:, 0] = torch.randint(0xF1, 0x100, (len(pairs),), generator=generator)
    pairs[:, 1] = torch.where(torch.rand(len(pairs), generator=generator) < 0.5, 0x7F, 0xFF)
    return pairs.view(-1)[:nbytes]


def _fenced(nbytes: int, side: Fence) -> Tensor:
    # The last, or first, `nbytes` border an unmapped page; on PyTorch's default device.
    if backend_of(torch.get_default_device().type).own_memory:
        from agentcompile.validate.device_fence import fenced

        return fenced(nbytes, before=side == "before")
    page = mmap.PAGESIZE
    size = (nbytes + page - 1) // page * page
    memory = mmap.mmap(-1, page + size + page, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    libc = ctypes.CDLL(None, use_errno=True)
    protect = libc.mprotect
    protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for at in (0, page + size):
        if protect(whole.data_ptr() + at, page, 0) != 0:
            raise OSError(ctypes.get_errno(), "mprotect")
    inside = whole[page : page + size]
    return inside[:nbytes] if side == "before" else inside[size - nbytes :]


@dataclass(slots=True, kw_only=True)
class GuardedBuffer:
    """One tensor between two redzones."""

    name: str
    tensor: Tensor
    before: Tensor
    after: Tensor
    expected: tuple[Tensor, Tensor]

    def intact(self) -> bool:
        """Return whether neither redzone changed."""
        return torch.equal(self.before, self.expected[0]) and torch.equal(self.after, self.expected[1])

    def mend(self) -> None:
        """Restore the redzones."""
        self.before.copy_(self.expected[0])
        self.after.copy_(self.expected[1])


class GuardedArena:
    """The buffers of one candidate, by name."""

    def __init__(self, *, seed: int) -> None:
        self._generator = torch.Generator(torch.get_default_device()).manual_seed(seed)
        self._buffers: dict[str, GuardedBuffer] = {}
        self._whole: Tensor | None = None
        """The content of all unchanged redzones, concatenated; None until it is first needed."""

    def add(self, name: str, shape: tuple[int, ...], dtype: str, *, fenced: Fence = "") -> Tensor:
        """Make a buffer between redzones, or `fenced` on one side: right before it, or at most 63 bytes after it."""
        kind = DTYPES[dtype]
        nbytes = math.prod(shape) * kind.itemsize
        head = 0 if fenced == "before" else REDZONE
        tail = -nbytes % ALIGN + (0 if fenced == "after" else REDZONE)
        total = head + nbytes + tail
        if fenced:
            raw = _fenced(total, fenced)
        else:
            loose = torch.empty(total + ALIGN, dtype=torch.uint8)
            raw = loose[-loose.data_ptr() % ALIGN :][:total]
        before, middle, after = raw[:head], raw[head : head + nbytes], raw[head + nbytes :]
        expected = (_noise(head, self._generator), _noise(tail, self._generator))
        tensor = middle.view(kind).view(shape)
        buffer = GuardedBuffer(name=name, tensor=tensor, before=before, after=after, expected=expected)
        buffer.mend()
        self._buffers[name], self._whole = buffer, None
        return tensor

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensor of every buffer."""
        return {name: buffer.tensor for name, buffer in self._buffers.items()}

    def broken(self) -> list[str]:
        """Return and mend the buffers whose redzones changed; all are compared at once, which asks a device once."""
        buffers = self._buffers.values()
        if self._whole is None:
            self._whole = torch.cat([zone for buffer in buffers for zone in buffer.expected])
        if torch.equal(torch.cat([zone for buffer in buffers for zone in (buffer.before, buffer.after)]), self._whole):
            return []
        found = [buffer for buffer in buffers if not buffer.intact()]
        for buffer in found:
            buffer.mend()
        return [buffer.name for buffer in found]
