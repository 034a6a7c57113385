"""The lengths of prefill chunks that a GPU has programs for."""

from __future__ import annotations

LENGTHS = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
"""The numbers of tokens for which prefill programs are made."""
PADDED = 2048
"""The longest length that a shorter chunk is padded to.

Of a longer chunk, the part that fills whole programs runs first: padding would take as long as what it pads.
"""
PIECES = (2048, 1024)
"""Tokens for which a longer chunk's widest activations are made at a time: the first that memory allows is used."""


def served(capacity: int) -> tuple[int, ...]:
    """Return the lengths below `capacity`, and `capacity`, to which a chunk longer than them is padded."""
    return tuple(sorted({*(length for length in LENGTHS if length < capacity), capacity}))
