"""The reduced model for joint covers: tensors in classes, sites in treatments, plans in segments that repeat.

Tensors at the same ports of the same regions, and at the same position of stretches that repeat, form a class and get
one layout: what is best for one layer is best for its equals. Sites of one region whose ports hold the same classes
have one treatment: their costs are equal under every assignment of layouts to classes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from agentcompile.ir.graph import Graph
from agentcompile.ir.trial import Choice
from agentcompile.regions.downsets import Segment, Spot, Ways, ways
from agentcompile.regions.order import Order, root
from agentcompile.regions.partition import ordered
from agentcompile.regions.problem import ROW_MAJOR, Option, Problem

RESIDENT = frozenset({"weight", "constant", "state"})
"""The roles of values that have a resident layout."""

Assignment = Mapping[int, str]
"""The layout of each class."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Treatment:
    """The options of some sites: the cheapest one for each combination of layouts at the resident ports."""

    classes: tuple[int, ...]
    """The class of the tensor at each resident port, in the ports' order."""
    options: Mapping[tuple[str, ...], Option]

    def option(self, layouts: Assignment) -> Option | None:
        """Return the cheapest option under an assignment; None when every option wants other layouts."""
        return self.options.get(tuple(layouts[c] for c in self.classes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """A segment, the classes on which its cost depends, and how often its cost counts."""

    segment: Segment
    classes: tuple[int, ...]
    weight: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStretches:
    """One problem as stretches over spots."""

    stretches: tuple[Stretch, ...]
    exact: bool
    spots: tuple[tuple[int, int, int], ...]
    """The treatment, the region and the site of each spot, as indices."""


Path = tuple[float, tuple[int, ...]]
"""The cost of a segment's best path and its edges; infinite and empty when there is no path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JointProblem:
    """The data for covering jointly; `solved` caches the best path of a stretch by the layouts it depends on."""

    names: tuple[tuple[str, ...], ...]
    """The tensor names of each class."""
    alternatives: tuple[tuple[str, ...], ...]
    """The layouts in which some option wants each class, row-major first."""
    treatments: tuple[Treatment, ...]
    plans: tuple[PlannedStretches, ...]
    solved: dict[tuple[int, int, tuple[str, ...]], Path] = field(default_factory=dict)

    def path(self, plan: int, stretch: int, layouts: Assignment) -> Path:
        """Return the best path of a stretch under an assignment."""
        here = self.plans[plan].stretches[stretch]
        key = plan, stretch, tuple(layouts[c] for c in here.classes)
        if key not in self.solved:
            costs: dict[int, float] = {}
            for treatment in {edge[2] for edge in here.segment.edges}:
                option = self.treatments[treatment].option(layouts)
                costs[treatment] = math.inf if option is None else option.cost_ns
            self.solved[key] = shortest(here.segment, costs)
        return self.solved[key]


def shortest(segment: Segment, costs: Mapping[int, float]) -> Path:
    """Return the cheapest path of a segment for these treatment costs; among equals, one with the fewest parts."""
    best: list[tuple[float, int]] = [(math.inf, 0)] * segment.states
    via = [-1] * segment.states
    best[0] = (0.0, 0)
    for e, (start, end, treatment) in enumerate(segment.edges):
        cost, parts = best[start]
        reached = (cost + costs[treatment], parts + 1)
        if reached < best[end]:
            best[end], via[end] = reached, e
    if math.isinf(best[-1][0]):
        return math.inf, ()
    edges: list[int] = []
    state = segment.states - 1
    while state:
        edges.append(via[state])
        state = segment.edges[via[state]][0]
    return best[-1][0], tuple(reversed(edges))


def model(problems: Sequence[Problem], forbidden: Collection[tuple[str, Choice]], width: int) -> JointProblem:
    """Prepare problems for covering.

    Raises:
        CoverError: an operator has no option.
    """
    prepared = [_prepare(problem, forbidden) for problem in problems]
    classes = _classes(prepared)
    while True:
        table = _Treatments()
        spots = [_spots(plan, p, classes, table) for p, plan in enumerate(prepared)]
        every = [ways(plan.order, plan_spots, width=width) for plan, plan_spots in zip(prepared, spots, strict=True)]
        finer = _refined(prepared, every, classes)
        if len(set(finer.values())) == len(set(classes.values())):
            break
        classes = finer
    names: list[list[str]] = [[] for _ in set(classes.values())]
    for name, c in classes.items():
        names[c].append(name)
    alternatives = _alternatives(len(names), table.made)
    open_classes = {c for c, layouts in enumerate(alternatives) if len(layouts) > 1}
    plans = tuple(
        PlannedStretches(
            stretches=tuple(_stretch(segment, plan.weight, table.made, open_classes) for segment in found.segments),
            exact=found.exact,
            spots=tuple((s.treatment, site.region, site.index) for s, site in zip(plan_spots, plan.sites, strict=True)),
        )
        for plan, plan_spots, found in zip(prepared, spots, every, strict=True)
    )
    return JointProblem(
        names=tuple(map(tuple, names)), alternatives=alternatives, treatments=tuple(table.made), plans=plans
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Placed:
    """A site that has options, with the tensors at its resident ports."""

    region: int
    index: int
    mask: int
    residents: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prepared:
    order: Order
    weight: float
    options: Mapping[int, tuple[Option, ...]]
    """The options by region index; only regions that have some."""
    sites: tuple[_Placed, ...]


def _prepare(problem: Problem, forbidden: Collection[tuple[str, Choice]]) -> _Prepared:
    order = ordered(problem.graph, problem.partition.boundaries)
    options = _allowed(problem, forbidden)
    tensors = _tensors(problem.graph)
    sites = tuple(
        _Placed(
            region=r,
            index=s,
            mask=order.mask(site.nodes),
            residents=tuple((port, tensors[value]) for port, value in site.bindings if value in tensors),
        )
        for r in options
        for s, site in enumerate(problem.partition.regions[r].sites)
    )
    return _Prepared(order=order, weight=problem.weight, options=options, sites=sites)


def _allowed(problem: Problem, forbidden: Collection[tuple[str, Choice]]) -> dict[int, tuple[Option, ...]]:
    found = {}
    for r, region in enumerate(problem.partition.regions):
        id = region.id
        options = tuple(o for o in problem.options.get(id, ()) if not forbidden or (id, o.choice) not in forbidden)
        if options:
            found[r] = options
    return found


def _tensors(graph: Graph) -> dict[str, str]:
    """Return the name of the resident tensor for every value that lives in the buffer of one."""
    table = graph.table()
    aliases = {value.id: value.alias for value in graph.values}
    owners = {value.id: table.get(root(aliases, value.id), value) for value in graph.values}
    return {id: owner.name or owner.id for id, owner in owners.items() if owner.role in RESIDENT}


def _classes(prepared: Sequence[_Prepared]) -> dict[str, int]:
    """Assign a class number to every tensor by the ports at which it occurs, over all plans and regions."""
    stands: dict[str, list[tuple[int, int, str]]] = {}
    for p, plan in enumerate(prepared):
        for site in plan.sites:
            for port, name in site.residents:
                stands.setdefault(name, []).append((p, site.region, port))
    return _numbered({name: frozenset(where) for name, where in stands.items()})


def _refined(prepared: Sequence[_Prepared], every: Sequence[Ways], classes: Mapping[str, int]) -> dict[str, int]:
    """Split classes whose tensors are at different positions of one stretch."""
    stands: dict[str, list[tuple[int, int, int, int]]] = {name: [] for name in classes}
    for p, (plan, found) in enumerate(zip(prepared, every, strict=True)):
        for g, segment in enumerate(found.segments):
            for place in segment.places:
                for position, spot in enumerate(dict.fromkeys(place)):
                    for k, (_, name) in enumerate(plan.sites[spot].residents):
                        stands[name].append((p, g, position, k))
    return _numbered({name: (classes[name], frozenset(where)) for name, where in stands.items()})


def _numbered(keys: Mapping[str, Hashable]) -> dict[str, int]:
    numbers: dict[Hashable, int] = {}
    return {name: numbers.setdefault(key, len(numbers)) for name, key in keys.items()}


class _Treatments:
    def __init__(self) -> None:
        self.made: list[Treatment] = []
        self._numbers: dict[tuple[int, int, tuple[tuple[str, int], ...]], int] = {}

    def number(self, plan: int, region: int, ports: tuple[tuple[str, int], ...], options: Sequence[Option]) -> int:
        """Return the number of a region's treatment with these (port, class) pairs."""
        key = plan, region, ports
        if key not in self._numbers:
            self._numbers[key] = len(self.made)
            best: dict[tuple[str, ...], Option] = {}
            for option in options:
                wanted = tuple(option.layout(port.partition(".")[0]) for port, _ in ports)
                if wanted not in best or option.cost_ns < best[wanted].cost_ns:
                    best[wanted] = option
            self.made.append(Treatment(classes=tuple(c for _, c in ports), options=best))
        return self._numbers[key]


def _spots(plan: _Prepared, number: int, classes: Mapping[str, int], table: _Treatments) -> list[Spot]:
    least = {r: min(option.cost_ns for option in options) for r, options in plan.options.items()}
    spots = []
    for site in plan.sites:
        ports = tuple((port, classes[name]) for port, name in site.residents)
        treatment = table.number(number, site.region, ports, plan.options[site.region])
        spots.append(Spot(mask=site.mask, treatment=treatment, least=least[site.region]))
    return spots


def _alternatives(count: int, treatments: Sequence[Treatment]) -> tuple[tuple[str, ...], ...]:
    wanted: list[set[str]] = [set() for _ in range(count)]
    for treatment in treatments:
        for layouts in treatment.options:
            for c, layout in zip(treatment.classes, layouts, strict=True):
                wanted[c].add(layout)
    return tuple(tuple(sorted(layouts, key=lambda name: (name != ROW_MAJOR, name))) for layouts in wanted)


def _stretch(segment: Segment, weight: float, treatments: Sequence[Treatment], choosable: set[int]) -> Stretch:
    classes = {c for *_, t in segment.edges for c in treatments[t].classes} & choosable
    return Stretch(segment=segment, classes=tuple(sorted(classes)), weight=weight * len(segment.places))
