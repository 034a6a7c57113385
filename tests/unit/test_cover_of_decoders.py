"""Covers, summaries and schedules of decoders; what is refused, and what is labelled heuristic."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agentcompile.ir.graph import Graph
from agentcompile.ir.region import Regime
from agentcompile.ir.target import Ceiling
from agentcompile.ir.trial import Choice, Fallback, Part
from agentcompile.regions.cover import cover, cover_jointly
from agentcompile.regions.downsets import CoverError, Spot, ways
from agentcompile.regions.kinds import Kind
from agentcompile.regions.partition import Partition, ordered, partition
from agentcompile.regions.problem import Option, Problem
from agentcompile.regions.schedule import schedule
from agentcompile.regions.summary import summarise
from tests.unit.graphs import Builder, Shape, decoder, llama, qwen3


def choice(name: str) -> Choice:
    return Fallback(reason=name)


def in_layers(shape: Shape, phase: str, *, packed_saves: float, weight: float = 1.0) -> Problem:
    """Options by bytes: fusing saves launches; packing saves a share of the time, or costs one."""
    graph = decoder(shape, phase)  # type: ignore[arg-type]
    found = partition(graph, Regime(phase=graph.phase, context=(1, 64)))
    options = {}
    for region in found.regions:
        cost = 1000.0 + region.cost.bytes
        families = [port.family for port in region.ports if port.role == "weight" and len(port.shape) == 2]
        options[region.id] = [Option(cost_ns=cost, choice=choice("plain"))]
        if families and not region.kind.startswith("position"):
            packed = tuple((family, "rows16") for family in dict.fromkeys(families))
            options[region.id].append(
                Option(layouts=packed, cost_ns=cost * (1 - packed_saves), choice=choice("packed"))
            )
    return Problem(graph=graph, partition=found, options=options, weight=weight)


def kinds_of(given: Problem, parts: tuple[Part, ...]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for part in parts:
        kind = given.partition.region(part.region).kind
        counts[kind] = counts.get(kind, 0) + len(part.sites)
    return counts


def test_a_decoder_is_covered_by_its_largest_regions_when_launches_cost():
    given_problem = in_layers(Shape(layers=4), "decode", packed_saves=0.1)
    solution = cover(given_problem)
    assert solution.exact
    assert kinds_of(given_problem, solution.parts[0]) == {
        "embedding": 1,
        "position-tables": 1,
        "rmsnorm-linear": 4,
        "qknorm-rope-attention-decode": 4,
        "linear-residual": 8,
        "rmsnorm-gateup-silu-mul": 4,
        "rmsnorm-linear-argmax": 1,
    }


def test_twenty_eight_layers_take_the_same_parts_as_one():
    few, many = (in_layers(Shape(layers=n), "decode", packed_saves=0.1) for n in (1, 28))
    one, all_of_them = cover(few), cover(many)
    assert all_of_them.exact
    assert [(part.region, part.choice) for part in one.parts[0]] == [
        (part.region, part.choice) for part in all_of_them.parts[0]
    ]
    assert {len(part.sites) for part in all_of_them.parts[0]} == {1, 28}


def test_decode_and_prefill_agree_on_the_layout_that_is_best_for_both():
    shape = Shape(layers=3)
    decode = in_layers(shape, "decode", packed_saves=0.2, weight=64)
    prefill = in_layers(shape, "prefill", packed_saves=-0.2)
    packed = cover_jointly([decode, prefill])
    assert dict(packed.layouts)["layers.0.q_proj.weight"] == "rows16"
    assert dict(packed.layouts)["embed.weight"] == "rows16"
    often = replace(prefill, weight=64_000.0)
    plain = cover_jointly([decode, often])
    assert plain.layouts == ()


def test_a_tied_table_has_one_layout_for_embedding_and_head():
    given_problem = in_layers(Shape(layers=1), "decode", packed_saves=0.2)
    heads = {r.id for r in given_problem.partition.regions if "argmax" in r.kind or dict(r.dims).get("rows") == 96}
    tables = {r.id for r in given_problem.partition.regions if r.kind == "embedding"}
    rows_only = {
        id: [option for option in options if id not in tables or not option.layouts]
        for id, options in given_problem.options.items()
    }
    assert "embed.weight" not in dict(cover(replace(given_problem, options=rows_only)).layouts)
    packed_only = {
        id: [option for option in options if id not in heads or option.layouts] for id, options in rows_only.items()
    }
    with pytest.raises(CoverError, match=r"no layouts of embed.weight \(row-major or rows16\) serve"):
        cover(replace(given_problem, options=packed_only))


def test_forbidding_a_choice_yields_its_runner_up():
    given_problem = in_layers(Shape(layers=2), "decode", packed_saves=0.2)
    first = cover(given_problem)
    part = next(p for p in first.parts[0] if given_problem.partition.region(p.region).kind == "rmsnorm-linear")
    second = cover(given_problem, forbidden={(part.region, part.choice)})
    assert second.cost_ns > first.cost_ns
    assert all((p.region, p.choice) != (part.region, part.choice) for p in second.parts[0])


def test_an_operator_without_options_is_named():
    given_problem = in_layers(Shape(layers=1), "decode", packed_saves=0.2)
    kept = {
        id: options
        for id, options in given_problem.options.items()
        if not any(node.op == "silu" for node in given_problem.partition.region(id).body.nodes)
    }
    with pytest.raises(CoverError, match="covers silu"):
        cover(replace(given_problem, options=kept))


def wide(branches: int, length: int) -> Graph:
    """Branches that a horizontal kind may pair up anywhere, so that many downsets are in play."""
    build = Builder()
    x = build.input("x", (1, 1, 8), "activation")
    ends = []
    for _ in range(branches):
        y = x
        for _ in range(length):
            y = build.op("relu", y, shape=(1, 1, 8))
        ends.append(y)
    total = ends[0]
    for end in ends[1:]:
        total = build.op("add", total, end, shape=(1, 1, 8))
    return build.graph(y=total)


def test_a_frontier_wider_than_the_limit_is_labelled_heuristic_and_still_covers():
    order = ordered(wide(4, 3), ())
    nodes = len(order.before)
    spots = [Spot(mask=1 << i, treatment=0, least=1.0) for i in range(nodes)]
    last = [i for i in range(nodes) if i % 3 == 2 and i < 12]
    spots.append(Spot(mask=sum(1 << i for i in last), treatment=1, least=1.0))
    spots.append(Spot(mask=sum(1 << (i - 2) for i in last), treatment=1, least=1.0))
    spots.append(Spot(mask=1 << 0 | 1 << 4, treatment=1, least=1.0))
    free, narrow = ways(order, spots), ways(order, spots, width=1)
    assert free.exact
    assert not narrow.exact
    assert narrow.segments


@pytest.mark.parametrize("graph", [qwen3(3), llama(3), decoder(Shape(), "prefill")])
def test_a_summary_puts_the_floor_of_the_step_together_from_its_cover(graph: Graph):
    found = partition(graph, Regime(phase=graph.phase, context=(1, 64)))
    ceiling = Ceiling(dram_bytes_per_s=30e9, cache_bytes_per_s=60e9, flops_per_s=1e12)
    summary = summarise(graph, found, ceiling, "dram")
    assert summary.exact
    assert summary.step_floor_ns == pytest.approx(sum(row.floor_ns * row.covered for row in summary.rows))
    assert sum(row.covered * len(row.region.body.nodes) for row in summary.rows) == len(graph.nodes)
    alone = [row for row in summary.rows if row.covered == len(row.region.sites)]
    assert sum(row.share for row in alone) <= 1 + 1e-9
    for row in summary.rows:
        # Weights and states from memory at 30 GB/s, everything from cache at 60 GB/s; a gather's rows are in cache.
        cost, gathers = row.region.cost, ("embedding", "position-table", "position-tables")
        far = 0 if row.region.kind in gathers else (cost.weight_bytes + cost.state_bytes) / 30
        assert row.floor_ns == pytest.approx(max(far, cost.bytes / 60, cost.flops / 1e3))
        assert cost.intensity == pytest.approx(cost.flops / cost.bytes)


def parts_of_two_layers() -> tuple[Partition, tuple[Part, ...]]:
    given_problem = in_layers(Shape(layers=2), "decode", packed_saves=0.1)
    return given_problem.partition, cover(given_problem).parts[0]


def test_a_plan_from_a_file_is_refused_when_it_does_not_cover_the_graph():
    graph = qwen3(2)
    found, parts = parts_of_two_layers()
    assert len(schedule(graph, found, parts)) == sum(len(part.sites) for part in parts)
    with pytest.raises(CoverError, match="is not covered"):
        schedule(graph, found, parts[1:])
    with pytest.raises(CoverError, match="covered twice"):
        schedule(graph, found, (*parts, parts[0]))
    with pytest.raises(CoverError, match="has no region"):
        schedule(graph, found, (*parts, replace(parts[0], region="f" * 64)))
    with pytest.raises(CoverError, match="none is number 7"):
        schedule(graph, found, (*parts[1:], replace(parts[0], sites=(7,))))


def test_parts_that_wait_for_each_other_are_refused():
    build = Builder()
    x = build.input("x", (1, 1, 8), "activation")
    a, c = (build.op("relu", x, shape=(1, 1, 8)) for _ in range(2))
    b, d = build.op("silu", a, shape=(1, 1, 8)), build.op("silu", c, shape=(1, 1, 8))
    graph = build.graph(b=b, d=d)
    across = Kind(name="across", pattern=("r = relu(x)", "s = relu(x)"))
    row = Kind(name="ends", pattern=("y = silu(r)",))
    found = partition(graph, Regime(phase="decode", context=(1, 64)), kinds=(across, row))
    region = next(region for region in found.regions if region.kind == "across")
    crossed = replace(
        region,
        sites=(
            replace(region.sites[0], nodes=("relu_0", "silu_3")),
            replace(region.sites[0], nodes=("relu_1", "silu_2")),
        ),
    )
    found = replace(found, regions=(crossed,))
    with pytest.raises(CoverError, match="wait for each other"):
        schedule(graph, found, (Part(region=crossed.id, choice=choice("plain")),))
