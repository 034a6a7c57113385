"""Exhaustive search: every candidate once, in the advised order."""

from __future__ import annotations

from collections.abc import Sequence

from agentcompile.search.strategy import AnyTrial, Budget, P, Proposal, Task, untried


class Exhaustive:
    """A strategy that proposes every candidate once, in the advised order, until the budget is spent."""

    def propose(self, task: Task[P], trials: Sequence[AnyTrial], budget: Budget) -> Proposal[P]:
        """Return the next untried candidates in the advised order, as many as the budget has left."""
        return untried(task.advised, trials, budget)
