"""The event that reports the progress of a search; it needs only the standard library."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from agentcompile.ir.cleaning import Clean


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchProgress(Clean):
    """The progress of search and step tuning; times are wall time of this run's searches."""

    kind: Literal["search-progress"] = "search-progress"
    elapsed_s: float
    budget_s: float = 0.0
    """Seconds that search and step tuning may take together; 0 means no limit."""
    candidates: int = 0
    """Distinct candidates that have a verdict."""
    step_ns: int = 0
    """Time of the best step known: an estimate from its regions, later a measurement; 0 before there is one."""
    measured: bool = False
    """Whether `step_ns` was measured in the step."""
    rounds: int = 0
    """Rounds that were timed so far."""
    disturbed: float = 0.0
    """Share of the rounds that other processes on the machine disturbed."""

    @property
    def eta_s(self) -> float:
        """The seconds until the time is used up; 0 when it is, or when there is no limit."""
        return max(self.budget_s - self.elapsed_s, 0.0)
