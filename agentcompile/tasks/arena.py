"""Buffers that several processes map: each lies flush against a page that is not mapped, between redzones.

The process that runs a kernel has nothing mapped on both sides of every block; the process that examines the results
maps the file as a whole, and so sees outputs, inputs and redzones without asking the first.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable, Mapping
from typing import Literal

import torch
from torch import Tensor

from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.tasks.wire import ArenaFile, Block

Side = Literal["after", "before"]
"""Which side of every buffer has nothing mapped right next to it, but for what aligns it."""
ALIGN = 64
_PAGE = mmap.PAGESIZE
_GAP = 1 << 20
"""The bytes on both sides of a block where nothing is mapped: they cost addresses alone."""
_PROT_RW, _MAP_SHARED, _MAP_FIXED, _MAP_PRIVATE, _MAP_ANONYMOUS, _MAP_NORESERVE = 3, 0x01, 0x10, 0x02, 0x20, 0x4000


def blocks_of(sizes: Mapping[str, int], side: Side) -> tuple[Block, ...]:
    """Return the place of every buffer, given its bytes; a page of each block at least is a redzone."""
    found, offset = list[Block](), 0
    for name, nbytes in sizes.items():
        aligned = -(-nbytes // ALIGN) * ALIGN
        size = -(-aligned // _PAGE) * _PAGE + _PAGE
        start = 0 if side == "before" else size - aligned
        found.append(Block(name=name, offset=offset, size=size, start=start, nbytes=nbytes))
        offset += size
    return tuple(found)


class ArenaOwner:
    """A file in memory that holds an arena; it is gone when its owner closes it, and no process maps it any longer."""

    def __init__(self, sizes: Mapping[str, int], side: Side) -> None:
        """Make the file.

        Raises:
            AgentCompileError: there is no memory for it (environment).
        """
        blocks = blocks_of(sizes, side)
        self._fd = os.memfd_create("agentcompile-task")
        size = sum(block.size for block in blocks)
        try:
            os.posix_fallocate(self._fd, 0, size)
        except OSError as error:
            os.close(self._fd)
            text = f"{size} bytes of buffers for a task cannot be had: {error.strerror}"
            raise AgentCompileError(text, exit_code=ExitCode.ENVIRONMENT, hint="free memory") from error
        self.file = ArenaFile(path=f"/proc/{os.getpid()}/fd/{self._fd}", size=size, blocks=blocks)

    def close(self) -> None:
        """Close the file; calling it again does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def close_all(owners: Iterable[ArenaOwner]) -> None:
    """Close arenas."""
    for owner in owners:
        owner.close()


class ArenaView:
    """An arena as the examining process maps it: bytes of buffers and of their redzones."""

    def __init__(self, file: ArenaFile, seed: int) -> None:
        fd = os.open(file.path, os.O_RDWR)
        try:
            memory = mmap.mmap(fd, file.size)
        finally:
            os.close(fd)
        self._whole = torch.frombuffer(memory, dtype=torch.uint8)
        self._blocks = {block.name: block for block in file.blocks}
        generator = torch.Generator().manual_seed(seed)
        self._noise = {name: _noise(block.size, generator) for name, block in self._blocks.items()}
        for name, block in self._blocks.items():
            self._whole[block.offset : block.offset + block.size].copy_(self._noise[name])

    def buffer(self, name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        """Return a buffer as a dense tensor."""
        block = self._blocks[name]
        start = block.offset + block.start
        return self._whole[start : start + block.nbytes].view(dtype).view(shape)

    def broken(self) -> list[str]:
        """Return and mend the buffers whose redzones changed."""
        found = list[str]()
        for name, block in self._blocks.items():
            noise, whole = self._noise[name], self._whole[block.offset : block.offset + block.size]
            ends = (slice(0, block.start), slice(block.start + block.nbytes, block.size))
            if all(torch.equal(whole[part], noise[part]) for part in ends):
                continue
            found.append(name)
            for part in ends:
                whole[part].copy_(noise[part])
        return found


def _noise(nbytes: int, generator: torch.Generator) -> Tensor:
    """Return random bytes that are NaN as bf16, fp16, fp32 and fp64 at even offsets."""
    pairs = torch.empty(nbytes // 2, 2, dtype=torch.uint8)
    pairs[:, 0] = torch.randint(0xF1, 0x100, (len(pairs),), generator=generator)
    pairs[:, 1] = torch.where(torch.rand(len(pairs), generator=generator) < 0.5, 0x7F, 0xFF)
    return pairs.view(-1)


def mapped(file: ArenaFile) -> dict[str, int]:
    """Map an arena with nothing mapped around its blocks; return the address of every buffer by name.

    It stays mapped as long as the process lives.

    Raises:
        OSError: it cannot be mapped.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (
        ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64,
    )  # fmt: skip

    def mapping(at: int | None, size: int, protection: int, flags: int, fd: int, offset: int) -> int:
        found = libc.mmap(at, size, protection, flags, fd, offset)
        if found is None or found == ctypes.c_void_p(-1).value:
            raise OSError(ctypes.get_errno(), "mmap")
        return int(found)

    reserved = file.size + (len(file.blocks) + 1) * _GAP
    base = mapping(None, reserved, 0, _MAP_PRIVATE | _MAP_ANONYMOUS | _MAP_NORESERVE, -1, 0)
    fd = os.open(file.path, os.O_RDWR)
    addresses = dict[str, int]()
    try:
        for number, block in enumerate(file.blocks):
            at = base + block.offset + (number + 1) * _GAP
            mapping(at, block.size, _PROT_RW, _MAP_SHARED | _MAP_FIXED, fd, block.offset)
            addresses[block.name] = at + block.start
    finally:
        os.close(fd)
    return addresses
