"""Exhaustive search: every candidate once, in the advised order."""

from __future__ import annotations

from collections.abc import Sequence

from agentcompile.ir.trial import Trial
from agentcompile.search.strategy import Budget, Proposal, SearchTask, untried


class Exhaustive:
    """Every candidate once, in the advised order, as far as the budget reaches."""

    def propose(self, task: SearchTask, trials: Sequence[Trial], budget: Budget) -> Proposal:
        """The next candidates of the order."""
        return untried(task.advised, trials, budget)
