"""The rungs in order; each does one thing more than the one before it."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentcompile.ir.trial import Rule


@dataclass(frozen=True, slots=True, kw_only=True)
class RungSpec:
    """The definition of a rung."""

    name: str
    """The name of its arm."""
    change: str
    """The one thing that it does and the rung before it does not; it owns gains that belong to no region."""
    about: Mapping[str, str]
    """A description of what runs, by kind of device."""
    rule: Mapping[str, Rule]
    """By kind of device, the `--choose` rule of the lock that it runs; no entry where it runs no lock."""


def _by_kind(told: Any) -> dict[str, Any]:
    """Return a table by kind of device; a single text applies to both kinds."""
    return told if isinstance(told, dict) else {"cpu": told, "cuda": told}


_ROWS = tomllib.loads(Path(__file__).with_name("rungs.toml").read_text(encoding="utf-8"))["rung"]
RUNGS: tuple[RungSpec, ...] = tuple(
    RungSpec(**{**row, "about": _by_kind(row["about"]), "rule": _by_kind(row.get("rule", {}))}) for row in _ROWS
)
"""All rungs from the lowest to the highest."""
