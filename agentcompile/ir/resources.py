"""The resources of a compiled kernel, as its assembler reports them."""

from __future__ import annotations

from dataclasses import dataclass

REGISTERS = 65_536
"""Registers of a multiprocessor (CUDA C++ Programming Guide, compute capabilities 8.0 to 12.0)."""
WARPS = {"sm_86": 48, "sm_87": 48, "sm_89": 48, "sm_120": 48}
"""Warps that a multiprocessor holds, by architecture; `MOST_WARPS` for all others."""
MOST_WARPS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """The resources of one entry, as the assembler reports them."""

    entry: str
    registers: int
    """Registers per thread."""
    shared_bytes: int = 0
    """Static shared memory per block."""
    spill_bytes: int = 0
    """Bytes that are spilled to local memory, per thread."""
    stack_bytes: int = 0


def most_warps(arch: str) -> int:
    """Return how many warps a multiprocessor holds."""
    return WARPS.get(arch.rstrip("af"), MOST_WARPS)


def warps_of(registers: int, arch: str) -> int:
    """Return how many warps of so many registers a thread a multiprocessor holds: they are given out 256 to a warp."""
    return min(most_warps(arch), REGISTERS // max(-(-registers * 32 // 256) * 256, 256))
