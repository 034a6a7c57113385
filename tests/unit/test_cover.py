"""Covers are exact, acyclic and cheapest: against brute force on small random graphs."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcompile.ir.graph import Graph
from agentcompile.ir.region import Cost, Regime, Region, Site
from agentcompile.ir.trial import Choice, Fallback, Part
from agentcompile.regions.cover import cover, cover_jointly
from agentcompile.regions.kinds import REGION_KINDS, Kind
from agentcompile.regions.order import Order, bits
from agentcompile.regions.partition import Partition, ordered, partition
from agentcompile.regions.problem import ROW_MAJOR, Option, Problem, Solution
from agentcompile.regions.schedule import schedule
from tests.unit.graphs import Builder

KINDS = (
    *REGION_KINDS,
    Kind(name="relu-silu", pattern=("a = relu(x)", "y = silu(a)"), exposes=("a",)),
    Kind(name="silu-add", pattern=("a = silu(x)", "y = add(a, z)"), exposes=("a",)),
    Kind(name="two-sums", pattern=("s = add(x, z)", "a = silu(s)", "y = add(a, s)"), exposes=("a", "s")),
    Kind(name="linear-relu-linear", pattern=("a = linear(x, w)", "b = relu(a)", "y = linear(b, v)"), exposes=("a",)),
)
LAYOUTS = (ROW_MAJOR, "rows8", "rows16")


def choice(name: str) -> Choice:
    return Fallback(reason=name)


def small_graph(seed: int, nodes: int) -> Graph:
    """A random graph of a few operators on one width; weights are sometimes shared."""
    rng = random.Random(seed)
    build = Builder()
    made = [build.input("x", (1, 1, 8), "activation")]
    for i in range(nodes):
        op = rng.choice(["linear", "linear", "relu", "silu", "add", "mul"])
        recent = made[-4:]
        if op == "linear":
            weight = build.input(f"w{rng.choice([i, i, i // 2])}", (8, 8))
            made.append(build.op(op, rng.choice(recent), weight, shape=(1, 1, 8)))
        elif op in ("add", "mul"):
            made.append(build.op(op, rng.choice(recent), rng.choice(recent), shape=(1, 1, 8)))
        else:
            made.append(build.op(op, rng.choice(recent), shape=(1, 1, 8)))
    return build.graph(y=made[-1], z=made[len(made) // 2])


def problem(graph: Graph, seed: int, *, layouts: tuple[str, ...] = LAYOUTS, weight: float = 1.0) -> Problem:
    """Every region gets options at random costs; single operators always run row-major and in every layout."""
    rng = random.Random(seed)
    found = partition(graph, Regime(phase=graph.phase, context=(1, 64)), kinds=KINDS)
    options: dict[str, list[Option]] = {}
    for region in found.regions:
        families = sorted({port.family for port in region.ports if port.role == "weight"})
        alone = len(region.body.nodes) == 1
        if not alone and rng.random() < 0.2:
            continue
        here = []
        for wanted in itertools.product(layouts, repeat=len(families)):
            if alone or rng.random() < 0.5:
                cost = rng.randint(1, 40) * len(region.body.nodes) ** 0.5
                pairs = tuple((f, layout) for f, layout in zip(families, wanted, strict=True) if layout != ROW_MAJOR)
                here.append(Option(layouts=pairs, cost_ns=cost, choice=choice("+".join(wanted) or "plain")))
        options[region.id] = here
    return Problem(graph=graph, partition=found, options=options, weight=weight)


def tangled(graph: Graph, seed: int, *, weight: float = 1.0) -> Problem:
    """Regions that no table would hold: any convex sets, connected or not, that overlap and wait for each other."""
    rng = random.Random(seed)
    order = ordered(graph, ())
    weights = {value.id for value in graph.values if value.role == "weight"}
    regime = Regime(phase="decode")
    sets = [{node.id} for node in graph.nodes]
    for _ in range(3 * len(graph.nodes)):
        chosen = set(rng.sample([node.id for node in graph.nodes], min(len(graph.nodes), rng.choice([2, 2, 3, 4]))))
        if order.convex(order.mask(chosen)) and chosen not in sets:
            sets.append(chosen)
    grouped: dict[tuple[int, int, bool], list[Site]] = {}
    for i, chosen in enumerate(sets):
        used = dict.fromkeys(
            use.value for n in graph.nodes if n.id in chosen for use in n.inputs if use.value in weights
        )
        site = Site(nodes=tuple(sorted(chosen)), bindings=tuple((f"w{k}", value) for k, value in enumerate(used)))
        grouped.setdefault((len(chosen), len(used), i < 2 or rng.random() < 0.5), []).append(site)
    regions: list[Region] = []
    options: dict[str, list[Option]] = {}
    empty = Graph(phase="decode", values=(), nodes=(), inputs=(), outputs=())
    cost = Cost(flops=0, weight_bytes=0, state_bytes=0, activation_bytes=0)
    for (size, ports, _), sites in grouped.items():
        for some in (sites[::2], sites[1::2]):
            dims = (("number", len(regions)),)
            region = Region(kind="any", regime=regime, body=empty, ports=(), dims=dims, sites=tuple(some), cost=cost)
            regions.append(region)
            options[region.id] = [
                Option(
                    layouts=tuple((f"w{k}", layout) for k, layout in enumerate(wanted) if layout != ROW_MAJOR),
                    cost_ns=rng.randint(8, 30) * size**0.8,
                    choice=choice("+".join(wanted) or "plain"),
                )
                for wanted in itertools.product(LAYOUTS, repeat=ports)
                if size == 1 or rng.random() < 0.5
            ]
    return Problem(
        graph=graph,
        partition=Partition(regime=regime, regions=tuple(regions), boundaries=()),
        options=options,
        weight=weight,
    )


def sites_of(given: Problem) -> list[tuple[int, str, dict[str, str]]]:
    """(mask, region, bindings) of every site."""
    order = ordered(given.graph, given.partition.boundaries)
    return [
        (order.mask(site.nodes), region.id, dict(site.bindings))
        for region in given.partition.regions
        for site in region.sites
    ]


def every_cover(full: int, masks: list[int], chosen: tuple[int, ...] = (), done: int = 0) -> Iterator[tuple[int, ...]]:
    """All exact partitions of the nodes into sites, cyclic or not."""
    if done == full:
        yield chosen
        return
    first = (~done & (done + 1)).bit_length() - 1
    for i, mask in enumerate(masks):
        if mask >> first & 1 and not mask & done:
            yield from every_cover(full, masks, (*chosen, i), done | mask)


def acyclic(order: Order, masks: list[int]) -> bool:
    waiting, done = list(masks), 0
    while waiting:
        ready = [mask for mask in waiting if not order.needs(mask) & ~done]
        if not ready:
            return False
        done |= ready[0]
        waiting.remove(ready[0])
    return True


def cheapest(given: Problem, covers: list[tuple[int, ...]], layouts: dict[str, str]) -> float:
    """The best cost over `covers` under one layout a tensor, by looking at every option at every site."""
    names = {value.id: value.name for value in given.graph.values if value.role == "weight"}
    costs = []
    for _, region, bindings in sites_of(given):
        fitting = [
            option.cost_ns
            for option in given.options.get(region, ())
            if all(
                option.layout(port.partition(".")[0]) == layouts[names[value]]
                for port, value in bindings.items()
                if value in names
            )
        ]
        costs.append(min(fitting, default=math.inf))
    return min(sum(costs[i] for i in covered) for covered in covers)


def brute_force(problems: list[Problem]) -> float:
    tensors = sorted({v.name for each in problems for v in each.graph.values if v.role == "weight"})
    legal = []
    for each in problems:
        order = ordered(each.graph, each.partition.boundaries)
        masks = [mask for mask, *_ in sites_of(each)]
        every = every_cover((1 << len(each.graph.nodes)) - 1, masks)
        legal.append([covered for covered in every if acyclic(order, [masks[i] for i in covered])])
    best = math.inf
    for point in itertools.product(LAYOUTS, repeat=len(tensors)):
        layouts = dict(zip(tensors, point, strict=True))
        pairs = zip(problems, legal, strict=True)
        best = min(best, sum(each.weight * cheapest(each, covers, layouts) for each, covers in pairs))
    return best


def recount(given: Problem, parts: tuple[Part, ...], solution: Solution) -> float:
    """What a plan costs, adding up its sites, and that its choices want the layouts that were agreed."""
    agreed = dict(solution.layouts)
    names = {value.id: value.name for value in given.graph.values if value.role == "weight"}
    total = 0.0
    for step in schedule(given.graph, given.partition, parts):
        options = [option for option in given.options[step.region.id] if option.choice == step.choice]
        fitting = [
            option.cost_ns
            for option in options
            if all(
                option.layout(port.partition(".")[0]) == agreed.get(names[value], ROW_MAJOR)
                for port, value in step.site.bindings
                if value in names
            )
        ]
        total += min(fitting)
    return total * given.weight


@given(seed=st.integers(0, 10_000), nodes=st.integers(1, 7))
def test_a_cover_of_a_small_graph_costs_what_brute_force_finds(seed: int, nodes: int):
    given_problem = problem(small_graph(seed, nodes), seed)
    solution = cover(given_problem)
    assert solution.exact
    assert solution.cost_ns == pytest.approx(brute_force([given_problem]))
    assert recount(given_problem, solution.parts[0], solution) == pytest.approx(solution.cost_ns)


@given(seed=st.integers(0, 10_000), nodes=st.integers(1, 6))
def test_a_cover_by_arbitrary_convex_sets_costs_what_brute_force_finds(seed: int, nodes: int):
    given_problem = tangled(small_graph(seed, nodes), seed)
    solution = cover(given_problem)
    assert solution.exact
    assert solution.cost_ns == pytest.approx(brute_force([given_problem]))
    assert recount(given_problem, solution.parts[0], solution) == pytest.approx(solution.cost_ns)


@given(seed=st.integers(0, 10_000), nodes=st.integers(1, 5))
def test_two_plans_agree_on_layouts_at_the_cost_that_brute_force_finds(seed: int, nodes: int):
    problems = [
        problem(small_graph(seed, nodes), seed, weight=3.0),
        problem(small_graph(seed + 1, nodes), seed + 1),
    ]
    solution = cover_jointly(problems)
    assert solution.exact
    assert solution.cost_ns == pytest.approx(brute_force(problems))
    total = sum(recount(p, parts, solution) for p, parts in zip(problems, solution.parts, strict=True))
    assert total == pytest.approx(solution.cost_ns)


@given(seed=st.integers(0, 10_000), nodes=st.integers(1, 14))
def test_every_region_is_convex_and_every_cover_is_exact(seed: int, nodes: int):
    graph = small_graph(seed, nodes)
    given_problem = problem(graph, seed)
    order = ordered(graph, given_problem.partition.boundaries)
    for mask, *_ in sites_of(given_problem):
        outside = order.needs(mask)
        behind = 0
        for i in bits(outside):
            behind |= order.ancestors[i]
        assert not behind & mask
    solution = cover(given_problem)
    steps = schedule(graph, given_problem.partition, solution.parts[0])
    assert sorted(node for step in steps for node in step.site.nodes) == sorted(node.id for node in graph.nodes)
    ran: set[str] = set()
    producers = graph.producers()
    for step in steps:
        for id in step.site.nodes:
            node = next(node for node in graph.nodes if node.id == id)
            makers = {producers[use.value].id for use in node.inputs if use.value in producers}
            assert makers <= ran | set(step.site.nodes)
        ran |= set(step.site.nodes)


@given(seed=st.integers(0, 10_000))
def test_beyond_the_limits_the_result_is_legal_dearer_or_equal_and_labelled(seed: int):
    given_problem = problem(small_graph(seed, 6), seed)
    best = cover(given_problem)
    rough = cover_jointly([given_problem], assignments=1)
    assert rough.cost_ns >= best.cost_ns - 1e-9
    assert recount(given_problem, rough.parts[0], rough) == pytest.approx(rough.cost_ns)
    assert not rough.exact or rough.cost_ns == pytest.approx(best.cost_ns)
