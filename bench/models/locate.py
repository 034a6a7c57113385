"""Checkpoints by name, for the compiler's `preset:NAME`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path

from .presets import PRESETS, materialise

SAMPLE = Path(__file__).parent / "sample"
"""The trained checkpoint that ships with the project."""

MAKERS: Mapping[str, Callable[[Path], Path]] = {
    "sample": lambda _: SAMPLE,
    **{name: functools.partial(materialise, name) for name in PRESETS},
}
"""Functions that make or find a checkpoint, by its name.

Each takes the directory to make it in and returns the directory where it is.
"""
