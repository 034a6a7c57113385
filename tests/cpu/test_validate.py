"""The bounds against PyTorch's own results, the inputs, the buffers, and a harness that notices its own faults."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from agentcompile.ir.codec import decode, encode
from agentcompile.ir.graph import DType, Phase, concrete
from agentcompile.ir.region import Regime, Region
from agentcompile.ir.template import Depth
from agentcompile.ir.trial import NumericReport
from agentcompile.ops import reference
from agentcompile.regions.partition import partition
from agentcompile.validate import DeclaredArithmetic as Declared
from agentcompile.validate import Instruments, insensitive, selftest, validate
from agentcompile.validate.arena import GuardedArena, fingerprint, poison
from agentcompile.validate.cases import cases, rounds_once
from agentcompile.validate.inputs import Generator
from agentcompile.validate.propagate import propagate
from agentcompile.validate.tolerance import ROUNDOFF
from tests.kernels.float32 import eager, float32, sums
from tests.kernels.regions_for import KINDS, region_for
from tests.kernels.remembered import Remembered
from tests.unit.graphs import decoder

DTYPES: tuple[DType, ...] = ("bf16", "fp32", "fp16")
DRAWS: tuple[tuple[int, Depth], ...] = ((0, "accept"), (1, "search"))
"""Every case of one seed, those of a search among them; and a search's cases drawn another time."""
REMEMBERED = Remembered()
EDGES: tuple[tuple[str, dict[str, object]], ...] = (
    ("linear", {"hidden": 1, "rows": (1,)}),
    ("linear", {"hidden": 17, "rows": (31,), "bias": True}),
    ("linear-merged", {"hidden": 33, "rows": (15, 1, 17), "bias": True}),
    ("rmsnorm", {"hidden": 1}),
    ("rmsnorm", {"hidden": 127, "groups": 7, "offset": 1.0}),
    ("rmsnorm-linear", {"hidden": 129, "rows": (63, 64, 65)}),
    ("linear-residual", {"hidden": 251, "rows": (97,)}),
    ("rmsnorm-gateup-silu-mul", {"hidden": 95, "rows": 89}),
    ("rmsnorm-linear-argmax", {"hidden": 61, "rows": (1,)}),
    ("rmsnorm-linear-argmax", {"hidden": 61, "rows": (509,)}),
    ("qknorm-rope-attention-decode", {"heads": 8, "kv_heads": 1, "head_dim": 8, "context": 33}),
    ("qknorm-rope-attention-decode", {"heads": 3, "kv_heads": 3, "head_dim": 2, "context": 17}),
    ("rope-attention-decode", {"heads": 6, "kv_heads": 3, "context": 130, "window": 31}),
    ("rope-attention-decode", {"heads": 2, "kv_heads": 1, "context": 1}),
    ("embedding", {"vocab": 2, "hidden": 1}),
)


@pytest.fixture(autouse=True)
def _one_torch_thread() -> None:
    torch.set_num_threads(1)


def failures(report: NumericReport) -> list[str]:
    return [f"{check.name}: {check.detail} ({check.measured:g})" for check in report.checks if not check.ok]


def rounds(region: Region, dtype: DType) -> tuple[tuple[str, str], ...]:
    """The values that a kernel of this kind may want to hold narrow."""
    return tuple((name, dtype) for name in ("n", "qn", "kn", "qr") if name in region.body.table())


def right(region: Region, dtype: DType) -> list[tuple[Callable[[Mapping[str, Tensor]], None], Declared]]:
    """Kernels that must pass: other orders of summation where there are sums, roundings where some may be declared, the
    model's own arithmetic."""
    held = rounds(region, dtype)
    return [
        (float32(region), Declared()),
        *([(float32(region, flip=True), Declared())] if sums(region) else []),
        *([(float32(region, held), Declared(rounds=held))] if held else []),
        (eager(region), Declared(accumulation="library")),
    ]


# PyTorch's vectorised float32 gelu makes NaN of infinity, its float16 one does not: no kernel made of it is right.
EVERYWHERE = [(kind, dtype) for kind in KINDS for dtype in DTYPES if (kind, dtype) != ("gelu", "fp16")]


@pytest.mark.parametrize(("kind", "dtype"), EVERYWHERE)
def test_right_arithmetic_is_kept_for_every_kind(kind: str, dtype: DType) -> None:
    region = region_for(kind, dtype)
    for run, facts in right(region, dtype):
        for seed, depth in DRAWS:
            tools = REMEMBERED.tools(region, facts, seed)
            report = validate(region, facts, run, seed=seed, repeats=2, depth=depth, tools=tools)
            assert report.ok, failures(report)


@pytest.mark.parametrize(("kind", "extents"), EDGES, ids=[f"{kind} {extents}" for kind, extents in EDGES])
def test_right_arithmetic_is_kept_at_edge_shapes(kind: str, extents: dict[str, object]) -> None:
    region = region_for(kind, **extents)
    for run, facts in right(region, "bf16"):
        for seed, depth in DRAWS:
            tools = REMEMBERED.tools(region, facts, seed)
            report = validate(region, facts, run, seed=seed, repeats=2, depth=depth, tools=tools)
            assert report.ok, failures(report)


@pytest.mark.parametrize(("phase", "tokens"), [("decode", 1), ("prefill", 5)])
def test_the_models_own_arithmetic_is_kept_in_every_region_of_a_decoder(phase: Phase, tokens: int) -> None:
    cut = partition(decoder(phase=phase), Regime(phase=phase, context=(1, 64)))
    for region in cut.regions:
        facts = Declared(accumulation="library")
        report = validate(region, facts, eager(region), seed=0, repeats=2, depth="accept", tokens=tokens)
        assert report.ok, (region.kind, failures(report))


@pytest.mark.parametrize("kind", KINDS)
def test_the_reference_agrees_with_the_operators_meaning_in_float64(kind: str) -> None:
    region = region_for(kind)
    drawn = Generator(region, seed=5)
    inputs = drawn.draw(cases(region, "search")[0], drawn.parameters(0))
    out = propagate(region.body, inputs, Declared())
    wide = {name: t.double() if t.is_floating_point() else t.clone() for name, t in inputs.items()}
    for name, tensor in reference.run(region.body, wide, precision="float64").items():
        torch.testing.assert_close(
            out.values[name].wide().reshape(tensor.shape), tensor.double(), rtol=1e-10, atol=1e-12
        )


@pytest.mark.parametrize("kind", ["rmsnorm-linear", "gateup-silu-mul", "qknorm-rope-attention-decode"])
def test_declared_roundings_widen_the_bound_and_cover_what_they_cost(kind: str) -> None:
    region = region_for(kind)
    held = rounds(region, "bf16") or (("g", "bf16"), ("u", "bf16"))
    plain = validate(region, Declared(), float32(region, held), seed=0, repeats=2, depth="accept")
    declared = validate(region, Declared(rounds=held), float32(region, held), seed=0, repeats=2, depth="accept")
    assert not plain.ok
    assert declared.ok, failures(declared)


def test_random_shifts_of_the_inputs_stay_within_the_propagated_error() -> None:
    for kind in ("rmsnorm-linear", "rmsnorm-gateup-silu-mul", "rope-attention-decode"):
        region = region_for(kind, "fp32")
        drawn = Generator(region, seed=1)
        inputs = drawn.draw(cases(region, "search")[0], drawn.parameters(0))
        # Declaring an input's rounding is propagating an error from it: move it by as much and compare.
        port = "x" if "x" in inputs else "v"
        body = region.body
        out = propagate(body, inputs, Declared())
        moved = {**inputs, port: inputs[port].bfloat16().float()}
        other = propagate(body, moved, Declared())
        (_, use), *_rest = body.outputs
        shift = (other.values[use.value].value - out.values[use.value].value).abs()
        scale = out.values[use.value].value.abs().mean()
        assert 0 < float(shift.max()) < 64 * ROUNDOFF["bf16"] * float(scale)


@pytest.mark.parametrize("kind", KINDS)
def test_every_input_and_every_kind_of_weight_changes_the_result(kind: str) -> None:
    for seed in range(3):
        assert insensitive(region_for(kind), seed=seed) == ()


def test_within_a_window_every_visible_slot_changes_the_result() -> None:
    for seed in range(3):
        assert insensitive(region_for("rope-attention-decode", window=20), seed=seed) == ()


def test_parameters_are_never_zero_or_one() -> None:
    for kind in KINDS:
        for tensor in Generator(region_for(kind), seed=2).parameters(0).values():
            assert not bool(((tensor == 0) | (tensor == 1)).any())


def test_inputs_are_fresh_for_every_seed_and_the_same_for_one() -> None:
    region = region_for("linear")
    case = cases(region, "search")[0]

    def x(seed: int) -> Tensor:
        drawn = Generator(region, seed=seed)
        return drawn.draw(case, drawn.parameters(0))["x"]

    assert torch.equal(x(1), x(1))
    assert not torch.equal(x(1), x(2))


def test_adding_a_case_leaves_the_others_as_they_are() -> None:
    region = region_for("linear")
    drawn = Generator(region, seed=1)
    parameters = drawn.parameters(0)
    search, accept = (
        {case.name: drawn.draw(case, parameters)["x"] for case in cases(region, depth) if case.weights == 0}
        for depth in ("search", "accept")
    )
    assert all(torch.equal(tensor, accept[name]) for name, tensor in search.items() if not tensor.isnan().any())


def test_the_protocols_inputs_are_all_there() -> None:
    region = region_for("qknorm-rope-attention-decode", context=4096)
    found = cases(region, "accept")
    styles = {case.style for case in found}
    assert styles >= {"normal", "small", "large", "outliers", "impulse", "last", "constant", "zeros", "cancel"}
    assert {case.past for case in found} >= {"normal", "peaked", "ramp"}
    assert {case.length for case in found} >= {1, 63, 64, 65, 700, 1999, 2048, 4096}
    assert {case.angle for case in found} >= {0, 1, 4097, 32767, 131000}


def test_a_search_is_a_handful_and_stops_at_the_first_failure() -> None:
    region = region_for("linear")
    assert len(cases(region, "search")) < 8 < len(cases(region, "accept"))

    def wrong(buffers: Mapping[str, Tensor]) -> None:
        buffers["y"].zero_()

    report = validate(region, Declared(), wrong, seed=0, repeats=16, depth="search")
    assert (report.cases, report.ok) == (1, False)


def test_exact_mode_says_why_it_is_skipped() -> None:
    region = region_for("silu-mul")
    report = validate(region, Declared(), float32(region), seed=0, repeats=2, depth="accept")
    (exact,) = [check for check in report.checks if check.name == "exact"]
    assert exact.ok
    assert exact.detail == "skipped for y: silu does not keep integers"


def test_attention_over_a_power_of_two_of_equal_scores_is_exact() -> None:
    region = region_for("qknorm-rope-attention-decode")
    report = validate(region, Declared(), float32(region), seed=0, repeats=2, depth="accept")
    (exact,) = [check for check in report.checks if check.name == "exact"]
    assert exact.ok
    assert "0 integers of y differ" in exact.detail


def test_an_operator_without_a_rule_gets_a_numeric_bound_and_the_report_says_so() -> None:
    region = region_for("tanh")
    attrs = (("template", '{"args": [{"$": 0}], "kwargs": {}}'),)
    node = replace(region.body.nodes[0], op="aten.sinh.default", attrs=attrs)
    unknown = replace(region, body=replace(region.body, nodes=(node,)))

    def run(buffers: Mapping[str, Tensor]) -> None:
        buffers["y"].copy_(torch.sinh(buffers["x"].float()))

    def wrong(buffers: Mapping[str, Tensor]) -> None:
        buffers["y"].copy_(torch.sinh(buffers["x"].float()) * 1.02)

    report = validate(unknown, Declared(), run, seed=0, repeats=2, depth="search")
    assert report.ok, failures(report)
    assert any("aten.sinh.default has no rule" in check.detail for check in report.checks)
    assert not validate(unknown, Declared(), wrong, seed=0, repeats=2, depth="search").ok


def test_packed_weights_reach_the_kernel_in_their_layout() -> None:
    from agentcompile.ops.layouts import LAYOUTS

    region = region_for("linear", hidden=30, rows=(37,))
    layout = LAYOUTS["rows16-k2"]

    def run(buffers: Mapping[str, Tensor]) -> None:
        w = layout.unpack(buffers["w"], (37, 30)).float()
        buffers["y"].copy_(buffers["x"].float() @ w.T)

    report = validate(region, Declared(layouts=(("w", "rows16-k2"),)), run, seed=0, repeats=2, depth="accept")
    assert report.ok, failures(report)


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("kind", ["add", "sub", "mul", "linear", "linear-merged", "linear-residual", "linear-argmax"])
def test_a_sum_or_product_half_way_goes_to_the_even_neighbour(kind: str, dtype: DType) -> None:
    region = region_for(kind, dtype)
    assert rounds_once(region)
    report = validate(region, Declared(), half_up(region), seed=0, repeats=2, depth="accept")
    assert [check.name for check in report.checks if not check.ok] == ["halves"]
    library = validate(region, Declared(accumulation="library"), half_up(region), seed=0, repeats=2, depth="accept")
    assert library.ok, failures(library)


def test_no_half_is_asked_for_where_no_sum_is_exact_or_the_result_is_float32() -> None:
    assert not any(rounds_once(region_for(kind)) for kind in ("silu-mul", "rmsnorm", "rmsnorm-linear", "embedding"))
    assert not rounds_once(region_for("linear", "fp32"))


def half_up(region: Region) -> Callable[[Mapping[str, Tensor]], None]:
    """A right kernel but for its stores, which round what lies half way away from zero."""

    def run(buffers: Mapping[str, Tensor]) -> None:
        outputs = [port for port in region.ports if port.role == "output" and port.dtype in ROUNDOFF]
        wide = {port.name: torch.empty(buffers[port.name].shape) for port in outputs}
        float32(region)({**buffers, **wide})
        for port in outputs:
            exact, stored = wide[port.name].double(), wide[port.name].to(buffers[port.name].dtype)
            # The neighbour on the other side is as far away just where the sum lies half way.
            away = (2.0 * exact - stored.double()).to(stored.dtype)
            half = (away.double() - exact == exact - stored.double()) & (away.abs() > stored.abs())
            buffers[port.name].copy_(torch.where(half, away, stored))

    return run


def test_a_report_survives_its_encoding() -> None:
    region = region_for("linear")
    report = validate(region, Declared(), float32(region), seed=0, repeats=2, depth="accept")
    assert decode(NumericReport, encode(report)) == report


def test_the_harness_passes_its_self_test() -> None:
    assert selftest() == ()


BROKEN: dict[str, tuple[Instruments, str]] = {
    "a comparator that always says yes": (Instruments(compare=lambda *_, **__: None), "element"),
    "poison that is off": (Instruments(poison=lambda *_: None), "poison"),
    "redzones that nobody looks at": (Instruments(broken=lambda _: []), "redzone"),
    "inputs that are not hashed": (Instruments(fingerprint=lambda _: ""), "inputs"),
    "launches that are not compared": (Instruments(same_bits=lambda *_: True), "repeats"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_harness_is_noticed_by_its_self_test(name: str) -> None:
    tools, check = BROKEN[name]
    assert any(check in line for line in selftest(tools))


def test_redzones_are_not_numbers_in_any_format_and_stand_on_both_sides() -> None:
    arena = GuardedArena(seed=0)
    tensor = arena.add("y", (5, 3), "bf16")
    assert tensor.data_ptr() % 64 == 0
    around = tensor.as_strided((512 + 15 + 256,), (1,), tensor.storage_offset() - 512)
    outside = torch.cat((around[:512], around[527:]))
    for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64):
        raw = outside.contiguous().view(torch.uint8)
        assert bool(raw[: raw.numel() // 8 * 8].clone().view(dtype).isnan().all())
    assert arena.broken() == []
    around[511] = 0.0
    assert arena.broken() == ["y"]
    assert arena.broken() == []


def test_a_fingerprint_sees_one_changed_bit_and_two_elements_that_change_places() -> None:
    tensor = torch.randn(70000).bfloat16()
    before = fingerprint(tensor)
    other = tensor.clone()
    other.view(torch.int16)[69999] ^= 1
    assert fingerprint(other) != before
    other = tensor.clone()
    other[[3, 40000]] = other[[40000, 3]]
    assert fingerprint(other) != before
    assert fingerprint(tensor) == before


def test_poison_differs_between_patterns_and_never_repeats_a_result() -> None:
    for dtype in (torch.bfloat16, torch.float32, torch.int64, torch.int32):
        tensors = [torch.zeros(4, dtype=dtype) for _ in range(2)]
        poison(tensors[0], "low")
        poison(tensors[1], "high")
        assert not bool((tensors[0] == tensors[1]).any())


def test_an_output_in_its_input_must_leave_the_same_bits() -> None:
    region = region_for("silu-mul", "bf16")
    (gate, up), (made,) = (
        [port.name for port in region.ports if (port.role == "output") == output] for output in (False, True)
    )
    safe = float32(region)

    def twice(buffers: Mapping[str, Tensor]) -> None:
        """Writes before everything is read."""
        buffers[made].zero_()
        safe(buffers)

    declared = Declared(in_place=((made, gate),))
    assert validate(region, declared, safe, seed=0, repeats=2, depth="search").ok
    assert validate(region, Declared(), twice, seed=0, repeats=2, depth="search").ok  # right where each has its own
    report = validate(region, declared, twice, seed=0, repeats=2, depth="search")
    assert [check.name for check in report.checks if not check.ok] == ["in-place"]
    assert up != gate


@pytest.mark.parametrize("applied", [True, False])
def test_inputs_that_may_be_columns_of_a_wider_matrix_must_be_read_so(applied: bool) -> None:
    region, tokens = region_for("silu-mul", "bf16"), 4
    gate, up = (port.name for port in region.ports if port.role != "output")
    safe = float32(region)

    def columns(buffers: Mapping[str, Tensor]) -> None:
        """Reads a token where the workspace says that it is, or where it would be in a dense matrix."""
        dense = dict(buffers)
        for name in (gate, up):
            width = buffers[name].numel() // tokens
            step = int(buffers["wide"]) if applied and int(buffers["wide"]) else width
            rows = buffers[name].as_strided((tokens, width), (step, 1))
            dense[name] = rows.clone().view(concrete(region.port(name).shape))
        safe(dense)

    declared = Declared(workspaces=(("wide", "int64", 1, True),), pitched=((gate, "wide"), (up, "wide")))
    report = validate(region, declared, columns, seed=0, repeats=2, depth="search", tokens=tokens)
    assert [check.name for check in report.checks if not check.ok] == ([] if applied else ["pitched"])


@pytest.mark.parametrize("seed", [4, 53, 101, 103])
def test_logits_that_are_equal_before_rounding_behind_a_norm_need_not_be_so_after_it(seed: int) -> None:
    made = region_for("rmsnorm-linear-argmax", "fp32", hidden=64, rows=(512,))
    report = validate(made, Declared(), float32(made, flip=True), seed=seed, repeats=1, depth="search")
    assert report.ok, failures(report)
