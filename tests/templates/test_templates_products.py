"""Products of a chunk on a CPU: against float64 at every length, and bit for bit in every chunking; faults are seen."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

from agentcompile.advice.advisers import adviser_of
from agentcompile.build import Binary, compile
from agentcompile.evaluation.chunk import at_length
from agentcompile.ir.advice import Question
from agentcompile.ir.graph import DType
from agentcompile.ir.target import Ceiling
from agentcompile.ir.template import Params
from agentcompile.materialize import specialise
from agentcompile.ops.layouts import LAYOUTS
from agentcompile.ops.reference import DTYPES
from agentcompile.runtime.native import NativeProgram
from agentcompile.space import Space
from agentcompile.worker.launch import bind, runner
from agentcompile.worker.protocol import Implementation
from tests.templates.chunked import TOKENS, Built, Workshop
from tests.templates.shapes import Extents, any_chunk
from tests.templates.suite import BIASED, CATALOG, FAMILIES, failed, legal, problems

Tensors = dict[str, torch.Tensor]
Isa = tuple[str, ...] | None
COUNTS = (1, 2, 15, 16, 17, 33, TOKENS - 1, TOKENS)
GUARD = 64
"""Elements behind every output and workspace that nothing may write."""
PRODUCTS = [t for t in CATALOG.templates if "attention" not in t.region]
TEMPLATES = [t for t in PRODUCTS if t.id.endswith(("/panels", "/panels-rows", "/tiles"))]
EACH: list[tuple[str, DType]] = [(t.id, dtype) for t in TEMPLATES for dtype in t.dtypes]
ROWS: dict[str, tuple[DType, ...]] = {
    "linear-merged": ("bf16", "fp32"),
    "linear-residual": ("bf16",),
    "heads-linear-residual": ("fp32",),
    "gateup-silu-mul": ("fp32",),
    "rmsnorm-linear": ("fp32",),
    "rmsnorm-gateup-silu-mul": ("bf16",),
}
"""Row-major weights differ from packed ones in how a tile is read, which is the same text in every kind."""
CASES = [(id, dtype) for id, dtype in EACH if not id.endswith("-rows") or dtype in ROWS.get(id.partition("/")[0], ())]
AVX2 = ("sse4_2", "avx", "avx2", "fma", "f16c", "bmi2")
AVX512 = (*AVX2, "avx512f", "avx512cd", "avx512dq", "avx512bw", "avx512vl")
MORE = {
    "avx512": AVX512,
    "avx512_bf16": (*AVX512, "avx512_bf16"),
    "amx": (*AVX512, "avx512_bf16", "amx_tile", "amx_bf16"),
}


def odd(kind: str, dtype: DType) -> Extents:
    """No tile of rows, no vector and no pair of columns divides it, and no block of columns holds a row."""
    rows = (83, 3, 49) if kind in FAMILIES else (83,)
    bias = kind in (*BIASED, "heads-linear-residual")
    return Extents(hidden=609, rows=rows, bias=bias, q_heads=7, head_dim=87, offset=1.0, dtype=dtype)


@dataclass(frozen=True)
class Drawn:
    """What the ports of a template hold for `TOKENS` tokens, and what the outputs must be in float64."""

    inputs: Tensors
    exact: Tensors
    size: Tensors
    """Of each output, the sum of the magnitudes that were added."""

    @staticmethod
    def of(built: Built) -> Drawn:
        kind, made = built.template.region, torch.Generator().manual_seed(5)
        inputs: Tensors = {}
        for port in built.region.ports:
            if port.role != "output":
                shape = [TOKENS if isinstance(dim, str) else dim for dim in port.shape]
                inputs[port.name] = torch.randn(shape, generator=made).to(DTYPES[port.dtype])
        wide = {name: tensor.double() for name, tensor in inputs.items()}
        x = wide["x"][0]
        x = x.transpose(0, 1).reshape(TOKENS, -1) if kind.startswith("heads") else x
        if "norm" in wide:
            offset = dict(built.region.constants)["offset"]
            x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * (wide["norm"] + offset)
        exact, size = {}, {}
        if "wg" in wide:
            gate, up = x @ wide["wg"].T, x @ wide["wu"].T
            exact["y"] = gate * torch.sigmoid(gate) * up
            gates, ups = x.abs() @ wide["wg"].abs().T, x.abs() @ wide["wu"].abs().T
            size["y"] = gates * up.abs() + gate.abs() * ups
            return Drawn(inputs, exact, size)
        for port in built.region.family("y"):
            w, b = (wide.get(port.name.replace("y", name)) for name in "wb")
            assert w is not None
            added = [term for term in (b, wide["r"][0] if "r" in wide else None) if term is not None]
            exact[port.name] = sum(added, x @ w.T)
            size[port.name] = sum((term.abs() for term in added), x.abs() @ w.abs().T)
        return Drawn(inputs, exact, size)

    def part(self, begin: int, n: int, built: Built) -> Tensors:
        """The inputs of tokens [begin, begin + n), dense; matrices in the template's layout."""
        found: Tensors = {}
        for port in built.region.ports:
            if port.role == "weight" and len(port.shape) == 2:
                found[port.name] = LAYOUTS[built.template.layout(port.family)].pack(self.inputs[port.name])
            elif port.role != "output":
                whole = self.inputs[port.name]
                axis = next((at for at, dim in enumerate(port.shape) if isinstance(dim, str)), None)
                found[port.name] = whole if axis is None else whole.narrow(axis, begin, n).contiguous()
        return found


def build(
    workshop: Workshop,
    id: str,
    dtype: DType,
    params: Params = (),
    change: tuple[str, str] | None = None,
    isa: Isa = None,
) -> Built:
    """A template at odd sizes for this machine, or one with the instructions `isa`; AMX is emulated."""
    template = replace(CATALOG.get(id, dtype), arch=())
    target = workshop.target if isa is None else replace(workshop.target, isa=isa)
    return workshop.build(template, odd(template.region, dtype), params=params, target=target, change=change)


def run(workshop: Workshop, built: Built, drawn: Drawn, begin: int, n: int, threads: int = 2) -> Tensors:
    """One chunk's outputs; buffers and workspaces have room for its tokens alone, and NaN before and behind it."""
    buffers, dtype = drawn.part(begin, n, built), DTYPES[built.region.ports[0].dtype]
    made = {
        name: torch.full((n * exact.shape[1] + GUARD,), torch.nan, dtype=dtype) for name, exact in drawn.exact.items()
    }
    scratch = {
        name: torch.full((count // TOKENS * n + GUARD,), torch.nan, dtype=DTYPES[dtype])
        for name, dtype, count, _ in built.source.workspaces
    }
    every = {**buffers, **made, **scratch, "count": torch.tensor([n])}
    NativeProgram(workshop.executor(threads), bind(built.source, built.library, every)).run()
    for name, buffer in (*made.items(), *scratch.items()):
        assert buffer[-GUARD:].isnan().all(), f"it wrote behind {name}"
    return {name: buffer[:-GUARD].view(n, -1) for name, buffer in made.items()}


def suite(workshop: Workshop, built: Built, n: int) -> list[str]:
    """Failed checks of the correctness suite for a chunk of `n` tokens, as text."""
    template, here = built.template, at_length(built.region, n)
    implementation = Implementation(
        label=template.id,
        source=built.source,
        binary=built.binary,
        rounds=template.rounds,
        accumulation=template.accumulation,
        deterministic=template.deterministic,
        layouts=template.layouts,
    )
    return failed(template, here, built.source, runner(implementation, here, workshop.executor(2)))


def excess(built: Built, made: Tensors, drawn: Drawn, begin: int = 0) -> float:
    """The largest error in parts of what is allowed: one rounding, those of `rounds`, and float32's of the sums."""
    unit = {"bf16": 2.0**-8, "fp32": 2.0**-24}[built.region.ports[0].dtype]
    sums = 1e-6 + (2.0**-8 / 4 if built.template.rounds else 0)
    worst = 0.0
    for name, rows in made.items():
        exact, size = (of[name][begin : begin + len(rows)] for of in (drawn.exact, drawn.size))
        worst = max(
            worst,
            float(((rows.double() - exact).abs() / (1.01 * unit * exact.abs() + sums * size)).nan_to_num(9).max()),
        )
    return worst


@pytest.mark.parametrize(("id", "dtype"), CASES)
def test_every_length_is_right_and_a_token_has_the_same_bits_in_all(workshop: Workshop, id: str, dtype: DType) -> None:
    built = build(workshop, id, dtype)
    drawn = Drawn.of(built)
    whole = run(workshop, built, drawn, 0, TOKENS, threads=1)
    assert excess(built, whole, drawn) <= 1
    for threads, n in zip((3, 1, 2, 3, 1, 3, 2, 3), COUNTS, strict=True):
        begin = (TOKENS - n) // 2
        for name, rows in run(workshop, built, drawn, begin, n, threads).items():
            assert torch.equal(rows, whole[name][begin : begin + n]), (name, n, threads)
    assert suite(workshop, built, 33) == []


POINTS: dict[str, Params] = {
    "gateup-silu-mul/panels": (("VECTORS", 4), ("PANEL", 2), ("KBLOCK", 1024)),
    "linear-merged/tiles": (("PANEL", 2), ("KBLOCK", 1024)),
}


@pytest.mark.parametrize("id", POINTS)
def test_another_point_gives_the_same_bits(workshop: Workshop, id: str) -> None:
    default, other = (build(workshop, id, "bf16", params) for params in ((), POINTS[id]))
    drawn = Drawn.of(default)
    wanted, made = (run(workshop, one, drawn, 0, 50) for one in (default, other))
    assert excess(other, made, drawn) <= 1
    # AMX adds up 32 columns before it adds them to the sum, wherever a block of columns ends.
    assert all(torch.equal(made[name], wanted[name]) for name in wanted)


@pytest.mark.parametrize(("id", "dtype"), EACH)
def test_a_search_has_few_points(workshop: Workshop, id: str, dtype: DType) -> None:
    template, whole = CATALOG.get(id, dtype), replace(workshop.target, isa=MORE["amx"])
    for hidden in (64, 576, 4096):
        at = replace(odd(template.region, dtype), hidden=hidden, q_heads=hidden // 64, head_dim=64, tokens=TOKENS)
        points = [point.params for point in legal(any_chunk(template.region, at), template, whole)]
        assert 2 <= len(points) <= 12
        assert template.defaults in points


@pytest.mark.parametrize(
    ("kind", "isa", "first"),
    [
        ("linear-merged", "amx", "tiles"),
        ("linear-merged", "avx512_bf16", "panels"),
        ("rope-attention-prefill", "amx", "tiles"),
        ("rope-attention-prefill", "avx512_bf16", "blocks"),
    ],
)
def test_where_there_is_amx_its_tiles_come_first(workshop: Workshop, kind: str, isa: str, first: str) -> None:
    machine = replace(workshop.target, isa=MORE[isa])
    at = replace(odd(kind, "bf16"), tokens=TOKENS, q_heads=4, kv_heads=2, head_dim=64)
    region = any_chunk(kind, at)
    ways = ("panels", "panels-rows", "tiles") if kind in FAMILIES else ("blocks", "tiles")
    templates = [CATALOG.get(f"{kind}/{way}", "bf16") for way in ways]
    space = Space(region, templates, machine)
    asked = Question(
        region=region,
        target=machine,
        ceiling=Ceiling(dram_bytes_per_s=30e9, cache_bytes_per_s=60e9, flops_per_s=2e11),
        residency="cache",
        templates=tuple(templates),
        candidates=tuple(space),
    )
    order = adviser_of("heuristic").advise(asked).order
    templates_of = {candidate.id: candidate.template for candidate in space}
    assert templates_of[order[0]].startswith(f"{kind}/{first}")


@pytest.mark.parametrize("id", ["linear/panels", "linear/tiles"])
def test_what_is_no_number_stays_in_its_token(workshop: Workshop, id: str) -> None:
    built = build(workshop, id, "bf16")
    drawn = Drawn.of(built)
    clean = run(workshop, built, drawn, 0, 40)["y"]
    drawn.inputs["x"][0, 21, -1] = torch.nan  # beside the padding of its row and of the weights
    made = run(workshop, built, drawn, 0, 40)["y"]
    assert made[21].isnan().all()
    assert torch.equal(made[:21], clean[:21])
    assert torch.equal(made[22:], clean[22:])


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_it_is_right_without_any_instruction_set(workshop: Workshop, dtype: DType) -> None:
    built = build(workshop, "rmsnorm-linear/panels", dtype, isa=())
    drawn = Drawn.of(built)
    assert excess(built, run(workshop, built, drawn, 3, 50), drawn, 3) <= 1


@pytest.mark.parametrize(
    ("id", "dtype", "isa"),
    [
        ("linear-merged/panels", "fp32", "avx512"),
        ("linear-merged/panels", "bf16", "avx512_bf16"),
        ("linear-merged/panels-rows", "fp32", "avx512"),
        ("linear-merged/panels-rows", "bf16", "avx512_bf16"),
        ("rmsnorm-gateup-silu-mul/panels", "bf16", "avx512_bf16"),
    ],
)
def test_vectors_of_512_bits_are_right(workshop: Workshop, id: str, dtype: DType, isa: str) -> None:
    built = build(workshop, id, dtype, isa=MORE[isa])
    drawn = Drawn.of(built)
    whole = run(workshop, built, drawn, 0, TOKENS)
    assert excess(built, whole, drawn) <= 1
    for n in (1, 7, 23):
        made = run(workshop, built, drawn, 0, n)
        assert all(torch.equal(rows, whole[name][:n]) for name, rows in made.items())


@pytest.mark.parametrize(
    ("id", "dtype", "isa"),
    [
        ("linear-residual/panels", "fp32", "avx512"),
        ("rmsnorm-gateup-silu-mul/panels", "bf16", "avx512"),
        ("rmsnorm-linear/panels", "bf16", "avx512_bf16"),
        ("rmsnorm-linear/tiles", "bf16", "amx"),
        ("gateup-silu-mul/tiles", "bf16", "amx"),
    ],
)
def test_it_compiles_for_more_instructions_than_the_host_has(
    workshop: Workshop, id: str, dtype: DType, isa: str
) -> None:
    template = CATALOG.get(id, dtype)
    target = replace(workshop.target, isa=MORE[isa])
    region = any_chunk(template.region, replace(odd(template.region, dtype), tokens=TOKENS))
    assert problems(region, template, template.defaults, target) == ()
    source = specialise(template, region, template.defaults, target)
    binary = compile(source, workshop.store, toolchain=workshop.toolchain, limit_s=120)
    assert isinstance(binary, Binary), binary


PLANTED = {
    "the last columns are missing": ("k < K; k += KBLOCK", "k + KBLOCK < K; k += KBLOCK"),
    "a block of columns forgets those before": ("depth, k == 0, here", "depth, true, here"),
    "the last tokens are missing": ("long t = n * rank / size; t < n * (rank + 1) / size", "long t = 0; t < n / 6 * 6"),
    "a part of the rows is missing": ("tiles * (group + 1) / groups", "(tiles * (group + 1) - 1) / groups"),
    "a store behind the last row": ("counts[i] - row)", "counts[i] + TILE - row)"),
    "the bias is another row's": ("item(a.b, i) + row : nullptr", "item(a.b, i) : nullptr"),
    "pairs are exchanged": ("(vf)(both << 16)", "(vf)(both & 0xffff0000u)"),
}
WIDENED = "pairs are exchanged"
"""The fault of the copy that processors without AVX-512 BF16 multiply from: all others have no such copy."""


@pytest.mark.parametrize("fault", ["", *PLANTED])
def test_a_planted_fault_is_seen(workshop: Workshop, fault: str) -> None:
    isa = AVX2 if fault == WIDENED else None
    built = build(workshop, "linear-merged/panels", "bf16", change=PLANTED.get(fault), isa=isa)
    drawn = Drawn.of(built)
    try:
        right = excess(built, run(workshop, built, drawn, 0, 50), drawn) <= 1
    except AssertionError:
        right = False
    assert right == (fault == "")
