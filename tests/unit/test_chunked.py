"""A prefill of any number of tokens made one of a given number: what is bound, what stays, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from agentcompile.capture.chunked import NotBindableError, at_tokens
from agentcompile.ir.graph import Graph, Use, View
from agentcompile.ir.region import Regime
from agentcompile.ir.trial import Fallback
from agentcompile.regions.cover import cover
from agentcompile.regions.partition import Partition, partition
from agentcompile.regions.problem import Option, Problem
from tests.unit.graphs import Builder, Shape, decoder, qwen3

TOKENS = 5
PREFILL = {
    "qwen3": decoder(Shape(), "prefill"),
    "llama": decoder(Shape(qk_norm=False, tied=False), "prefill"),
    "one head of keys": decoder(Shape(kv_heads=1), "prefill"),
}


def cut(graph: Graph, tokens: int = TOKENS) -> Partition:
    return partition(graph, Regime(phase="prefill", context=(1, Shape().context)), tokens=tokens)


@pytest.mark.parametrize("graph", PREFILL.values(), ids=PREFILL)
def test_no_extent_stays_open_and_nothing_else_changes(graph: Graph) -> None:
    bound = at_tokens(graph, TOKENS)
    assert bound.phase == "prefill"
    dims = [dim for value in bound.values for dim in value.shape]
    uses = [use for node in bound.nodes for use in node.inputs] + [use for _, use in bound.outputs]
    dims += [arg for use in uses for view in use.views for arg in view.args]
    assert all(isinstance(dim, int) for dim in dims)
    for old, new in zip(graph.values, bound.values, strict=True):
        assert new == replace(old, shape=tuple(TOKENS if dim == "T" else dim for dim in old.shape))
    assert [replace(n, inputs=()) for n in bound.nodes] == [replace(n, inputs=()) for n in graph.nodes]
    assert (bound.inputs, [name for name, _ in bound.outputs]) == (graph.inputs, [name for name, _ in graph.outputs])


@pytest.mark.parametrize("graph", PREFILL.values(), ids=PREFILL)
@pytest.mark.parametrize("tokens", [1, 4, TOKENS, 64])
def test_a_chunk_is_cut_into_the_same_kinds_at_the_same_sites(graph: Graph, tokens: int) -> None:
    whole, bound = cut(graph, tokens), cut(at_tokens(graph, tokens), tokens)
    assert [(r.kind, r.sites, r.dims, r.constants, r.stated) for r in bound.regions] == [
        (r.kind, r.sites, r.dims, r.constants, r.stated) for r in whole.regions
    ]
    assert not bound.boundaries
    assert [refusal.nodes for refusal in bound.refusals] == [refusal.nodes for refusal in whole.refusals]
    assert {region.cost for region in bound.regions} == {region.cost for region in whole.regions}
    assert all(isinstance(dim, int) for region in bound.regions for port in region.ports for dim in port.shape)


def test_a_cover_found_at_one_length_is_one_at_another() -> None:
    def covered(tokens: int) -> list[tuple[str, tuple[tuple[str, ...], ...]]]:
        graph = at_tokens(PREFILL["qwen3"], tokens)
        found = cut(graph, tokens)
        launch = Option(cost_ns=1.0, choice=Fallback(reason="a launch each"))
        options = {region.id: (launch,) for region in found.regions}
        solved = cover(Problem(graph=graph, partition=found, options=options))
        parts = [(found.region(part.region), part.sites) for part in solved.parts[0]]
        return [(region.kind, tuple(region.sites[i].nodes for i in sites)) for region, sites in parts]

    assert covered(4) == covered(64)


def test_lengths_are_programs_of_their_own() -> None:
    assert len({at_tokens(PREFILL["llama"], tokens).digest() for tokens in (1, 2, 8, 64)}) == 4


def test_a_slice_that_counts_from_the_end_still_does() -> None:
    (use,) = [use for node in at_tokens(PREFILL["qwen3"], TOKENS).nodes for use in node.inputs if _slices(use)]
    assert use.views == (View(op="slice", args=(1, -1, TOKENS)),)


def _slices(use: Use) -> bool:
    return any(view.op == "slice" for view in use.views)


def test_multiples_of_the_tokens_inside_an_aten_call_become_numbers() -> None:
    build = Builder("prefill")
    x = build.input("x", (1, "T", 8), "activation")
    call = {"args": [{"$": 0}, [{"$t": 2}, 4], "T"], "kwargs": {"dtype": {"$dtype": "fp32"}, "size": [{"$t": 1}]}}
    y = build.op("aten.reshape.default", x, shape=("T", 8), template=json.dumps(call, sort_keys=True))
    (node,) = at_tokens(build.graph(y=y), 3).nodes
    assert json.loads(str(node.attr("template"))) == {
        "args": [{"$": 0}, [6, 4], "T"],
        "kwargs": {"dtype": {"$dtype": "fp32"}, "size": [3]},
    }


def test_a_decode_step_is_refused() -> None:
    with pytest.raises(NotBindableError, match="a decode graph has no chunk of tokens"):
        at_tokens(qwen3(), 2)


def test_a_chunk_without_tokens_is_refused() -> None:
    with pytest.raises(NotBindableError, match="a chunk of 0 tokens"):
        at_tokens(PREFILL["qwen3"], 0)


def test_a_graph_of_one_token_at_a_time_is_that_and_nothing_else() -> None:
    one = replace(qwen3(), phase="prefill")
    assert at_tokens(one, 1) == one
    with pytest.raises(NotBindableError, match="takes 1 tokens at a time, not 8"):
        at_tokens(one, 8)


@pytest.mark.parametrize("where", ["value", "view"])
def test_an_extent_that_is_not_the_tokens_is_refused_with_its_place(where: str) -> None:
    build = Builder("prefill")
    x = build.input("x", (1, "S" if where == "value" else "T", 8), "activation")
    views = (View(op="reshape", args=(1, "S", 8)),) if where == "view" else ()
    build.module = "layers.0.mlp"
    graph = build.graph(y=build.op("silu", Use(value=x, views=views), shape=(1, "T", 8)))
    place = "x" if where == "value" else "a view of silu at layers.0.mlp"
    with pytest.raises(NotBindableError, match=f"^{place} has the extent 'S'"):
        at_tokens(graph, 2)
