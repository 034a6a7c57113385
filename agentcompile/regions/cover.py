"""The cheapest exact cover of one or several plans, with one resident layout for every tensor they share.

In: for each plan its graph, its partition and the options of each region. Out: `Solution`. A graph falls into segments
that repeat, and a segment's best path depends only on the layouts of its own tensor classes. Classes that no segment
connects are solved separately. All assignments of layouts are tried, up to `ASSIGNMENTS` for a group of connected
classes; beyond that, coordinate descent is used and the result is labelled heuristic. `downsets` names the source of
the method.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Sequence

from agentcompile.ir.trial import Choice, Part
from agentcompile.regions.downsets import WIDTH, CoverError
from agentcompile.regions.problem import ROW_MAJOR, Problem, Solution
from agentcompile.regions.treatments import Assignment, JointProblem, model

ASSIGNMENTS = 4096
"""The most assignments of layouts that are tried exhaustively for a group of connected classes."""

Total = tuple[int, float]
"""The number of stretches that an assignment leaves without a path, and the cost of the others."""


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
    """Find the cheapest covers that agree on layouts.

    Pairs (region id, choice) in `forbidden` are excluded, which yields the next best cover. `assignments` and `width`
    limit how much is searched exactly.

    Raises:
        CoverError: an operator has no option, or no layout of a tensor serves every plan.
    """
    made = model(problems, forbidden, width)
    best = {c: layouts[0] for c, layouts in enumerate(made.alternatives)}
    exact = all(plan.exact for plan in made.plans)
    for classes in _components(made):
        found, complete = _assign(made, classes, best, assignments)
        best.update(found)
        exact = exact and complete
    return _solution(problems, made, best, exact)


def _components(made: JointProblem) -> list[tuple[int, ...]]:
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


def _assign(made: JointProblem, classes: tuple[int, ...], fixed: Assignment, limit: int) -> tuple[Assignment, bool]:
    """Return the best layouts of a group of connected classes, and whether all assignments were tried."""  # noqa: DOC501
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


def _starts(made: JointProblem, classes: tuple[int, ...]) -> Iterator[dict[int, str]]:
    """Yield one start per layout: that layout wherever it is an alternative, elsewhere the first alternative."""
    for wanted in sorted(
        {layout for c in classes for layout in made.alternatives[c]}, key=lambda n: (n != ROW_MAJOR, n)
    ):
        yield {c: wanted if wanted in made.alternatives[c] else made.alternatives[c][0] for c in classes}


def _moves(made: JointProblem, classes: tuple[int, ...], involved: set[tuple[int, int]]) -> list[dict[int, str]]:
    """Return the moves of the descent: what one option wants of all its classes at once, then each class alone."""
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
    best, cost = start, total(start)
    improved = True
    while improved:
        improved = False
        for move in moves:
            point = {**best, **move}
            if (found := total(point)) < cost:
                best, cost, improved = point, found, True
    return best


def _solution(problems: Sequence[Problem], made: JointProblem, layouts: Assignment, exact: bool) -> Solution:
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
