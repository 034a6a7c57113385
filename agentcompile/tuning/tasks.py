"""The unit of search: a region with everything that is known about it before a candidate is evaluated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from agentcompile.ir.advice import Advice
from agentcompile.ir.region import Region
from agentcompile.ir.target import Residency
from agentcompile.ir.template import Template
from agentcompile.space import Space


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneTask:
    """A region with its bounded space, the advice about it, and the memory level where the step finds its weights."""

    region: Region
    space: Space
    advice: Advice
    residency: Residency
    floor_ns: float
    """The roofline floor of one site in ns at that residency; 0 when the ceilings are not reliable."""


Consulting = Callable[[TuneTask, tuple[str, ...], int, bool], tuple[tuple[str, ...], ...] | None]
"""Asks a model what to try next of a task, from a focus and a round as `search.strategy.Consult` does. Only recorded
answers count where the last argument is False, as when no time is left."""


def templates_of(task: TuneTask) -> dict[str, Template]:
    """Return the templates of a task's space by id."""
    return {template.id: template for template in task.space.templates}
