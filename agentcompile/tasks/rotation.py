"""How many sets of buffers timed launches walk over."""

from __future__ import annotations

SETS, FEW_SETS = 4, 2
"""The sets of buffers that launches walk over, and how many where they are large."""
LARGE_BYTES = 64 << 20
"""The bytes of one set beyond which there are few."""
