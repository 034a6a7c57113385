"""What a parameter does, read from its name and its `about` line: the part of a manifest that advisers understand."""

from __future__ import annotations

import re
from typing import Literal

from agentcompile.ir.template import Param

Role = Literal["prefetch", "streams", "unroll", "split", "tile", "threads", "other"]
NAMES: tuple[tuple[Role, re.Pattern[str]], ...] = (
    ("prefetch", re.compile(r"AHEAD|PREFETCH|DISTANCE")),
    ("split", re.compile(r"SPLIT|PARTS")),
    ("threads", re.compile(r"THREADS|WORKERS")),
    ("unroll", re.compile(r"UNROLL|VECS|VECTORS|CHAINS")),
    ("streams", re.compile(r"STREAMS|TILES|ROWS")),
    ("tile", re.compile(r"TILE|CHUNK|BLOCK|SLOTS")),
)
"""The first pattern that is found in a name decides."""


def role_of(param: Param) -> Role:
    """The role of a parameter; `other` when its name says nothing known, or it is not a number."""
    if not all(isinstance(value, int) for value in param.domain):
        return "other"
    return next((role for role, pattern in NAMES if pattern.search(param.name)), "other")


def in_bytes(param: Param, value: int, line_bytes: int) -> int:
    """A prefetch distance in bytes; a domain of small numbers, or one whose line says so, counts cache lines."""
    numbers = [number for number in param.domain if isinstance(number, int)]
    lines = "line" in param.about and "byte" not in param.about
    return value * line_bytes if lines or max(numbers) <= 128 else value
