"""Proposes what to try next from a task, its trials so far and a budget; it measures nothing and decides nothing.

A strategy is one file of this package and one row of `STRATEGIES`.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from agentcompile.errors import AgentCompileError
from agentcompile.search.exhaustive import Exhaustive
from agentcompile.search.halving import Halving
from agentcompile.search.random_order import RandomOrder
from agentcompile.search.strategy import Budget, Proposal, SearchTask, Strategy

STRATEGIES: Mapping[str, Strategy] = {
    "halving": Halving(),
    "exhaustive": Exhaustive(),
    "random": RandomOrder(),
}
"""By the name that `--strategy` takes; the first is the default."""


def strategy_of(name: str) -> Strategy:
    """The strategy of that name; raises `AgentCompileError` (usage) with the nearest one."""
    if name in STRATEGIES:
        return STRATEGIES[name]
    near = difflib.get_close_matches(name, list(STRATEGIES), n=1)
    meant = f"did you mean {near[0]}? " if near else ""
    raise AgentCompileError(
        f"--strategy: {name[:80]!r} is no strategy", hint=f"{meant}strategies: {', '.join(STRATEGIES)}"
    )


__all__ = ["STRATEGIES", "Budget", "Proposal", "SearchTask", "Strategy", "strategy_of"]
