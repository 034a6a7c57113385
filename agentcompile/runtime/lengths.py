"""The lengths of prompt chunks that a GPU has programs for."""

from __future__ import annotations

LENGTHS = (8, 16, 32, 64, 128, 256, 512, 1024, 2048)
"""Tokens of a prefill program; a prompt of another length is padded to the next one."""


def served(capacity: int) -> tuple[int, ...]:
    """The lengths up to `capacity`, and `capacity` itself, which a chunk longer than all of them is padded to."""
    return tuple(sorted({*(length for length in LENGTHS if length < capacity), capacity}))
