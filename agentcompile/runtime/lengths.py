"""The lengths of prompt chunks that a GPU has programs for."""

from __future__ import annotations

LENGTHS = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
"""Tokens of a prefill program."""
PADDED = 2048
"""The longest that a shorter prompt is padded to. Of a longer one what fills a program runs first: padding would take
as long as what it pads."""
PIECES = (2048, 1024)
"""Tokens that the widest activations of a longer chunk are made for at a time: the first that memory allows."""


def served(capacity: int) -> tuple[int, ...]:
    """The lengths up to `capacity`, and `capacity` itself, which a chunk longer than all of them is padded to."""
    return tuple(sorted({*(length for length in LENGTHS if length < capacity), capacity}))
