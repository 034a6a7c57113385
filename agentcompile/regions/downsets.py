"""Every way to cover a graph by sites, as paths through its downsets, cut into segments that repeat.

A downset is a set of operators that contains all its predecessors: the operators that have run so far. A path from the
empty downset to the whole graph, one ready site a step, is an exact cover whose quotient graph is acyclic, and every
such cover is a path. Paths that differ only in the order of one cover are mostly left out: the first operator that has
not run is always next, unless its site waits for others.

Dynamic programming over the downsets of an order: L. Schrage and K. R. Baker, Dynamic Programming Solution of
Sequencing Problems with Precedence Constraints, Operations Research 26(3) (1978). Beyond the width it is a beam search.

In: an `Order` and the sites. Out: `Ways`. Costs are used only to choose which downsets to keep beyond the width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentcompile.regions.order import Order, bits

WIDTH = 1024
"""The most downsets of one size that are followed; a graph that never exceeds it is covered exactly."""


class CoverError(ValueError):
    """No exact cover exists with the allowed options; the message names an operator that stays uncovered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """One site in the search. Spots with one `treatment` cost the same under every assignment of layouts."""

    mask: int
    treatment: int
    least: float
    """The site's lowest possible cost, in any unit; it decides which downsets are kept beyond the width."""


Edge = tuple[int, int, int]
"""(from, to, treatment) between a segment's downsets, which are numbered in a topological order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A stretch between two downsets that every path passes, with no other such downset between them."""

    states: int
    edges: tuple[Edge, ...]
    places: tuple[tuple[int, ...], ...]
    """The spot of every edge, for each place where the segment occurs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ways:
    """All covers of one graph; choosing one path in every segment gives a cover."""

    segments: tuple[Segment, ...]
    exact: bool
    """Whether no downset was dropped because of the width."""


def ways(order: Order, spots: Sequence[Spot], *, width: int = WIDTH) -> Ways:
    """Find all covers of the graph behind `order` by `spots`.

    Raises:
        CoverError: there is no cover.
    """
    search = _DownsetSearch(order, spots)
    steps, exact = search.explore(width)
    return Ways(segments=_segments(_alive(steps, search.full, order), spots), exact=exact)


Steps = dict[int, list[tuple[int, int]]]
"""The steps from each downset, as (spot, next downset)."""


class _DownsetSearch:
    def __init__(self, order: Order, spots: Sequence[Spot]) -> None:
        self.full = (1 << len(order.before)) - 1
        self._spots = spots
        self._needs = [order.needs(spot.mask) for spot in spots]
        self._behind = [_ancestors(order, spot.mask) for spot in spots]
        self._through: list[list[int]] = [[] for _ in order.before]
        for i, spot in enumerate(spots):
            for node in bits(spot.mask):
                self._through[node].append(i)

    def explore(self, width: int) -> tuple[Steps, bool]:
        """Reach downsets in order of size and keep at most `width` of one size, the cheapest so far.

        The second result says whether none was dropped.
        """
        steps: Steps = {}
        levels: dict[int, dict[int, float]] = {0: {0: 0.0}}
        exact = True
        for size in range(self.full.bit_count()):
            level = levels.pop(size, {})
            if len(level) > width:
                exact = False
                level = dict(sorted(level.items(), key=lambda item: (item[1], item[0]))[:width])
            for done, cost in level.items():
                steps[done] = []
                for i in self._next(done):
                    after = done | self._spots[i].mask
                    steps[done].append((i, after))
                    reached = levels.setdefault(after.bit_count(), {})
                    reached[after] = min(reached.get(after, float("inf")), cost + self._spots[i].least)
        return steps, exact

    def _next(self, done: int) -> list[int]:
        """Return the sites of the first operator that has not run, and ready sites that one of them may wait for."""
        first = (~done & (done + 1)).bit_length() - 1
        here = [i for i in self._through[first] if not self._spots[i].mask & done]
        ready = [i for i in here if not self._needs[i] & ~done]
        if len(ready) == len(here):
            return ready
        awaited = self._awaited(done, here)
        return sorted({*ready, *(i for i in awaited if not self._needs[i] & ~done)})

    def _awaited(self, done: int, waiting: list[int]) -> set[int]:
        """Return the sites that could be ancestors, in some cover, of one of the sites in `waiting`."""
        found: set[int] = set()
        wanted, seen = 0, done
        for i in waiting:
            wanted |= self._behind[i] & ~done
        while todo := wanted & ~seen:
            seen |= todo
            for node in bits(todo):
                for i in self._through[node]:
                    if i not in found and not self._spots[i].mask & done:
                        found.add(i)
                        wanted |= self._behind[i]
        return found


def _ancestors(order: Order, mask: int) -> int:
    result = 0
    for node in bits(mask):
        result |= order.ancestors[node]
    return result & ~mask


def _alive(steps: Steps, full: int, order: Order) -> Steps:
    """Return only the downsets from which the whole graph can be reached."""  # noqa: DOC501
    alive = {full}
    kept: Steps = {full: []}
    for done in reversed(steps):
        onward = [(i, after) for i, after in steps[done] if after in alive]
        if onward:
            alive.add(done)
            kept[done] = onward
    if 0 not in alive:
        furthest = max(steps, key=int.bit_count, default=0)
        stuck = (~furthest & (furthest + 1)).bit_length() - 1
        names = {i: name for name, i in order.index.items()}
        raise CoverError(f"no allowed region covers {names[stuck]} together with what precedes it")
    return kept


def _segments(steps: Steps, spots: Sequence[Spot]) -> tuple[Segment, ...]:
    """Cut at the downsets that every path passes, and group equal stretches."""
    states = sorted(steps, key=lambda done: (done.bit_count(), done))
    position = {done: i for i, done in enumerate(states)}
    groups: dict[tuple[Edge, ...], list[tuple[int, ...]]] = {}
    sizes: dict[tuple[Edge, ...], int] = {}
    start, reach = 0, 0
    edges: list[Edge] = []
    place: list[int] = []
    for i, done in enumerate(states):
        if i and i == reach:
            shape = tuple(edges)
            groups.setdefault(shape, []).append(tuple(place))
            sizes[shape] = i - start + 1
            start, edges, place = i, [], []
        for spot, after in steps[done]:
            reach = max(reach, position[after])
            edges.append((i - start, position[after] - start, spots[spot].treatment))
            place.append(spot)
    return tuple(Segment(states=sizes[shape], edges=shape, places=tuple(places)) for shape, places in groups.items())
