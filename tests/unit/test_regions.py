"""Kinds, matches and partitions on hand-made graphs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcompile.ir.graph import Graph, Node, Use, Value, View
from agentcompile.ir.region import Regime, Region
from agentcompile.regions.kinds import REGION_KINDS, SIGNATURES, Kind, facts
from agentcompile.regions.order import order
from agentcompile.regions.partition import Partition, partition
from agentcompile.regions.pattern import PatternError, parse_pattern
from tests.unit.graphs import Builder, Shape, decoder, llama, qwen3, seen

DECODE = Regime(phase="decode", context=(1, 64))


def cut(graph: Graph) -> Partition:
    return partition(graph, Regime(phase=graph.phase, context=(1, 64)))


def kind(found: Partition, name: str) -> list[Region]:
    return [region for region in found.regions if region.kind == name]


def only(found: Partition, name: str) -> Region:
    (region,) = kind(found, name)
    return region


def test_every_row_of_the_table_parses_and_reads_known_operators():
    names = [row.name for row in REGION_KINDS]
    assert len(names) == len(set(names))
    for row in REGION_KINDS:
        assert {line.op for line in row.parsed.lines} <= set(SIGNATURES)
        assert isinstance(row.sizes, tuple)
        assert isinstance(row.scalars, tuple)
        assert set(row.exposes) <= row.parsed.defined


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("y = linear x, w", "not of the form"),
        ("y = linear(x, w.0)", "'w.0' is not an input name"),
        ("y = linear()", "no inputs"),
        ("y = linear(x, w*)", "one mark"),
        ("y* = linear(x*, w*)", "shares exactly one input"),
        ("y = linear(x?, w)", "optional inputs come last"),
        ("y = rope(x, cos, sin; style)", "`attribute=value`"),
        ("y = linear(y, w)", "read before it is defined"),
    ],
)
def test_a_pattern_that_does_not_parse_names_kind_line_and_fault(line: str, fault: str):
    with pytest.raises(PatternError, match="kind 'odd', line 1") as error:
        parse_pattern("odd", (line,))
    assert fault in str(error.value)


def test_a_pattern_whose_lines_do_not_hang_together_is_refused():
    with pytest.raises(PatternError, match="not connected"):
        parse_pattern("odd", ("a = silu(x)", "y = silu(z)"))


@pytest.mark.parametrize(
    ("dims", "fault"),
    [("rows=z[0]", "names 'z'"), ("rows=w[0]/cols", "divides by 'cols'"), ("rows=w(0)", "none of")],
)
def test_a_size_that_does_not_parse_is_refused(dims: str, fault: str):
    with pytest.raises(PatternError, match="kind 'odd'") as error:
        assert Kind(name="odd", pattern=("y = linear(x, w)",), dims=dims).sizes
    assert fault in str(error.value)


def test_equal_layers_are_one_region_with_a_site_each():
    found = cut(qwen3(5))
    for name in ("qknorm-rope-attention-decode", "rmsnorm-gateup-silu-mul", "rope-attention-decode", "silu-mul"):
        assert len(only(found, name).sites) == 5
    assert [len(region.sites) for region in kind(found, "linear-residual")] == [5, 5]
    assert len(only(found, "rmsnorm-linear-argmax").sites) == 1
    assert not found.boundaries
    assert not found.refusals


def test_the_regions_do_not_depend_on_how_many_layers_there_are():
    few, many = cut(qwen3(1)), cut(qwen3(4))
    assert {region.id for region in few.regions} == {region.id for region in many.regions}


def test_two_spellings_of_sums_and_products_give_the_same_table_kinds():
    table = {row.name for row in REGION_KINDS}
    one, other = ({r.id for r in cut(qwen3(2, swapped=s)).regions if r.kind in table} for s in (False, True))
    assert one == other


def test_every_operator_is_a_region_by_itself():
    for graph in (qwen3(), llama(), decoder(Shape(), "prefill")):
        alone = [site.nodes[0] for region in cut(graph).regions for site in region.sites if len(site.nodes) == 1]
        assert sorted(alone) == sorted(node.id for node in graph.nodes)


def test_merged_projections_are_numbered_in_order_of_appearance():
    region = next(r for r in kind(cut(qwen3()), "rmsnorm-linear") if len(r.family("w")) == 3)
    assert [port.name for port in region.ports] == ["x", "norm", "w.0", "w.1", "w.2", "y.0", "y.1", "y.2"]
    assert [port.shape for port in region.family("w")] == [(32, 32), (16, 32), (16, 32)]
    assert dict(region.dims) == {"tokens": 1, "hidden": 32, "rows": 64}
    assert dict(region.constants) == {"eps": 1e-6, "offset": 0.0}
    bound = dict(region.sites[1].bindings)
    assert [bound[f"w.{i}"] for i in range(3)] == [f"in_layers_1_{p}_proj_weight" for p in "qkv"]


def test_attention_appends_to_its_caches_in_place_and_names_what_lies_between():
    region = only(cut(qwen3()), "qknorm-rope-attention-decode")
    assert dict(region.dims) == {"tokens": 1, "q_heads": 4, "kv_heads": 2, "head_dim": 8, "context": 64, "window": 0}
    assert {port.name: port.access for port in region.ports if port.role == "state"} == {
        "k_cache": "append",
        "v_cache": "append",
    }
    assert [port.name for port in region.ports if port.role == "output"] == ["y"]
    table = region.body.table()
    assert {"qn", "kn", "qr", "kr", "kc", "vc"} <= set(table)
    assert table["kc"].alias == "k_cache"
    assert table["vc"].alias == "v_cache"
    assert dict(region.sites[1].bindings)["k_cache"] == "in_k_1"
    assert region.sites[1].path == "layers.1.self_attn"


def test_an_append_by_itself_has_no_output_port_and_a_reader_reads_the_state():
    found = cut(qwen3())
    append = only(found, "cache-append")
    assert [(port.name, port.access) for port in append.ports] == [
        ("cache", "append"),
        ("new", "read"),
        ("positions", "read"),
    ]
    reader = only(found, "attention")
    assert {port.name for port in reader.ports if port.role == "state"} == {"k_cache", "v_cache"}
    assert all(port.access == "read" for port in reader.ports if port.role == "state")


def test_logits_are_a_port_of_the_head_only_where_the_graph_wants_them():
    graph = qwen3()
    kept = only(cut(graph), "linear-argmax")
    assert [port.name for port in kept.ports if port.role == "output"] == ["logits", "token"]
    graph = replace(graph, outputs=tuple(out for out in graph.outputs if out[0] == "token"))
    dropped = only(cut(graph), "linear-argmax")
    assert [port.name for port in dropped.ports if port.role == "output"] == ["token"]
    assert kept.id != dropped.id


def test_a_product_that_is_also_read_elsewhere_is_refused_with_its_reason():
    build = Builder()
    x, r = (build.input(name, (1, 1, 8), "activation") for name in ("x", "r"))
    p = build.op("linear", x, build.input("w", (8, 8)), shape=(1, 1, 8))
    y = build.op("add", p, r, shape=(1, 1, 8))
    found = cut(build.graph(y=y, z=build.op("mul", p, y, shape=(1, 1, 8))))
    assert not kind(found, "linear-residual")
    (refusal,) = found.refusals
    assert refusal.kind == "linear-residual"
    assert refusal.reason == "p is also read outside, by mul_2"


def test_a_sum_that_broadcasts_is_no_residual():
    build = Builder()
    x, r = build.input("x", (1, 1, 8), "activation"), build.input("r", (1, 1, 1), "activation")
    p = build.op("linear", x, build.input("w", (8, 8)), shape=(1, 1, 8))
    found = cut(build.graph(y=build.op("add", p, r, shape=(1, 1, 8))))
    assert [refusal.reason for refusal in found.refusals] == ["y = add(…) broadcasts"]


def test_a_residual_computed_from_the_product_leaves_and_comes_back():
    build = Builder()
    x = build.input("x", (1, 1, 8), "activation")
    g = build.op("linear", x, build.input("wg", (8, 8)), shape=(1, 1, 8))
    x2 = build.op("relu", g, shape=(1, 1, 8))
    u = build.op("linear", x2, build.input("wu", (8, 8)), shape=(1, 1, 8))
    a = build.op("silu", g, shape=(1, 1, 8))
    y = build.op("mul", a, u, shape=(1, 1, 8))
    row = Kind(name="loop", pattern=("a = silu(g)", "h = linear(z, w)", "y = mul(a, h)"), exposes=("a", "h"))
    found = partition(build.graph(y=y), DECODE, kinds=(row,))
    assert [region.kind for region in found.regions if len(region.body.nodes) > 1] == ["loop"]
    lines = ("g = linear(x, wg)", "a = silu(g)", "h = linear(z, wu)", "y = mul(a, h)")
    loop = Kind(name="loop", pattern=lines, exposes=("g",))
    found = partition(build.graph(y=y), DECODE, kinds=(loop,))
    assert [refusal.reason for refusal in found.refusals] == ["a path leaves it and comes back"]


def test_a_sum_of_two_products_is_a_residual_in_both_ways():
    build = Builder()
    x = build.input("x", (1, 1, 8), "activation")
    p, q = (build.op("linear", x, build.input(name, (8, 8)), shape=(1, 1, 8)) for name in ("w1", "w2"))
    found = cut(build.graph(y=build.op("add", p, q, shape=(1, 1, 8))))
    assert len(only(found, "linear-residual").sites) == 2
    assert len(only(found, "linear-merged").sites) == 1


def test_norms_that_disagree_about_epsilon_are_not_one_attention():
    graph = qwen3(1)
    nodes = list(graph.nodes)
    i = next(i for i, node in enumerate(nodes) if node.inputs[1:2] and "k_norm" in node.inputs[1].value)
    nodes[i] = replace(nodes[i], attrs=(("eps", 1e-5), ("offset", 0.0)))
    found = cut(replace(graph, nodes=tuple(nodes)))
    assert not kind(found, "qknorm-rope-attention-decode")
    assert found.refusals[0].reason == "qn.eps and kn.eps differ: 1e-06 and 1e-05"


def test_a_bias_in_one_member_of_a_family_only_keeps_it_from_merging():
    build = Builder()
    x = build.input("x", (1, 1, 8), "activation")
    b = build.input("b", (8,))
    p = build.op("linear", x, build.input("w1", (8, 8)), b, shape=(1, 1, 8))
    q = build.op("linear", x, build.input("w2", (8, 8)), shape=(1, 1, 8))
    found = cut(build.graph(p=p, q=q))
    assert not kind(found, "linear-merged")
    assert sorted(len(region.family("b")) for region in kind(found, "linear")) == [0, 1]


def test_a_slice_on_an_edge_inside_is_refused_and_outside_is_kept_in_the_body():
    graph = decoder(Shape(), "prefill")
    found = cut(graph)
    assert not any(
        "norm_weight" in dict(s.bindings)["norm"][3:8] for r in kind(found, "rmsnorm-linear") for s in r.sites
    )
    head = next(region for region in kind(found, "linear") if dict(region.dims)["rows"] == 96)
    assert head.port("x").shape == (1, "T", 32)
    assert head.body.nodes[0].inputs[0].views == (View(op="slice", args=(1, -1, "T")),)


def test_edges_that_only_rename_extents_do_not_tell_regions_apart():
    build = Builder()
    x, w = build.input("x", (1, 1, 8), "activation"), build.input("w", (8, 8))
    flat = build.input("flat", (2, 4), "activation")
    y = build.op("linear", x, w, shape=(1, 1, 8))
    z = build.op("linear", seen(flat, 1, 1, 8), w, shape=(1, 1, 8))
    assert len(only(cut(build.graph(y=y, z=z)), "linear").sites) == 2


def test_costs_read_one_row_of_a_table_and_the_whole_worst_context():
    found = cut(qwen3())
    embedding = only(found, "embedding").cost
    assert (embedding.weight_bytes, embedding.activation_bytes) == (32 * 2, 8 + 32 * 2)
    attention = partition(qwen3(), Regime(phase="decode", context=(1, 10)))
    state = next(r for r in attention.regions if r.kind == "attention").cost
    assert state.state_bytes == 2 * 2 * 10 * 8 * 2
    assert state.flops == 4 * 4 * 8 * 10
    linear = next(region for region in kind(found, "linear") if dict(region.dims)["rows"] == 96).cost
    assert linear.flops == 2 * 96 * 32
    assert linear.weight_bytes == 96 * 32 * 2


def boundary_of(graph: Graph) -> tuple[str, str]:
    (boundary,) = cut(graph).boundaries
    return boundary.reason, boundary.detail


def test_an_unknown_operator_is_kept_alone_and_named():
    build = Builder()
    x = build.input("x", (1, 1, 8), "activation")
    y = build.op("aten.cumsum.default", x, shape=(1, 1, 8), template="[]")
    graph = build.graph(y=build.op("silu", y, shape=(1, 1, 8)))
    found = cut(graph)
    assert boundary_of(graph)[0] == "unknown-operator"
    assert sorted(region.kind for region in found.regions) == ["aten-cumsum-default", "silu"]


@pytest.mark.parametrize("op", ["aten.bernoulli.default", "mylib.touch.default"])
def test_an_operator_with_unknown_effects_is_a_boundary(op: str):
    build = Builder()
    x = build.input("x", (1, 1, 8), "activation")
    assert boundary_of(build.graph(y=build.op(op, x, shape=(1, 1, 8))))[0] == "side-effect"


def test_nothing_moves_across_a_side_effect():
    build = Builder()
    x = build.input("x", (1, 1, 8), "activation")
    p = build.op("linear", x, build.input("w1", (8, 8)), shape=(1, 1, 8))
    e = build.op("mylib.touch.default", x, shape=(1, 1, 8))
    q = build.op("linear", x, build.input("w2", (8, 8)), shape=(1, 1, 8))
    found = cut(build.graph(p=p, e=e, q=q))
    assert not kind(found, "linear-merged")
    assert found.refusals[0].reason == "a path leaves it and comes back"


def test_writing_into_anything_but_a_state_is_a_boundary():
    build = Builder()
    x = build.input("x", (1, 1, 8), "activation")
    y = build.op("aten.add_.Tensor", x, x, shape=(1, 1, 8), alias=x, mutates=(0,))
    reason, detail = boundary_of(build.graph(y=y))
    assert reason == "in-place"
    assert "no declared state port" in detail


def test_a_result_that_shares_a_buffer_nobody_declared_is_a_boundary():
    build = Builder()
    x = build.input("x", (1, 1, 8), "activation")
    assert boundary_of(build.graph(y=build.op("silu", x, shape=(1, 1, 8), alias=x)))[0] == "alias"


def test_an_unsupported_dtype_is_a_boundary_with_the_dtype_in_its_detail():
    build = Builder(dtype="fp64")
    x = build.input("x", (1, 1, 8), "activation")
    reason, detail = boundary_of(build.graph(y=build.op("silu", x, shape=(1, 1, 8))))
    assert reason == "dtype"
    assert "fp64" in detail


def test_an_extent_that_only_prefill_knows_is_a_boundary_in_decode():
    build = Builder()
    x = build.input("x", (1, "S", 8), "activation")
    assert boundary_of(build.graph(y=build.op("silu", x, shape=(1, "S", 8))))[0] == "dynamic-shape"


def test_no_region_of_several_operators_contains_a_boundary():
    graph = qwen3(2)
    nodes = [replace(node, op="aten.silu.default") if node.op == "silu" else node for node in graph.nodes]
    found = cut(replace(graph, nodes=tuple(nodes)))
    unknown = {boundary.node for boundary in found.boundaries}
    assert len(unknown) == 2
    for region in found.regions:
        for site in region.sites:
            assert len(site.nodes) == 1 or unknown.isdisjoint(site.nodes)


def test_an_unknown_operator_with_several_results_has_numbered_ports():
    values = (
        Value(id="x", shape=(1, 1, 8), dtype="bf16", role="activation"),
        Value(id="a", shape=(1, 1, 4), dtype="bf16", role="activation"),
        Value(id="b", shape=(1, 1, 4), dtype="bf16", role="activation"),
    )
    node = Node(id="split", op="aten.split.Tensor", inputs=(Use(value="x"),), outputs=("a", "b"))
    outputs = (("a", Use(value="a")), ("b", Use(value="b")))
    graph = Graph(phase="decode", values=values, nodes=(node,), inputs=("x",), outputs=outputs)
    (region,) = cut(graph).regions
    assert [port.name for port in region.ports] == ["x.0", "y.0", "y.1"]


def test_the_facts_of_a_kind_describe_every_region_of_it():
    known = facts()
    for graph in (qwen3(), llama(), decoder(Shape(), "prefill")):
        for region in cut(graph).regions:
            kind_facts = known[region.kind]
            for port in region.ports:
                described = kind_facts.port(port.family)
                assert described is not None
                assert (described.role, described.access) == (port.role, port.access)
                assert described.many == ("." in port.name)
            required = {port.family for port in kind_facts.ports if not port.optional}
            assert required <= {port.family for port in region.ports}
            assert set(kind_facts.dims) == set(dict(region.dims))
            assert set(kind_facts.constants) == set(dict(region.constants))
            assert set(kind_facts.interior) <= {value.id for value in region.body.values}


def test_a_region_that_sees_a_port_through_a_slice_or_a_permutation_is_not_dense():
    found = cut(decoder(Shape(), "prefill"))
    assert all(not region.dense for region in kind(found, "rope"))
    assert all(region.dense for region in kind(found, "rmsnorm-gateup-silu-mul"))
    assert all(region.dense for region in cut(qwen3()).regions)


def test_whoever_reads_a_state_before_it_is_written_runs_before_the_write():
    build = Builder()
    state = build.input("k.0", (1, 2, 4, 8), "state")
    new, positions = build.input("new", (1, 2, 1, 8), "activation"), build.input("positions", (1,), "position", "int64")
    q = build.input("q", (1, 2, 1, 8), "activation")
    old = build.op("attention", q, state, state, positions, shape=(1, 2, 1, 8), scale=1.0)
    kc = build.op("cache_append", state, new, positions, shape=(1, 2, 4, 8), alias=state, mutates=(0,))
    y = build.op("attention", q, kc, kc, positions, shape=(1, 2, 1, 8), scale=1.0)
    found = order(build.graph(old=old, y=y))
    assert found.before == (0b000, 0b001, 0b010)


@given(layers=st.integers(1, 6), qk_norm=st.booleans(), tied=st.booleans())
def test_sites_of_a_decoder_count_its_layers(layers: int, qk_norm: bool, tied: bool):
    graph = decoder(Shape(layers=layers, qk_norm=qk_norm, tied=tied))
    found = cut(graph)
    assert len(only(found, "rope-attention-decode").sites) == layers
    assert sum(len(region.sites) for region in kind(found, "linear")) == 7 * layers + 1
    assert sum(len(region.sites) for region in kind(found, "rmsnorm")) == (4 if qk_norm else 2) * layers + 1
    for region in found.regions:
        assert len({site.nodes for site in region.sites}) == len(region.sites)
        for site in region.sites:
            assert len(site.nodes) == len(region.body.nodes)
            assert [port for port, _ in site.bindings] == [port.name for port in region.ports]
