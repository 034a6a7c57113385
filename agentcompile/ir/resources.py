"""The resources of a compiled kernel, as its assembler reports them."""

from __future__ import annotations

from dataclasses import dataclass


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
