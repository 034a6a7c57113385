"""Regions that only a prefill has: where they are found, through which views they read, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from agentcompile import check
from agentcompile.capture.chunked import at_tokens
from agentcompile.ir.graph import Graph, Use, View
from agentcompile.ir.region import Regime, Region
from agentcompile.ir.target import Target
from agentcompile.ir.template import Launch, Template
from agentcompile.ops.layouts import fits
from agentcompile.regions.kinds import REGION_KINDS, Kind, facts
from agentcompile.regions.partition import Partition, partition
from agentcompile.regions.pattern import PatternError
from tests.unit.graphs import Builder, Shape, decoder, llama, permuted, qwen3

TOKENS = 5
OURS = (
    "add-rmsnorm", "rope-append", "qknorm-rope-append", "rope-attention-prefill", "qknorm-rope-attention-prefill",
    "heads-linear-residual", "last-rmsnorm-linear",
)  # fmt: skip


def prefill(**changes: object) -> Graph:
    return at_tokens(decoder(Shape(**changes), "prefill"), TOKENS)  # type: ignore[arg-type]


def cut(graph: Graph) -> Partition:
    regime = Regime(phase=graph.phase, context=(1, Shape().context))
    return partition(graph, regime, tokens=TOKENS if graph.phase == "prefill" else 0)


def kind(found: Partition, name: str) -> list[Region]:
    return [region for region in found.regions if region.kind == name]


def only(found: Partition, name: str) -> Region:
    (region,) = kind(found, name)
    return region


def summed(found: Partition) -> Region:
    """The sums that the layers' residuals read again."""
    (region,) = [region for region in kind(found, "add-rmsnorm") if region.family("s")]
    return region


def test_they_are_no_kinds_of_a_decode_step() -> None:
    for graph in (qwen3(), llama()):
        assert not [region for name in OURS for region in kind(cut(graph), name)]


@pytest.mark.parametrize(("qk_norm", "name"), [(True, "qknorm-rope-append"), (False, "rope-append")])
def test_heads_and_appends_of_every_layer_are_one_region(qk_norm: bool, name: str) -> None:
    graph = prefill(layers=4, qk_norm=qk_norm)
    region = only(cut(graph), name)
    assert [site.path for site in region.sites] == [f"layers.{i}.self_attn" for i in range(4)]
    ops = {node.id: node.op for node in graph.nodes}
    expected = [*(["rms_norm"] * 2 if qk_norm else []), "cache_append", "cache_append", "rope", "rope"]
    for i, site in enumerate(region.sites):
        assert sorted(ops[node] for node in site.nodes) == sorted(expected)
        bound = dict(site.bindings)
        assert (bound["k_cache"], bound["v_cache"]) == (f"in_k_{i}", f"in_v_{i}")
    assert dict(region.dims) == {"tokens": TOKENS, "q_heads": 4, "kv_heads": 2, "head_dim": 8, "context": 64}
    assert [port.name for port in region.ports if port.role == "output"] == ["y"]
    assert region.port("y").shape == (1, 4, TOKENS, 8)
    assert {port.name: port.access for port in region.ports if port.role == "state"} == {
        "k_cache": "append",
        "v_cache": "append",
    }
    assert region.stated
    assert not region.dense


def test_keys_and_values_of_two_layers_are_never_taken_together() -> None:
    found = cut(prefill(layers=6))
    assert not [refusal for refusal in found.refusals if refusal.kind in OURS[1:3]]
    assert len(only(found, "qknorm-rope-append").sites) == 6


def test_a_sum_that_is_read_later_is_a_result_beside_the_normalised_rows() -> None:
    found = cut(prefill(layers=3))
    region = summed(found)
    assert len(region.sites) == 5
    assert [len(region.sites) for region in kind(found, "add-rmsnorm")] == [5, 1]  # nobody reads the last sum again
    assert [port.name for port in region.ports if port.role == "output"] == ["s", "y"]
    assert dict(region.dims) == {"tokens": TOKENS, "hidden": 32, "groups": TOKENS}
    assert region.dense
    assert "s" in facts()["add-rmsnorm"].interior


def test_a_sum_that_nobody_else_reads_is_no_result() -> None:
    build = Builder("prefill")
    a, b = (build.input(name, (1, TOKENS, 16), "activation") for name in "ab")
    s = build.op("add", a, b, shape=(1, TOKENS, 16))
    y = build.op("rms_norm", s, build.input("norm", (16,)), shape=(1, TOKENS, 16), eps=1e-6)
    region = only(cut(build.graph(y=y)), "add-rmsnorm")
    assert [port.name for port in region.ports] == ["a", "b", "norm", "y"]


def test_both_spellings_of_a_sum_give_one_region() -> None:
    one, other = (summed(cut(prefill(swapped=swapped))) for swapped in (False, True))
    assert one.id == other.id


def test_one_key_value_head_is_seen_without_a_permutation() -> None:
    graph = _with(prefill(kv_heads=1), "cache_append", 1, lambda use: replace(use, views=_flat(use.views)))
    region = only(cut(graph), "qknorm-rope-append")
    assert dict(region.dims)["kv_heads"] == 1


def _flat(views: tuple[View, ...]) -> tuple[View, ...]:
    """How capture spells a permutation that moves an extent of 1."""
    return (View(op="reshape", args=(1, 1, TOKENS, 8)),) if views else ()


def _with(graph: Graph, op: str, index: int, change: Callable[[Use], Use]) -> Graph:
    """`graph` with input `index` of every `op` seen in another way."""
    nodes = []
    for node in graph.nodes:
        uses = list(node.inputs)
        if node.op == op:
            uses[index] = change(uses[index])
        nodes.append(replace(node, inputs=tuple(uses)))
    return replace(graph, nodes=tuple(nodes))


def _seen_as(*views: View) -> Callable[[Use], Use]:
    return lambda use: replace(use, views=views) if use.views else use


ODD: dict[str, tuple[str, int, Callable[[Use], Use], str]] = {
    "values head by head": (
        "cache_append",
        1,
        _seen_as(View(op="reshape", args=(1, 2, TOKENS, 8))),
        r"v is read as \[1, 2, 5, 8\], not as \[1, tokens, kv_heads, head_dim\] by 0 2 1 3",
    ),
    "heads in halves": (
        "rope",
        0,
        _seen_as(View(op="reshape", args=(1, TOKENS, 8, 4)), View(op="permute", args=(0, 2, 1, 3))),
        "q is read as .*, not as",
    ),
    "elements of heads side by side": (
        "rope",
        0,
        _seen_as(View(op="reshape", args=(1, TOKENS, 8, 4)), View(op="permute", args=(0, 3, 1, 2))),
        "q is read as .*, not as",
    ),
    "a part of a wider product": (
        "cache_append",
        1,
        _seen_as(
            View(op="reshape", args=(1, TOKENS, 2, 8)),
            View(op="slice", args=(2, 0, 2)),
            View(op="permute", args=(0, 2, 1, 3)),
        ),
        "v is read as .* slice.*, not as",
    ),
    "angles of one token for all": (
        "rope",
        1,
        lambda use: replace(use, views=(View(op="slice", args=(1, 0, 1)),)),
        r"cos is read as \[1, 5, 8\] slice\[1, 0, 1\], not as a dense buffer",
    ),
}


@pytest.mark.parametrize("name", ODD)
def test_other_views_are_refused_with_what_was_seen_and_what_is_known(name: str) -> None:
    op, index, change, reason = ODD[name]
    found = cut(_with(prefill(layers=1, qk_norm=False), op, index, change))
    assert not kind(found, "rope-append")
    (refusal,) = [refusal for refusal in found.refusals if refusal.kind == "rope-append"]
    assert len(refusal.nodes) == 4
    assert re.search(reason, refusal.reason), refusal.reason


def test_a_norm_over_all_heads_at_once_is_not_one_of_each_head() -> None:
    build, d, heads = Builder("prefill"), 8, 2
    positions = build.input("positions", (TOKENS,), "position", "int64")
    cos, sin = (build.input(name, (1, TOKENS, d), "activation") for name in ("cos", "sin"))
    shape, turned = (1, TOKENS, heads * d), []
    for name in "qk":
        x = build.input(name, shape, "activation")
        normed = build.op("rms_norm", x, build.input(f"{name}_norm", (heads * d,)), shape=shape, eps=1e-6)
        use = permuted(normed, (1, TOKENS, heads, d), (0, 2, 1, 3))
        turned.append(build.op("rope", use, cos, sin, shape=(1, heads, TOKENS, d), style="half"))
    v = permuted(build.input("v", shape, "activation"), (1, TOKENS, heads, d), (0, 2, 1, 3))
    caches, extents = [], (1, heads, 64, d)
    for name, new in (("k.0", turned[1]), ("v.0", v)):
        state = build.input(name, extents, "state")
        caches.append(build.op("cache_append", state, new, positions, shape=extents, alias=state, mutates=(0,)))
    y = build.op("attention", turned[0], *caches, positions, shape=(1, heads, TOKENS, d), scale=1.0)
    found = cut(build.graph(y=y))
    assert not kind(found, "qknorm-rope-append")
    reasons = [refusal.reason for refusal in found.refusals if refusal.kind == "qknorm-rope-append"]
    assert reasons == ["head_dim is 8 and 16 in one region"]
    assert len(kind(found, "rope-append")) == 1  # the norms stay outside


def test_a_rotated_query_that_no_attention_reads_belongs_to_nobody() -> None:
    graph = prefill(layers=1, qk_norm=False)
    (attention,) = [node for node in graph.nodes if node.op == "attention"]
    others = tuple(node for node in graph.nodes if node is not attention)
    loose = replace(graph, nodes=others, inputs=(*graph.inputs, *attention.outputs))
    assert not kind(cut(loose), "rope-append")


TARGET = Target(kind="cuda", device="any", arch="sm_90a", isa=(), threads=132, cache_bytes=(1 << 20,), line_bytes=128)


def findings(region: Region, **changes: object) -> list[tuple[str, str]]:
    """What stops a kernel of the region's kind that lists every port."""
    launch = Launch(entry="f", arguments=tuple(dict.fromkeys(p.family for p in region.ports)), grid=("1",))
    template = Template(
        id=f"{region.kind}/any",
        region=region.kind,
        language="cuda",
        about="any",
        dtypes=("bf16",),
        phases=("prefill",),
        launches=(launch,),
    )
    template = replace(template, **changes)  # type: ignore[arg-type]
    found = check.errors(check.applicable(region, template, TARGET, layout_fits=fits))
    return [(finding.rule, finding.text) for finding in found]


def test_kernels_serve_what_is_dense_and_what_their_kind_states() -> None:
    found = cut(prefill())
    for region in (summed(found), only(found, "qknorm-rope-append"), only(found, "silu-mul")):
        assert findings(region) == []


def test_kernels_do_not_serve_views_that_their_kind_does_not_state() -> None:
    for region in kind(cut(prefill()), "rope"):
        assert findings(region) == [("views", "the region reads x through permute, which no kernel of rope is told")]
        assert findings(region, language="library", launches=(), call="eager") == []


def test_a_kernel_needs_a_number_of_tokens() -> None:
    symbolic = summed(cut(decoder(Shape(), "prefill")))
    assert findings(symbolic) == [("extents", "a, b, s, y: the number of tokens is open, a kernel needs one")]


def test_a_template_of_a_decode_step_alone_does_not_serve_a_chunk() -> None:
    region = summed(cut(prefill()))
    assert [rule for rule, _ in findings(region, phases=("decode",))] == ["phase"]


@pytest.mark.parametrize(
    ("view", "fault"),
    [
        ("x = 1 2", "is not of the form"),
        ("z = [1, 2]", "names 'z', which the pattern has not"),
        ("x = [1, cols]", "names 'cols', which no size defines"),
        ("x = [1, tokens, hidden] by 0 2", "does not name each of its 3 axes once"),
        ("x = [1, tokens, hidden] by 0 2 2", "does not name each of its 3 axes once"),
    ],
)
def test_a_view_that_does_not_parse_names_kind_and_fault(view: str, fault: str) -> None:
    row = Kind(name="odd", pattern=("y = rms_norm(x, norm)",), dims="hidden=norm[0]", views=(view,))
    with pytest.raises(PatternError, match="kind 'odd'") as error:
        assert row.stated
    assert fault in str(error.value)


def test_every_stated_view_of_the_table_parses() -> None:
    for row in REGION_KINDS:
        assert len(row.stated) == len(row.views)
    stated = {row.name for row in REGION_KINDS if row.views}
    rotated = {f"{norm}rope-{what}" for norm in ("", "qknorm-") for what in ("append", "attention-prefill")}
    assert stated == {*rotated, "heads-linear-residual", "last-rmsnorm-linear"}


def test_what_stands_beside_a_pattern_is_matched_and_belongs_to_others() -> None:
    row = Kind(name="before-relu", pattern=("y = silu(x)",), beside=("z = relu(y)",))
    build = Builder()
    x = build.input("x", (1, 1, 8), "activation")
    one, other = (build.op("silu", x, shape=(1, 1, 8)) for _ in range(2))
    graph = build.graph(a=build.op("relu", one, shape=(1, 1, 8)), b=build.op("tanh", other, shape=(1, 1, 8)))
    found = partition(graph, Regime(phase="decode"), kinds=(row,))
    (region,) = [region for region in found.regions if region.kind == "before-relu"]
    assert [site.nodes for site in region.sites] == [("silu_0",)]
    assert [port.name for port in region.ports] == ["x", "y"]


def test_the_product_behind_attention_reads_the_heads_of_a_token() -> None:
    found = cut(prefill(layers=3))
    region = only(found, "heads-linear-residual")
    assert len(region.sites) == 3
    assert {name: dict(region.dims)[name] for name in ("heads", "head_dim", "hidden")} == {
        "heads": 4,
        "head_dim": 8,
        "hidden": 32,
    }
    assert region.stated
    assert not region.dense


@pytest.mark.parametrize("how", ["in order", "turned"])
def test_heads_that_are_read_otherwise_are_no_region(how: str) -> None:
    def other(use: Use) -> Use:
        if [view.op for view in use.views] != ["permute", "reshape"]:
            return use
        turned, joined = use.views
        if how == "in order":
            return replace(use, views=(joined,))
        return replace(use, views=(replace(turned, args=(0, 3, 1, 2)), joined))

    graph = prefill(layers=1)
    (site,) = only(cut(graph), "heads-linear-residual").sites
    (node,) = [node for node in graph.nodes if node.id in site.nodes and node.op == "linear"]
    changed = replace(node, inputs=(other(node.inputs[0]), *node.inputs[1:]))
    nodes = tuple(changed if one is node else one for one in graph.nodes)
    assert changed != node
    assert not kind(cut(replace(graph, nodes=nodes)), "heads-linear-residual")


@pytest.mark.parametrize(("end", "found"), [((1, -1, TOKENS), 1), ((1, 0, TOKENS - 1), 0)])
def test_the_head_of_a_chunk_reads_its_last_token(end: tuple[int, ...], found: int) -> None:
    build = Builder("prefill")
    x, norm, w = build.input("x", (1, TOKENS, 16), "activation"), build.input("norm", (16,)), build.input("w", (9, 16))
    last = Use(value=x, views=(View(op="slice", args=end),))
    y = build.op("linear", build.op("rms_norm", last, norm, shape=(1, 1, 16), eps=1e-6), w, shape=(1, 1, 9))
    regions = kind(cut(build.graph(y=y)), "last-rmsnorm-linear")
    assert len(regions) == found
    for region in regions:
        assert (region.port("x").shape, region.port("y").shape) == ((1, TOKENS, 16), (1, 1, 9))
        assert region.stated


@pytest.mark.parametrize(("qk_norm", "name"), [(True, "qknorm-rope"), (False, "rope")])
def test_a_chunks_attention_is_one_region_with_its_appends(qk_norm: bool, name: str) -> None:
    region = only(cut(prefill(layers=4, qk_norm=qk_norm)), f"{name}-attention-prefill")
    assert len(region.sites) == 4
    assert dict(region.dims)["window"] == 0
    assert region.port("y").shape == (1, 4, TOKENS, 8)
    assert {port.access for port in region.ports if port.role == "state"} == {"append"}


def attention_of(found: Partition) -> Region:
    return next(region for region in found.regions if region.kind == "qknorm-rope-attention-prefill")


def test_a_token_s_attention_costs_the_slots_up_to_its_own() -> None:
    graph, context = decoder(Shape(), "prefill"), Shape().context

    def flops(tokens: int) -> int:
        return attention_of(partition(graph, Regime(phase="prefill", context=(1, context)), tokens=tokens)).cost.flops

    one = dict(attention_of(cut(prefill())).dims)
    slot = 4 * one["q_heads"] * one["head_dim"]
    rest = flops(1) - slot * context  # what norms and rotations of one token take
    seen = sum(range(context - TOKENS + 1, context + 1))
    assert flops(TOKENS) == TOKENS * rest + slot * seen


def test_a_cache_shorter_than_a_chunk_costs_what_it_holds() -> None:
    """A chunk of any length is measured at what the cache and the table of positions hold."""
    graph, context = decoder(Shape(), "prefill"), Shape().context
    regime = Regime(phase="prefill", context=(1, context))
    long, fits = (partition(graph, regime, tokens=tokens) for tokens in (3 * context, context))
    assert attention_of(long).cost == attention_of(fits).cost
    tables = [only(found, "position-tables").cost for found in (long, fits)]
    assert tables[0] == tables[1]
    assert only(long, "embedding").cost.activation_bytes == 3 * only(fits, "embedding").cost.activation_bytes


def test_no_more_rows_are_gathered_than_a_table_has() -> None:
    graph = decoder(Shape(vocab=4), "prefill")
    few, many = (partition(graph, Regime(phase="prefill", context=(1, 10)), tokens=tokens) for tokens in (4, 9))
    assert only(few, "embedding").cost.weight_bytes == only(many, "embedding").cost.weight_bytes > 0
