"""Proposes what to try next from a task, its trials so far and a budget; it measures nothing and decides nothing.

A strategy is one file of this package and one row of `STRATEGIES`.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from dataclasses import dataclass

from agentcompile.errors import AgentCompileError
from agentcompile.search.annealing import Annealing
from agentcompile.search.course import Explorer
from agentcompile.search.descent import Descent
from agentcompile.search.evolutionary import Evolutionary
from agentcompile.search.exhaustive import Exhaustive
from agentcompile.search.greedy import Greedy
from agentcompile.search.halving import Halving
from agentcompile.search.llm_rounds import LlmRounds
from agentcompile.search.mcts import Mcts
from agentcompile.search.random_order import RandomOrder
from agentcompile.search.settings import with_settings
from agentcompile.search.step import Move, StepStrategy, StepTask, StepTrial
from agentcompile.search.strategy import Budget, Proposal, RegionStrategy, SearchTask, Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchMethod:
    """A row of `STRATEGIES`: what searches the space of a region, and what searches the whole step."""

    regions: RegionStrategy
    step: StepStrategy
    consults: bool = False
    """Whether it asks a model in the middle of a search, where there is one."""

    @property
    def tries(self) -> int:
        """The candidates of a round, before which a model is asked; 0 for a search without rounds."""
        return self.regions.course.tries if isinstance(self.regions, Explorer) else 0


STRATEGIES: Mapping[str, SearchMethod] = {
    "halving": SearchMethod(regions=Halving(), step=Descent()),
    "exhaustive": SearchMethod(regions=Exhaustive(), step=Exhaustive()),
    "random": SearchMethod(regions=RandomOrder(), step=RandomOrder()),
    "evolutionary": SearchMethod(regions=Explorer(Evolutionary()), step=Descent()),
    "annealing": SearchMethod(regions=Explorer(Annealing()), step=Descent()),
    "greedy": SearchMethod(regions=Explorer(Greedy()), step=Descent()),
    "epsilon-greedy": SearchMethod(regions=Explorer(Greedy(epsilon=0.1)), step=Descent()),
    "mcts": SearchMethod(regions=Explorer(Mcts()), step=Descent()),
    "mcts+advice": SearchMethod(regions=Explorer(Mcts(history=3)), step=Descent(), consults=True),
    "llm-rounds": SearchMethod(regions=Explorer(LlmRounds()), step=Descent(), consults=True),
}
"""Search methods by the name that `--strategy` takes; the first is the default."""


def strategy_of(text: str, strategies: Mapping[str, SearchMethod] = STRATEGIES) -> SearchMethod:
    """Return the search method of `text`: a name, or a name and settings such as ``mcts:branching=4,exploration=1``.

    Raises:
        AgentCompileError: there is no such name or setting, or its value is not one (usage); the hint has the nearest.
    """
    name, _, settings = text.partition(":")
    if name not in strategies:
        near = difflib.get_close_matches(name, list(strategies), n=1)
        meant = f"did you mean {near[0]}? " if near else ""
        raise AgentCompileError(
            f"--strategy: {name[:80]!r} is no strategy", hint=f"{meant}strategies: {', '.join(strategies)}"
        )
    found = strategies[name]
    if not settings:
        return found
    if not isinstance(found.regions, Explorer):
        raise AgentCompileError(f"--strategy: {name} has no settings", hint=f"--strategy {name}")
    return dataclasses.replace(found, regions=Explorer(with_settings(name, found.regions.course, settings)))


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
