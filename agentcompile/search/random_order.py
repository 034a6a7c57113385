"""Random search: every candidate once, in an order drawn from the seed."""

from __future__ import annotations

import random
from collections.abc import Sequence

from agentcompile.search.strategy import AnyTrial, Budget, P, Proposal, Task, untried


class RandomOrder:
    """A strategy that proposes every candidate once, in an order drawn from the budget's seed; it ignores advice."""

    def propose(self, task: Task[P], trials: Sequence[AnyTrial], budget: Budget) -> Proposal[P]:
        """Return the next untried candidates of the shuffled order, as many as the budget has left."""
        order = list(task.candidates)
        random.Random(budget.seed).shuffle(order)
        return untried(order, trials, budget, "random")
