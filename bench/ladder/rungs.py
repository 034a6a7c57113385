"""The rungs in order, each the one before it and one thing more."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentcompile.ir.trial import Rule


@dataclass(frozen=True, slots=True, kw_only=True)
class RungSpec:
    """What a rung is, before anything is timed."""

    name: str
    """Of its arm."""
    change: str
    """The one thing that it does and the rung before it does not: who owns a gain that no region can be given."""
    about: Mapping[str, str]
    """What runs, by kind of device."""
    rule: Mapping[str, Rule]
    """By kind of device the rule of choice of the lock that it runs; none where it runs none."""


def _by_kind(told: Any) -> dict[str, Any]:
    """A text that stands once is about both kinds of device."""
    return told if isinstance(told, dict) else {"cpu": told, "cuda": told}


_ROWS = tomllib.loads(Path(__file__).with_name("rungs.toml").read_text(encoding="utf-8"))["rung"]
RUNGS: tuple[RungSpec, ...] = tuple(
    RungSpec(**{**row, "about": _by_kind(row["about"]), "rule": _by_kind(row.get("rule", {}))}) for row in _ROWS
)
"""From the lowest to the highest."""
