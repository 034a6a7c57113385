"""The search of a whole step: its task, whose candidates are moves, and what a move came to.

A move replaces the choice of one region, or those of two regions that follow one another. Making it times the
alternatives of these regions inside the step and keeps the fastest step; what the step has afterwards is what the next
move starts from. Regions are named by their ids.
"""

from __future__ import annotations

from dataclasses import dataclass

from agentcompile.search.strategy import Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """Replace the choice of one region, or of two that follow one another, by what makes the step fastest."""

    regions: tuple[str, ...]

    @property
    def id(self) -> str:
        """The ids of its regions."""
        return "+".join(self.regions)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTask:
    """The step of one regime: the moves that are legal in it."""

    singles: tuple[Move, ...]
    """Of one region each: those that this step is the first to choose, then others beside them, each group by their
    share of the step, largest first."""
    pairs: tuple[Move, ...]
    """Of two regions that follow one another at several sites, of which this step is the first to choose one."""
    passes: int
    """How often all regions may be gone through: a region is visited again when it or a neighbour changed."""

    @property
    def candidates(self) -> tuple[Move, ...]:
        """Every move."""
        return (*self.singles, *self.pairs)

    @property
    def advised(self) -> tuple[Move, ...]:
        """Every move, in the order in which descent makes them at first."""
        return self.candidates


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTrial:
    """What a move came to."""

    candidate: Move
    log_ratio: float = 0.0
    """The logarithm of how much faster the step became; 0 where it stayed as it was."""
    touched: frozenset[str] = frozenset()
    """The regions that changed, and those that run right before or after them."""


StepStrategy = Strategy[StepTask, StepTrial, Move]
"""Searches a whole step."""
