"""Exhaustive search: every candidate once, in the advised order."""

from __future__ import annotations

from collections.abc import Sequence

from agentcompile.search.strategy import Budget, P, Proposal, Task, Tried, untried


class Exhaustive:
    """Every candidate once, in the advised order, as far as the budget reaches."""

    def propose(self, task: Task[P], trials: Sequence[Tried], budget: Budget) -> Proposal[P]:
        """Return the next candidates of the order."""
        return untried(task.advised, trials, budget)
