"""Proposes what to try next from a task, its trials so far and a budget; it measures nothing and decides nothing.

A strategy is one file of this package and one row of `STRATEGIES`.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

from agentcompile.errors import AgentCompileError
from agentcompile.search.descent import Descent
from agentcompile.search.exhaustive import Exhaustive
from agentcompile.search.halving import Halving
from agentcompile.search.random_order import RandomOrder
from agentcompile.search.step import Move, StepStrategy, StepTask, StepTrial
from agentcompile.search.strategy import Budget, Proposal, RegionStrategy, SearchTask, Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchMethod:
    """A row of `STRATEGIES`: what searches the space of a region, and what searches the whole step."""

    regions: RegionStrategy
    step: StepStrategy


STRATEGIES: Mapping[str, SearchMethod] = {
    "halving": SearchMethod(regions=Halving(), step=Descent()),
    "exhaustive": SearchMethod(regions=Exhaustive(), step=Exhaustive()),
    "random": SearchMethod(regions=RandomOrder(), step=RandomOrder()),
}
"""Search methods by the name that `--strategy` takes; the first is the default."""


def strategy_of(name: str, strategies: Mapping[str, SearchMethod] = STRATEGIES) -> SearchMethod:
    """Return the search method called `name`.

    Raises:
        AgentCompileError: there is no such name (usage); the hint has the nearest one.
    """
    if name in strategies:
        return strategies[name]
    near = difflib.get_close_matches(name, list(strategies), n=1)
    meant = f"did you mean {near[0]}? " if near else ""
    raise AgentCompileError(
        f"--strategy: {name[:80]!r} is no strategy", hint=f"{meant}strategies: {', '.join(strategies)}"
    )


__all__ = [
    "STRATEGIES",
    "Budget",
    "Move",
    "Proposal",
    "RegionStrategy",
    "SearchMethod",
    "SearchTask",
    "StepStrategy",
    "StepTask",
    "StepTrial",
    "Strategy",
    "strategy_of",
]
