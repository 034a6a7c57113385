"""The cheapest exact cover of one or several plans, together with one resident layout for every tensor they share.

In: for each plan its graph, its partition and, by region, the options that may serve it. Out: `Solution`. A graph
falls into segments that repeat, a segment's best path depends on the layouts of its own classes alone, and classes
that no segment brings together are solved apart. All assignments of layouts are tried, up to `ASSIGNMENTS` for the
classes that hang together; beyond that coordinate descent is used and the result is labelled heuristic.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Sequence

from agentcompile.ir.trial import Choice, Part
from agentcompile.regions.downsets import WIDTH, CoverError
from agentcompile.regions.problem import ROW_MAJOR, Problem, Solution
from agentcompile.regions.treatments import Assignment, Model, model

ASSIGNMENTS = 4096
"""Assignments of layouts that are tried exhaustively for classes that hang together."""

Total = tuple[int, float]
"""How many stretches an assignment leaves without a path, and what the others cost."""


def cover(problem: Problem, *, forbidden: Collection[tuple[str, Choice]] = ()) -> Solution:
    """Cover one graph; see `cover_jointly`."""
    return cover_jointly([problem], forbidden=forbidden)


def cover_jointly(
    problems: Sequence[Problem],
    *,
    forbidden: Collection[tuple[str, Choice]] = (),
    assignments: int = ASSIGNMENTS,
    width: int = WIDTH,
) -> Solution:
    """Find the cheapest covers that agree on layouts; `forbidden` pairs (region id, choice) yield the next best.

    `assignments` and `width` bound what is searched exactly. Raises `CoverError` when an operator has no option, or
    when no layout of a tensor serves every plan.
    """
    made = model(problems, forbidden, width)
    best = {c: layouts[0] for c, layouts in enumerate(made.alternatives)}
    exact = all(plan.exact for plan in made.plans)
    for classes in _components(made):
        found, complete = _assign(made, classes, best, assignments)
        best.update(found)
        exact = exact and complete
    return _solution(problems, made, best, exact)


def _components(made: Model) -> list[tuple[int, ...]]:
    """Classes that have a choice, grouped by the stretches that bring them together."""
    groups: list[set[int]] = []
    for plan in made.plans:
        for stretch in plan.stretches:
            together = set(stretch.classes)
            for group in [group for group in groups if group & together]:
                groups.remove(group)
                together |= group
            if together:
                groups.append(together)
    return sorted(tuple(sorted(group)) for group in groups)


def _assign(made: Model, classes: tuple[int, ...], fixed: Assignment, limit: int) -> tuple[Assignment, bool]:
    """The best layouts of classes that hang together, and whether all assignments were tried."""
    involved = [
        (p, s, stretch.weight)
        for p, plan in enumerate(made.plans)
        for s, stretch in enumerate(plan.stretches)
        if not set(classes).isdisjoint(stretch.classes)
    ]

    def total(point: Assignment) -> Total:
        layouts = {**fixed, **point}
        costs = [weight * made.path(p, s, layouts)[0] for p, s, weight in involved]
        return sum(map(math.isinf, costs)), sum(cost for cost in costs if not math.isinf(cost))

    domains = [made.alternatives[c] for c in classes]
    if complete := math.prod(len(domain) for domain in domains) <= limit:
        points = (dict(zip(classes, point, strict=True)) for point in itertools.product(*domains))
        best = min(points, key=total)
    else:
        moves = _moves(made, classes, {(p, s) for p, s, _ in involved})
        best = min((_descend(start, moves, total) for start in _starts(made, classes)), key=total)
    if total(best)[0]:
        tensors = ", ".join(f"{made.names[c][0]} ({' or '.join(made.alternatives[c])})" for c in classes)
        raise CoverError(f"no layouts of {tensors} serve every plan at once")
    return best, complete


def _starts(made: Model, classes: tuple[int, ...]) -> Iterator[dict[int, str]]:
    """Every layout in turn, wherever it is an alternative; the first alternative elsewhere."""
    for wanted in sorted(
        {layout for c in classes for layout in made.alternatives[c]}, key=lambda n: (n != ROW_MAJOR, n)
    ):
        yield {c: wanted if wanted in made.alternatives[c] else made.alternatives[c][0] for c in classes}


def _moves(made: Model, classes: tuple[int, ...], involved: set[tuple[int, int]]) -> list[dict[int, str]]:
    """What one option wants of all its classes at once, then every class by itself."""
    moves: dict[tuple[tuple[int, str], ...], None] = {}
    for p, s in sorted(involved):
        for treatment in sorted({edge[2] for edge in made.plans[p].stretches[s].segment.edges}):
            here = made.treatments[treatment]
            for wanted in here.options:
                pairs = {c: layout for c, layout in zip(here.classes, wanted, strict=True) if c in classes}
                moves[tuple(sorted(pairs.items()))] = None
    singles = [{c: layout} for c in classes for layout in made.alternatives[c]]
    return [dict(move) for move in moves if len(move) > 1] + singles


def _descend(
    start: dict[int, str], moves: Sequence[dict[int, str]], total: Callable[[Assignment], Total]
) -> dict[int, str]:
    """Take improving moves until none is left."""
    best, cost = start, total(start)
    improved = True
    while improved:
        improved = False
        for move in moves:
            point = {**best, **move}
            if (found := total(point)) < cost:
                best, cost, improved = point, found, True
    return best


def _solution(problems: Sequence[Problem], made: Model, layouts: Assignment, exact: bool) -> Solution:
    cost = 0.0
    parts = []
    for p, (problem, plan) in enumerate(zip(problems, made.plans, strict=True)):
        served: dict[tuple[int, Choice], list[int]] = {}
        for s, stretch in enumerate(plan.stretches):
            best, edges = made.path(p, s, layouts)
            if math.isinf(best):
                raise CoverError(f"no allowed choices cover the {problem.graph.phase} graph with its fixed layouts")
            cost += stretch.weight * best
            for place in stretch.segment.places:
                for e in edges:
                    treatment, region, site = plan.spots[place[e]]
                    option = made.treatments[treatment].option(layouts)
                    assert option is not None
                    served.setdefault((region, option.choice), []).append(site)
        parts.append(_parts(problem, served))
    named = [(name, layouts[c]) for c, names in enumerate(made.names) for name in names if layouts[c] != ROW_MAJOR]
    return Solution(parts=tuple(parts), layouts=tuple(sorted(named)), exact=exact, cost_ns=cost)


def _parts(problem: Problem, served: dict[tuple[int, Choice], list[int]]) -> tuple[Part, ...]:
    regions = problem.partition.regions
    index = {node.id: i for i, node in enumerate(problem.graph.nodes)}

    def first(item: tuple[tuple[int, Choice], list[int]]) -> int:
        (region, _), sites = item
        return min(index[regions[region].sites[s].nodes[0]] for s in sites)

    return tuple(
        Part(region=regions[region].id, choice=choice, sites=tuple(sorted(sites)))
        for (region, choice), sites in sorted(served.items(), key=first)
    )
