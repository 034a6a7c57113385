"""Random search: every candidate once, in an order drawn from the seed."""

from __future__ import annotations

import random
from collections.abc import Sequence

from agentcompile.search.strategy import Budget, P, Proposal, Task, Tried, untried


class RandomOrder:
    """Every candidate once in an order drawn from the budget's seed, whatever the advice."""

    def propose(self, task: Task[P], trials: Sequence[Tried], budget: Budget) -> Proposal[P]:
        """Return the next candidates of the order."""
        order = list(task.candidates)
        random.Random(budget.seed).shuffle(order)
        return untried(order, trials, budget)
