"""The one place where the process of a written kernel is confined before any of its code runs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def enclose(readable: Iterable[Path]) -> None:
    """Confine this process, which may still read the files `readable`; it is not set free again."""
    assert all(path.is_absolute() for path in readable)
