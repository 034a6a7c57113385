"""A decode graph of one sequence made one of several: what changes, what stays, and what is refused with its reason."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agentcompile.capture.batched import NotBatchableError, batched
from agentcompile.ir.graph import Graph, Use, View
from agentcompile.ir.region import Regime
from agentcompile.regions.partition import Partition, partition
from tests.unit.graphs import Builder, Shape, decoder, llama, permuted, qwen3

BATCH = 4


def cut(graph: Graph, batch: int) -> Partition:
    return partition(graph, Regime(phase="decode", batch=batch, context=(1, Shape().context)))


def test_every_sequence_has_a_token_a_position_and_a_cache_of_its_own() -> None:
    before, after = qwen3(), batched(qwen3(), BATCH)
    for old, new in zip(before.values, after.values, strict=True):
        shared = old.role in ("weight", "constant")
        assert new == (old if shared else replace(old, shape=(BATCH, *old.shape[1:])))
    shapes = {value.name: value.shape for value in after.values if value.name}
    assert shapes["token"] == (BATCH, 1)
    assert shapes["positions"] == (BATCH,)
    assert shapes["k.0"] == (BATCH, Shape().kv_heads, Shape().context, Shape().head_dim)


def test_the_operators_and_what_they_share_stay_as_they_are() -> None:
    before, after = qwen3(), batched(qwen3(), BATCH)
    assert [replace(node, inputs=()) for node in after.nodes] == [replace(node, inputs=()) for node in before.nodes]
    assert (after.inputs, after.phase) == (before.inputs, before.phase)
    assert [(name, use.value) for name, use in after.outputs] == [(name, use.value) for name, use in before.outputs]


def test_one_sequence_leaves_the_graph_alone_and_every_number_of_them_is_another_program() -> None:
    graph = llama()
    assert batched(graph, 1) is graph
    assert len({batched(graph, batch).digest() for batch in (1, 2, 3, 8)}) == 4


@pytest.mark.parametrize("graph", [qwen3(), llama()], ids=["qwen3", "llama"])
def test_a_batch_is_cut_into_the_same_kinds_at_the_same_sites(graph: Graph) -> None:
    one, four = cut(graph, 1), cut(batched(graph, BATCH), BATCH)
    assert [(region.kind, region.sites) for region in four.regions] == [
        (region.kind, region.sites) for region in one.regions
    ]
    assert not four.boundaries
    assert [refusal.reason for refusal in four.refusals] == [refusal.reason for refusal in one.refusals]


def test_extents_count_sequences_where_they_should_and_only_there() -> None:
    one, four = cut(qwen3(), 1), cut(batched(qwen3(), BATCH), BATCH)
    for alone, together in zip(one.regions, four.regions, strict=True):
        before, after = dict(alone.dims), dict(together.dims)
        assert after.pop("tokens") == BATCH * before.pop("tokens")
        grows = {"silu-mul": {"width"}, "rmsnorm": {"groups"}}.get(alone.kind, {"numel"})
        assert after == {name: extent * (BATCH if name in grows else 1) for name, extent in before.items()}
        assert together.constants == alone.constants
        assert together.id != alone.id


def test_weights_are_read_once_for_all_and_everything_else_once_a_sequence() -> None:
    one, four = cut(qwen3(), 1), cut(batched(qwen3(), BATCH), BATCH)
    for alone, together in zip(one.regions, four.regions, strict=True):
        gathers = alone.kind in ("embedding", "position-table", "position-tables")
        assert together.cost.weight_bytes == alone.cost.weight_bytes * (BATCH if gathers else 1)
        assert together.cost.state_bytes == alone.cost.state_bytes * BATCH
        assert together.cost.activation_bytes == alone.cost.activation_bytes * BATCH
        assert together.cost.flops == alone.cost.flops * BATCH


def test_prefill_is_refused() -> None:
    with pytest.raises(NotBatchableError, match="a prefill graph runs one sequence at a time"):
        batched(decoder(phase="prefill"), BATCH)


def test_prefill_of_one_sequence_is_refused_too() -> None:
    with pytest.raises(NotBatchableError, match="prefill"):
        batched(decoder(phase="prefill"), 1)


@pytest.mark.parametrize("shape", [(2, 8), ()], ids=["another extent first", "no extents"])
def test_a_value_without_a_leading_one_is_refused_by_name(shape: tuple[int, ...]) -> None:
    build = Builder()
    x = build.input("odd", shape, "activation")
    with pytest.raises(NotBatchableError, match=r"odd of shape \[.*\] has no leading extent of 1"):
        batched(build.graph(y=build.op("silu", x, shape=shape)), BATCH)


def test_an_unnamed_value_is_refused_by_its_id() -> None:
    build = Builder()
    y = build.op("silu", build.input("x", (1, 8), "activation"), shape=(8,))
    with pytest.raises(NotBatchableError, match=rf"^{y} of shape \[8\]"):
        batched(build.graph(y=y), BATCH)


def test_an_unknown_operator_is_refused_by_name_and_place() -> None:
    build = Builder()
    x = build.input("x", (1, 1, 8), "activation")
    build.module = "layers.0.mlp"
    with pytest.raises(NotBatchableError, match=r"aten\.cumsum\.default at layers\.0\.mlp is not known"):
        batched(build.graph(y=build.op("aten.cumsum.default", x, shape=(1, 1, 8))), BATCH)


def through(view: View) -> Graph:
    build = Builder()
    x = build.input("x", (1, 2, 8), "activation")
    return build.graph(y=build.op("silu", Use(value=x, views=(view,)), shape=(1, 2, 8)))


MIXING = (
    View(op="reshape", args=(16,)),
    View(op="reshape", args=(2, 8)),
    View(op="expand", args=(3, 2, 8)),
    View(op="permute", args=(1, 0, 2)),
    View(op="slice", args=(0, 0, 1)),
)
APART: tuple[tuple[View, tuple[object, ...]], ...] = (
    (View(op="reshape", args=(1, 16)), (BATCH, 16)),
    (View(op="expand", args=(1, 2, 8)), (BATCH, 2, 8)),
    (View(op="permute", args=(0, 2, 1)), (0, 2, 1)),
    (View(op="slice", args=(2, 0, 4)), (2, 0, 4)),
)


@pytest.mark.parametrize("view", MIXING, ids=[f"{view.op} {view.args}" for view in MIXING])
def test_a_view_that_mixes_sequences_is_refused(view: View) -> None:
    with pytest.raises(NotBatchableError, match=f"silu sees its input through {view.op} .*, which mixes sequences"):
        batched(through(view), BATCH)


@pytest.mark.parametrize(("view", "args"), APART, ids=[f"{view.op} {view.args}" for view, _ in APART])
def test_a_view_inside_a_sequence_is_kept(view: View, args: tuple[object, ...]) -> None:
    assert batched(through(view), BATCH).nodes[0].inputs[0].views == (View(op=view.op, args=args),)  # type: ignore[arg-type]


def test_a_result_seen_across_sequences_is_refused_by_its_name() -> None:
    graph = qwen3()
    (name, use), *others = graph.outputs
    odd = replace(use, views=(View(op="reshape", args=(Shape().vocab,)),))
    with pytest.raises(NotBatchableError, match=f"^{name} sees its input through reshape"):
        batched(replace(graph, outputs=((name, odd), *others)), BATCH)


def test_views_of_weights_and_tables_are_left_alone() -> None:
    build = Builder()
    x = build.input("x", (1, 1, 8), "activation")
    w = permuted(build.input("w", (8, 8)), (8, 8), (1, 0))
    graph = build.graph(y=build.op("linear", x, w, shape=(1, 1, 8)))
    assert batched(graph, BATCH).nodes[0].inputs[1] == w
