"""Checkpoints by name, as the compiler's `preset:NAME` asks for them."""

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
"""By name, what makes or finds the checkpoint: takes the directory to make it in, returns where it lies."""
