"""The unit of search: a region with everything that is known about it before a candidate is tried."""

from __future__ import annotations

from dataclasses import dataclass

from agentcompile.ir.advice import Advice
from agentcompile.ir.region import Region
from agentcompile.ir.target import Residency
from agentcompile.ir.template import Template
from agentcompile.space import Space


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneTask:
    """A region with its bounded space, what the adviser says of it, and where the step finds its weights."""

    region: Region
    space: Space
    advice: Advice
    residency: Residency
    floor_ns: float
    """The roofline floor of one site at that residency."""


def templates_of(task: TuneTask) -> dict[str, Template]:
    """Return the templates of a task's space by id."""
    return {template.id: template for template in task.space.templates}
