"""What a lock records of the model that runs it: its plans as a view to read, and its evidence as a report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from agentcompile.ir.digest import Json
from agentcompile.ir.template import ParamValue


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionChoice:
    """What one region of a plan runs."""

    region: str
    """The region's name, as in `linear-merged@hidden=256`."""
    id: str
    """The region's digest, which tells regions of one name apart."""
    sites: int
    """The number of places in the graph that run this choice."""
    use: Literal["kernel", "fallback"]
    """Whether a kernel from a template runs, or PyTorch."""
    template: str
    """The template's id; empty for PyTorch."""
    params: Mapping[str, ParamValue]
    """The template's parameters; it cannot be written to."""
    decided_by: str
    """`measured`, `adviser`, `human` or `fallback`."""
    reason: str
    """Why, where it was not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegimePlan:
    """The choices of every region in one phase and regime."""

    phase: Literal["decode", "prefill"]
    batch: int
    """Sequences in a step."""
    context: tuple[int, int]
    """The least and the greatest number of cached tokens that the plan serves."""
    choices: tuple[RegionChoice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedLock:
    """A lock as its model shows it."""

    plan: tuple[RegimePlan, ...] = ()
    report: Mapping[str, Json] = field(default_factory=dict)
