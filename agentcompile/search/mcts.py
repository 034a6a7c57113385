"""Monte-Carlo tree search over traces (Kocsis and Szepesvári, 2006; Reasoning Compiler, arXiv 2506.01374, section 3).

A node is a candidate; the way from the root to it is its trace of transformations. UCT descends to a node with room for
a child. Rollouts from there are random sequences of transformations; a cost model learned from the trials scores every
point on their way, and the best is the child, whose measured speed is its value. Where the model cannot be trusted, the
end of one rollout is. Every candidate is in the tree once, so that no second trace to it can cost a second evaluation.

Different from the paper: a node's value is the best speed from it down, not the mean, because the best is what a search
is for; and some rollouts begin with values of another fast node, which few single changes could not bring together.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass

from agentcompile.ir.search_events import Origin
from agentcompile.search.cost_model import CostModel
from agentcompile.search.course import FAILED, Ask, Asking, Course, Ground

_ATTEMPTS = 50
"""Rollouts that are drawn for a child before its parent counts as exhausted."""
_ROOT = 0
"""The node above all others, which has no point."""
_FAST = 12
"""The nodes, the fastest so far, that rollouts take values from."""
_TOURNAMENT = 3
"""Of these the fastest of so many random ones is taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mcts(Course):
    """The algorithm with its settings; shares are between 0 and 1."""

    branching: int = 2
    """Children of a node."""
    exploration: float = math.sqrt(2)
    """The constant c of UCT."""
    roots: int = 3
    """Children of the root at the beginning: the advised first points, then random ones."""
    longest: int = 3
    """The most transformations of a rollout, beside those that bring values of another node."""
    rollouts: int = 16
    """Rollouts that the cost model chooses a child from."""
    epsilon: float = 0.1
    """The share of children that are not chosen by the model: the ends of random rollouts."""
    fresh: float = 0.03
    """The share of new nodes that are random points, below the root."""
    crossover: float = 0.5
    """The share of rollouts that begin with values of another fast node."""
    near: float = 0.6
    """The share of transformations that move a parameter to a neighbouring value; the others go to any."""
    history: int = 0
    """How much of the way to a node a model sees that is asked how to change it: 1 the node, 2 its parent as well, …; 0
    asks none. Where its sequences lead nowhere new, the child is chosen as without it."""
    power: float = 3.0
    """A node's value is the best speed in its subtree as a share of the best of all, to this power."""

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
        self._model = CostModel(ground.points)
        self._ask = [Ask(point=-1, origin="random")]
        self._parent = [-1]
        self._children: list[list[int]] = [[]]
        self._visits = [0]
        """Nodes from each down; one that waits for its score counts, so that a batch spreads over the tree."""
        self._top = [FAILED]
        """The best score from each node down."""
        self._exhausted = [False]
        """Whether no untried child of each node was found."""
        self._closed = [False]
        """Whether no node from each down may have another child."""
        self._known: set[int] = set()
        self._scores: dict[int, float] = {}
        self._ways: dict[int, list[list[int]]] = {}
        """By node, the points of the sequences that a model proposed for it."""
        self._fast: list[tuple[float, int]] = []
        """The fastest points, as (-score, point)."""

    def asks(self, nodes: Sequence[int]) -> list[Ask]:
        """Return what is asked for nodes."""
        return [self._ask[node] for node in nodes]

    def roots(self) -> list[int]:
        """Return the first nodes, below the root."""
        return [self._add(_ROOT, ask) for ask in self._ground.asks(self._ground.beginning(self._settings.roots))]

    def learn(self, nodes: Sequence[int], scores: Sequence[float]) -> None:
        """Take in the scores of nodes."""
        for node, score in zip(nodes, scores, strict=True):
            point = self._ask[node].point
            self._scores[point] = score
            if score > FAILED:
                bisect.insort(self._fast, (-score, point))
                del self._fast[_FAST:]
            above = node
            while above >= 0:
                self._top[above] = max(self._top[above], score)
                above = self._parent[above]

    def grow(self) -> list[int]:
        """Return a batch of new nodes; where no node may have another child they are random ones below the root."""
        made: list[int] = []
        while len(made) < self._ground.batch:
            fresh = self._ground.rng.random() < self._settings.fresh
            parent = _ROOT if fresh else self._selected()
            ask = self._random() if parent == _ROOT else self._advised(parent) or self._child(self._ask[parent].point)
            if ask is not None:
                made.append(self._add(parent, ask))
            elif parent == _ROOT:
                break
            else:
                self._exhausted[parent] = True
                self._close(parent)
        return made

    def _add(self, parent: int, ask: Ask) -> int:
        node = len(self._ask)
        self._ask.append(ask)
        self._parent.append(parent)
        self._children[parent].append(node)
        self._children.append([])
        self._visits.append(0)
        self._top.append(FAILED)
        self._exhausted.append(False)
        self._closed.append(False)
        self._known.add(ask.point)
        above = node
        while above >= 0:
            self._visits[above] += 1
            above = self._parent[above]
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
        """Return the upper confidence bound of a node."""
        top = self._top[node]
        value = math.exp((top - self._top[_ROOT]) * self._settings.power) if top > FAILED else 0.0
        width = math.sqrt(math.log(self._visits[self._parent[node]]) / self._visits[node])
        return value + self._settings.exploration * width

    def _random(self) -> Ask | None:
        """Return a random untried point; None when all are tried."""
        point = self._ground.fresh(self._known)
        return None if point is None else Ask(point=point, origin="random")

    def _advised(self, node: int) -> Ask | None:
        """Return the untried point that a model's first useful sequence leads furthest to; None where none does."""
        consult, point = self._ground.consult, self._ask[node].point
        if not self._settings.history or consult is None or point not in self._scores:
            return None
        if node not in self._ways:
            way = [node]
            while len(way) < self._settings.history and (above := self._parent[way[-1]]) != _ROOT:
                way.append(above)
            self._ways[node] = consult([self._ask[one].point for one in way], 0) or []
        for way in self._ways[node]:
            for found in reversed(way):
                if found not in self._known:
                    return Ask(point=found, origin="advised", parent=point)
        return None

    def _child(self, point: int) -> Ask | None:
        """Return an untried point that rollouts from `point` found; None where they found none."""
        if self._ground.rng.random() >= self._settings.epsilon and self._learned():
            found = {ask.point: ask for _ in range(self._settings.rollouts) for ask in self._rollout(point)}
            if found:
                return found[self._model.best(list(found))]
        for _ in range(_ATTEMPTS):
            if way := self._rollout(point):
                return way[-1]
        return None

    def _learned(self) -> bool:
        """Return whether the cost model, which has learned from all scores, may be used."""
        self._model.learn(self._scores)
        return self._model.trusted

    def _rollout(self, point: int) -> list[Ask]:
        """Return the untried points on the way of a random sequence of transformations."""
        rng = self._ground.rng
        at, crossed = point, rng.random() < self._settings.crossover and len(self._fast) > 1
        if crossed:
            other = self._fast[min(rng.randrange(len(self._fast)) for _ in range(_TOURNAMENT))][1]
            mixed = self._ground.points.at(self._ground.points.mixed(rng, point, other))
            at = point if mixed is None else mixed
        way = [at]
        for _ in range(rng.randint(1, self._settings.longest)):
            way.append(at := self._moved(at))
        origin: Origin = "crossed" if crossed else "changed"
        return [Ask(point=one, origin=origin, parent=point) for one in way if one not in self._known]

    def _moved(self, point: int) -> int:
        """Return the point that a random transformation leads to; the same one where the transformation is illegal."""
        rng, points = self._ground.rng, self._ground.points
        code, sizes, templates = list(points.code(point)), points.sizes(point), len(points.grid.templates)
        genes = len(sizes) + (templates > 1)
        if not genes:
            return point
        gene = rng.randrange(genes)
        if gene == len(sizes):
            found = points.switched(point, rng.randrange(templates))
            return point if found is None else found
        if rng.random() < self._settings.near:
            code[gene + 1] = min(max(code[gene + 1] + rng.choice((-1, 1)), 0), sizes[gene] - 1)
        else:
            code[gene + 1] = rng.randrange(sizes[gene])
        found = points.at(code)
        return point if found is None else found
