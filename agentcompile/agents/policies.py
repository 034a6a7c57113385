"""Policies that say which node of the tree is worked on next: one class and one row of `POLICIES` each.

In: the nodes, a seed and the number of the attempt. Out: a node's id; equal arguments give equal ids, so that a session
that was killed goes on as it would have. A policy holds no state.
"""

from __future__ import annotations

import difflib
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from agentcompile.agents.tree import DEAD, ROOT, Node, children, dead, expandable, leaderboard
from agentcompile.errors import AgentCompileError
from agentcompile.ir.digest import digest
from agentcompile.search.settings import with_settings


class TreePolicy(Protocol):
    """A selection policy: it chooses the node of the tree that the next attempt starts from."""

    def choose(self, nodes: Sequence[Node], seed: int, attempt: int) -> int:
        """Return the id of the node that attempt number `attempt` starts from."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EpsilonGreedy:
    """The adapted epsilon-greedy search of STARK (arXiv 2510.16996): a share of the attempts goes to any leaf."""

    epsilon: float = 0.35
    """The share of attempts that start from an expandable leaf; the paper has 0.3 to 0.4."""
    roots: int = 5
    """Children of the root after which it is no longer chosen, as long as anything else can be."""
    failures: int = DEAD

    def choose(self, nodes: Sequence[Node], seed: int, attempt: int) -> int:
        """Return a random expandable leaf, or the fastest node that may be chosen."""
        rng = _rng("epsilon-greedy", seed, attempt)
        pruned = dead(nodes, self.failures) | _throttled(nodes, self.roots)
        open_leaves = [node.id for node in expandable(nodes, self.failures) if node.id not in pruned]
        if open_leaves and rng.random() < self.epsilon:
            return rng.choice(open_leaves)
        sound = [node for node in nodes if node.sound and node.id not in pruned and node.repeats is None]
        if sound:
            return min(sound, key=lambda node: (node.over_reference, node.id)).id
        return rng.choice(open_leaves) if open_leaves else ROOT


@dataclass(frozen=True, slots=True, kw_only=True)
class GreedyPolicy:
    """Always the fastest sound node, which may be the reference."""

    def choose(self, nodes: Sequence[Node], seed: int, attempt: int) -> int:
        """Return the fastest sound node of no closed branch; of equals the first."""
        closed = dead(nodes, failures=len(nodes))
        open = (node for node in nodes if node.id not in closed)
        return min(open, key=lambda node: (node.over_reference, node.id)).id


@dataclass(frozen=True, slots=True, kw_only=True)
class MctsPolicy:
    """UCT (Kocsis and Szepesvári, 2006) over the attempts; a branch is worth its fastest node's share of the best."""

    exploration: float = math.sqrt(2)
    branching: int = 3
    """Children of a node before its children are looked at instead; the root has more."""
    roots: int = 5
    failures: int = DEAD

    def choose(self, nodes: Sequence[Node], seed: int, attempt: int) -> int:
        """Return the first node on the way down that has room for a child."""
        rng = _rng("mcts", seed, attempt)
        pruned = dead(nodes, self.failures)
        visits, fastest = [1] * len(nodes), [node.over_reference for node in nodes]
        for node in reversed(nodes):
            if node.parent is not None:
                visits[node.parent] += visits[node.id]
                fastest[node.parent] = min(fastest[node.parent], fastest[node.id])
        top = min(fastest)
        at = ROOT
        while True:
            below = [node.id for node in children(nodes, at) if node.id not in pruned]
            if len(children(nodes, at)) < (self.roots if at == ROOT else self.branching) or not below:
                return at
            rng.shuffle(below)  # of equals any

            def worth(id: int, above: int = at) -> float:
                value = top / fastest[id] if fastest[id] < math.inf else 0.0
                return value + self.exploration * math.sqrt(math.log(visits[above]) / visits[id])

            at = max(below, key=worth)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvolutionaryPolicy:
    """Tournament selection among the fastest nodes; the reference has a share of its own."""

    population: int = 8
    tournament: int = 3
    fresh: float = 0.15
    """The share of attempts that start from the reference."""
    failures: int = DEAD

    def choose(self, nodes: Sequence[Node], seed: int, attempt: int) -> int:
        """Return the winner of a tournament; without a sound kernel, a leaf."""
        rng = _rng("evolutionary", seed, attempt)
        pruned = dead(nodes, self.failures)
        members = [node.id for node in leaderboard(nodes, self.population) if node.id not in pruned]
        if rng.random() < self.fresh:
            return ROOT
        if not members:
            return rng.choice([ROOT, *(node.id for node in expandable(nodes, self.failures) if node.id != ROOT)])
        return members[min(rng.randrange(len(members)) for _ in range(self.tournament))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Always the last node of no dead branch: a chain of attempts, each made from the one before."""

    def choose(self, nodes: Sequence[Node], seed: int, attempt: int) -> int:
        """Return the last node of no dead branch; where a person closed them all, the root."""
        closed = dead(nodes)
        return next(node.id for node in reversed(nodes) if node.id not in closed)


@dataclass(frozen=True, slots=True, kw_only=True)
class FromRoot:
    """Always the reference: attempts that know nothing of one another."""

    def choose(self, nodes: Sequence[Node], seed: int, attempt: int) -> int:
        """Return the root, whatever the other nodes are."""
        return ROOT


POLICIES: Mapping[str, TreePolicy] = {
    "epsilon-greedy": EpsilonGreedy(),
    "greedy": GreedyPolicy(),
    "mcts": MctsPolicy(),
    "evolutionary": EvolutionaryPolicy(),
}
"""Policies by the name that `--strategy` takes; the first is the default."""


def policy_of(text: str) -> TreePolicy:
    """Return the policy of `text`: a name, or a name and settings such as ``epsilon-greedy:epsilon=0.3``.

    Raises:
        AgentCompileError: there is no such policy or setting, or its value is not one (usage); the hint has the
            nearest.
    """
    name, _, settings = text.partition(":")
    if name not in POLICIES:
        near = difflib.get_close_matches(name, list(POLICIES), n=1)
        meant = f"did you mean {near[0]}? " if near else ""
        raise AgentCompileError(
            f"--strategy: {name[:80]!r} is no strategy of agents", hint=f"{meant}strategies: {', '.join(POLICIES)}"
        )
    return with_settings(name, POLICIES[name], settings) if settings else POLICIES[name]


def _throttled(nodes: Sequence[Node], roots: int) -> frozenset[int]:
    return frozenset({ROOT}) if len(children(nodes, ROOT)) >= roots else frozenset()


def _rng(name: str, seed: int, attempt: int) -> random.Random:
    return random.Random(digest("policy/1", name, seed, attempt))
