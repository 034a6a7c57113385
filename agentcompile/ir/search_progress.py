"""The event that says how far a search is. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from agentcompile.ir.cleaning import Clean


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchProgress(Clean):
    """How far search and step tuning are; times are wall time of this run's searches."""

    kind: Literal["search-progress"] = "search-progress"
    elapsed_s: float
    budget_s: float = 0.0
    """What they may take together; 0: any."""
    candidates: int = 0
    """Distinct ones that have a verdict."""
    step_ns: int = 0
    """The best step known: an estimate from its regions, then as measured; 0 before there is one."""
    measured: bool = False
    """Whether `step_ns` was measured in the step."""
    rounds: int = 0
    """Timed so far."""
    disturbed: float = 0.0
    """Share of them that others on the machine disturbed."""

    @property
    def eta_s(self) -> float:
        """Seconds until the time is used up; 0 when it is, or when there is no limit."""
        return max(self.budget_s - self.elapsed_s, 0.0)
