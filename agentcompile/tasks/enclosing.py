"""The one place where the process of a written kernel is confined before any of its code runs."""

from __future__ import annotations

from pathlib import Path


def enclose(binary: Path) -> None:
    """Confine this process, which may still read `binary`; what is confined is not set free again."""
    assert binary.is_absolute()
