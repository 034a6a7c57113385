"""Places a layered graph on a page: boxes in rows, arrows that go down, few crossings.

In: rows of names, the highest first, and which names below each one points to. Out: the middle of every box and of
every bend, in pixels. Arrows to one box join on their way: where one passes a row it has a bend, which all arrows to
that box share. Order by barycentres as Sugiyama, Tagawa and Toda (1981) draw graphs, places by least squares; the same
graph is always placed alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from statistics import fmean

SWEEPS = 24
"""Times that the order of all rows is improved, downwards and upwards in turn."""

Node = tuple[str, int]
"""A box or a bend: the name of the box, or of the one that arrows go to, and the row."""
Links = Mapping[Node, Sequence[Node]]


def bent(
    rows: Sequence[Sequence[str]], edges: Mapping[str, set[str]]
) -> tuple[list[list[Node]], list[tuple[Node, Node]]]:
    """Return the rows with their bends, and the arrows as links from each row to the next.

    An arrow must go to a lower row.
    """
    row_of = {name: at for at, row in enumerate(rows) for name in row}
    placed: list[list[Node]] = [[(name, at) for name in row] for at, row in enumerate(rows)]
    links: dict[tuple[Node, Node], None] = {}
    for one in row_of:
        for other in sorted(edges[one]):
            path = [(one, row_of[one]), *((other, at) for at in range(row_of[one] + 1, row_of[other] + 1))]
            for node in path[1:-1]:
                if node not in placed[node[1]]:
                    placed[node[1]].append(node)
            links |= dict.fromkeys(pairwise(path))
    return placed, list(links)


def crossings(rows: Sequence[Sequence[Node]], links: Sequence[tuple[Node, Node]]) -> int:
    """Return how many pairs of links cross."""
    at = {node: place for row in rows for place, node in enumerate(row)}
    total = 0
    for row in range(len(rows)):
        ends = sorted((at[one], at[other]) for one, other in links if one[1] == row)
        total += sum(b[1] < a[1] for i, a in enumerate(ends) for b in ends[i + 1 :] if a[0] != b[0])
    return total


def ordered(rows: Sequence[Sequence[Node]], links: Sequence[tuple[Node, Node]]) -> list[list[Node]]:
    """Return the rows, each in the best order that was found."""
    above, below = _neighbours(links)
    now = [list(row) for row in rows]
    best, least = [list(row) for row in now], crossings(now, links)
    for sweep in range(SWEEPS):
        near = below if sweep % 2 else above
        for at in reversed(range(len(now))) if sweep % 2 else range(len(now)):
            place = {node: index / max(1, len(row) - 1) for row in now for index, node in enumerate(row)}

            def middle(node: Node, near: Links = near, place: Mapping[Node, float] = place) -> float:
                return fmean(place[one] for one in near[node]) if near.get(node) else place[node]

            now[at].sort(key=middle)
        if (found := crossings(now, links)) < least:
            best, least = [list(row) for row in now], found
    return best


def places(
    rows: Sequence[Sequence[Node]],
    links: Sequence[tuple[Node, Node]],
    width: Callable[[Node], float],
    gap: float,
) -> dict[Node, float]:
    """Return the middle of every node in pixels from the left, which keeps rows in order and links upright."""
    above, below = _neighbours(links)
    x = {node: 0.0 for row in rows for node in row}
    for sweep in range(SWEEPS):
        for row in rows if sweep % 2 == 0 else reversed(rows):
            wanted = [
                fmean([x[one] for one in (*above.get(node, ()), *below.get(node, ()))] or [x[node]]) for node in row
            ]
            room = [0.0]
            for one, other in pairwise(row):
                room.append(room[-1] + (width(one) + width(other)) / 2 + gap)
            settled = _rising([want - offset for want, offset in zip(wanted, room, strict=True)])
            x |= {node: value + offset for node, value, offset in zip(row, settled, room, strict=True)}
    left = min(x[node] - width(node) / 2 for node in x)
    return {node: value - left for node, value in x.items()}


def _neighbours(links: Sequence[tuple[Node, Node]]) -> tuple[dict[Node, list[Node]], dict[Node, list[Node]]]:
    above: dict[Node, list[Node]] = {}
    below: dict[Node, list[Node]] = {}
    for one, other in links:
        below.setdefault(one, []).append(other)
        above.setdefault(other, []).append(one)
    return above, below


def _rising(wanted: Sequence[float]) -> list[float]:
    """Return the numbers nearest to `wanted` by least squares of which none is less than the one before."""
    groups: list[list[float]] = []
    for value in wanted:
        groups.append([value])
        while len(groups) > 1 and fmean(groups[-2]) > fmean(groups[-1]):
            last = groups.pop()
            groups[-1] += last
    return [fmean(group) for group in groups for _ in group]
