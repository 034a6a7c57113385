"""Monte-Carlo tree search over traces (Kocsis and Szepesvári, 2006; Reasoning Compiler, arXiv 2506.01374, section 3).

A node is a candidate; the way from the root to it is its trace of transformations. UCT descends to a node with room for
a child, one to three random transformations make the child, and its measured speed is its value. Every candidate is in
the tree once, so that no second trace to it can cost a second evaluation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from agentcompile.search.course import FAILED, Ask, Asking, Ground

_ATTEMPTS = 16
"""Sequences of transformations that are drawn for a child before its parent counts as exhausted."""
_ROOT = 0
"""The node above all others, which has no point."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mcts:
    """The algorithm with its settings."""

    branching: int = 2
    """Children of a node."""
    exploration: float = math.sqrt(2)
    """The constant c of UCT; values are shares of the best speed so far."""
    roots: int = 3
    """Children of the root: the advised first points, then random ones."""
    longest: int = 3
    """The most transformations from a node to its child."""

    def walk(self, ground: Ground) -> Asking:
        """Grow the tree until every point is tried."""
        tree = _Tree(self, ground)
        nodes = tree.roots()
        while nodes:
            tree.learn(nodes, (yield tree.asks(nodes)))
            nodes = tree.grow()


class _Tree:
    """The tree; a node is named by its place in the order in which they grew."""

    def __init__(self, settings: Mcts, ground: Ground) -> None:
        self._settings, self._ground = settings, ground
        self._point = [-1]
        self._parent = [-1]
        self._children: list[list[int]] = [[]]
        self._visits = [0]
        self._total = [0.0]
        """The sum of the speeds from each node down, its own among them, as shares of the first measured speed."""
        self._exhausted = [False]
        """Whether no untried child of each node was found."""
        self._closed = [False]
        """Whether no node from each down may have another child."""
        self._known: dict[int, float] = {}
        self._unit = self._best = FAILED

    def asks(self, nodes: Sequence[int]) -> list[Ask]:
        """Return what is asked for nodes."""
        made: list[Ask] = []
        for node in nodes:
            parent = self._parent[node]
            if parent == _ROOT:
                made += self._ground.asks([self._point[node]])
            else:
                made.append(Ask(point=self._point[node], origin="changed", parent=self._point[parent]))
        return made

    def roots(self) -> list[int]:
        """Return the first nodes, below the root."""
        return [self._add(_ROOT, point) for point in self._ground.beginning(self._settings.roots)]

    def learn(self, nodes: Sequence[int], scores: Sequence[float]) -> None:
        """Add the speeds of nodes to these and to all above them."""
        for node, score in zip(nodes, scores, strict=True):
            self._best = max(self._best, score)
            if self._unit == FAILED:
                self._unit = score
            speed = math.exp(score - self._unit) if score > FAILED else 0.0
            above = node
            while above >= 0:
                self._visits[above] += 1
                self._total[above] += speed
                above = self._parent[above]

    def grow(self) -> list[int]:
        """Return a batch of new nodes; where no node may have another child they are random ones below the root."""
        made: list[int] = []
        while len(made) < self._ground.batch:
            parent = self._selected()
            point = self._ground.fresh(self._known) if parent == _ROOT else self._changed(self._point[parent])
            if point is not None:
                made.append(self._add(parent, point))
            elif parent == _ROOT:
                break
            else:
                self._exhausted[parent] = True
                self._close(parent)
        return made

    def _add(self, parent: int, point: int) -> int:
        node = len(self._point)
        self._children[parent].append(node)
        for column, value in ((self._point, point), (self._parent, parent), (self._visits, 0)):
            column.append(value)
        self._total.append(0.0)
        self._children.append([])
        self._exhausted.append(False)
        self._closed.append(False)
        self._known[point] = FAILED
        return node

    def _selected(self) -> int:
        """Return the node that UCT leads to and that may have another child; the root where no other may."""
        node = _ROOT
        while open_children := [child for child in self._children[node] if not self._closed[child]]:
            node = max(open_children, key=self._uct)
            if not self._full(node):
                break
        return node

    def _full(self, node: int) -> bool:
        return self._exhausted[node] or len(self._children[node]) >= self._settings.branching

    def _close(self, node: int) -> None:
        """Close a node that can grow no more, and those above it that so have no child left that can."""
        while node != _ROOT and self._full(node) and all(self._closed[child] for child in self._children[node]):
            self._closed[node] = True
            node = self._parent[node]

    def _uct(self, node: int) -> float:
        """Return the upper confidence bound of a node; one that waits for its first score comes last."""
        visits = self._visits[node]
        if not visits:
            return FAILED
        top = math.exp(self._best - self._unit) if self._best > FAILED else 1.0
        width = math.sqrt(math.log(self._visits[self._parent[node]]) / visits)
        return self._total[node] / visits / top + self._settings.exploration * width

    def _changed(self, point: int) -> int | None:
        """Return an untried point that a few random transformations lead to; None where none is found."""
        rng = self._ground.rng
        for _ in range(_ATTEMPTS):
            at = point
            for _ in range(rng.randint(1, self._settings.longest)):
                if not (near := self._ground.points.changes(at)):
                    break
                at = rng.choice(near)
            if at not in self._known:
                return at
        return None
