"""The search of a whole step: its task, whose candidates are moves, and the trial of a move.

A move replaces the choice of one region, or those of two regions that follow one another. Making it times the
alternatives of these regions inside the step and keeps the fastest step, from which the next move
starts. Regions are named by their ids.
"""

from __future__ import annotations

from dataclasses import dataclass

from agentcompile.search.strategy import Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """Replaces the choice of one region, or of two that follow one another, by the one that makes the step fastest."""

    regions: tuple[str, ...]

    @property
    def id(self) -> str:
        """The ids of its regions, joined by ``+``."""
        return "+".join(self.regions)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTask:
    """The step of one regime: the moves that are legal in it."""

    singles: tuple[Move, ...]
    """Moves of one region each: first the regions that no earlier step chose, then their neighbours. Each group is
    ordered by the regions' share of the step, largest first."""
    pairs: tuple[Move, ...]
    """Moves of two regions that follow one another at several sites; at least one was not chosen by an earlier step."""
    passes: int
    """The most passes over all regions. A region is visited again only when it or a neighbour changed."""

    @property
    def candidates(self) -> tuple[Move, ...]:
        """Every move, those of single regions first."""
        return (*self.singles, *self.pairs)

    @property
    def advised(self) -> tuple[Move, ...]:
        """Every move, in the order in which descent makes them at first."""
        return self.candidates


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTrial:
    """A move that was made, and how much faster the step became."""

    candidate: Move
    log_ratio: float = 0.0
    """The logarithm of how much faster the step became; 0 where it stayed as it was."""
    touched: frozenset[str] = frozenset()
    """The regions that changed, and those that run right before or after them."""


StepStrategy = Strategy[StepTask, StepTrial, Move]
"""A strategy that searches a whole step."""
