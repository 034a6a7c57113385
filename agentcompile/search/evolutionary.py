"""A steady-state genetic search with a small population, which starts anew where it no longer improves.

Tournaments choose parents (Goldberg and Deb, 1991), uniform crossover mixes two of them over templates and parameters
(Syswerda, 1989), and mutation applies transformations, most of them to a neighbouring value. A small population learns
from few evaluations but loses its variety; so after `patience` offspring without a better point only the best stays,
beside new random points.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentcompile.search.course import FAILED, Ask, Asking, Course, Ground

_ATTEMPTS = 100
"""Offspring that may be illegal or known before a random point is taken instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evolutionary(Course):
    """The algorithm; shares are between 0 and 1."""

    population: int = 12
    tournament: int = 4
    """Members among which the best becomes a parent."""
    crossover: float = 0.5
    """The share of offspring that have two parents."""
    near: float = 0.8
    """The share of mutations that go to a neighbouring value; the others go to any."""
    fresh: float = 0.03
    """The share of offspring that are random points."""
    patience: int = 50
    """Offspring without a better point after which the population is renewed."""

    def walk(self, ground: Ground) -> Asking:
        """Ask for the population, then for offspring, until every point is tried."""
        tried: dict[int, float] = {}
        asked = ground.asks(ground.beginning(self.population))
        members: list[int] = []
        stalled = 0
        while asked:
            wanted = [ask.point for ask in asked]
            best = max((tried[at] for at in members), default=FAILED)
            tried.update(zip(wanted, (yield asked), strict=True))
            stalled = 0 if max(tried[at] for at in wanted) > best else stalled + len(wanted)
            members = sorted({*members, *wanted}, key=lambda at: (-tried[at], at))[: self.population]
            if stalled >= self.patience:
                stalled, members = 0, members[:1]
                asked = ground.asks(_fresh(ground, tried, self.population))
            else:
                asked = self._offspring(ground, members, tried)

    def _offspring(self, ground: Ground, members: Sequence[int], tried: dict[int, float]) -> list[Ask]:
        """Return a batch of untried points; fewer when fewer are left."""
        made: list[Ask] = []
        known = dict(tried)
        for _ in range(ground.batch):
            for _ in range(_ATTEMPTS):
                child = self._child(ground, members)
                if child is not None and child.point not in known:
                    break
            else:
                fresh = ground.fresh(known)
                child = None if fresh is None else Ask(point=fresh, origin="random")
            if child is None:
                break
            known[child.point] = FAILED
            made.append(child)
        return made

    def _child(self, ground: Ground, members: Sequence[int]) -> Ask | None:
        """Return a point made of one or two members, or a random one; None where it would be illegal."""
        rng, points = ground.rng, ground.points
        if rng.random() < self.fresh:
            return Ask(point=rng.randrange(len(points)), origin="random")
        parent = self._parent(ground, members)
        code = list(points.code(parent))
        crossed = rng.random() < self.crossover
        if crossed:
            code = points.mixed(rng, parent, self._parent(ground, members))
        sizes, templates = points.sizes(parent), len(points.grid.templates)
        genes = 1 + len(sizes) if templates > 1 else len(sizes)
        changed = [gene for gene in range(len(sizes)) if rng.random() * genes < 1]
        if not changed and tuple(code) == points.code(parent):
            changed = [rng.randrange(len(sizes))] if sizes else []
        for gene in changed:
            if rng.random() < self.near:
                code[gene + 1] = min(max(code[gene + 1] + rng.choice((-1, 1)), 0), sizes[gene] - 1)
            else:
                code[gene + 1] = rng.randrange(sizes[gene])
        child = points.at(code)
        if child is not None and templates > 1 and rng.random() * genes < 1:
            child = points.switched(child, rng.randrange(templates))
        return None if child is None else Ask(point=child, origin="crossed" if crossed else "changed", parent=parent)

    def _parent(self, ground: Ground, members: Sequence[int]) -> int:
        """Return the winner of a tournament; members are sorted, the best first."""
        return members[min(ground.rng.randrange(len(members)) for _ in range(self.tournament))]


def _fresh(ground: Ground, tried: dict[int, float], count: int) -> list[int]:
    """Return up to `count` random untried points."""
    known = dict(tried)
    found: list[int] = []
    while len(found) < count and (at := ground.fresh(known)) is not None:
        known[at] = FAILED
        found.append(at)
    return found
