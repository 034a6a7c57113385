"""The purpose of a template parameter, read from its name and its `about` line, for advisers."""

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
"""Patterns of parameter names; the first that matches decides the role."""


def role_of(param: Param) -> Role:
    """Return the role of a parameter; `other` when its name matches no pattern, or a value of it is not a number."""
    if not all(isinstance(value, int) for value in param.domain):
        return "other"
    return next((role for role, pattern in NAMES if pattern.search(param.name)), "other")


def in_bytes(param: Param, value: int, line_bytes: int) -> int:
    """Return a prefetch distance in bytes.

    The value counts cache lines when the domain is at most 128 or the `about` line speaks of lines and not of bytes.
    """
    numbers = [number for number in param.domain if isinstance(number, int)]
    lines = "line" in param.about and "byte" not in param.about
    return value * line_bytes if lines or max(numbers) <= 128 else value
