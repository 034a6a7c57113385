"""cuBLASLt on a device: every algorithm that it has for a shape is right, and the same inside a graph."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import torch

from agentcompile.errors import AgentCompileError
from agentcompile.ir.graph import DType
from agentcompile.ir.region import Region
from agentcompile.runtime import library
from agentcompile.runtime.cublaslt import ASKED, WORKSPACE_BYTES, Linear, Lt, find_library
from agentcompile.runtime.device_step import captured
from agentcompile.validate import DeclaredArithmetic, validate
from agentcompile.validate.tolerance import ACCUMULATION, ROUNDING_SLACK, TINY, rounding
from tests.templates.shapes import Extents, region

pytestmark = pytest.mark.gpu

CALL = "cublaslt.linear"
TOKENS = (1, 2, 8, 64, 256)
SIZES = ((48, 64), (1000, 264), (24, 4104), (3072, 1024), (1024, 3072), (1032, 8200))
"""Rows and hidden: multiples of 8, most of nothing larger; the last ones long enough to be split over k."""
NAMES: Mapping[DType, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}


@pytest.fixture(scope="module")
def lt() -> Lt:
    torch.zeros(1, device="cuda")
    return Lt(find_library(), lambda: torch.cuda.current_stream().cuda_stream)


def refused(bind: Callable[[], object]) -> str:
    """Why `bind` refuses; empty when it does not."""
    try:
        bind()
    except AgentCompileError as error:
        return error.message
    return ""


def ranks(lt: Lt, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None = None) -> Iterator[tuple[int, Linear]]:
    """What serves these operands, by rank; one at least."""
    for rank in range(ASKED):
        linear = Linear(lt, rank)
        if message := refused(functools.partial(linear.prepare, x, w, b)):
            assert rank > 0, message
            assert f"ALGO = {rank}: cuBLASLt has {rank} algorithms" in message
            return
        yield rank, linear


def operands(
    tokens: int, rows: int, hidden: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    make = torch.Generator("cuda").manual_seed(tokens + rows + hidden)
    drawn = [
        torch.randn(shape, generator=make, device="cuda") for shape in ((tokens, 1, hidden), (rows, hidden), (rows,))
    ]
    x, w, b = (one.to(dtype) for one in drawn)
    return x, w, b


def excess(y: torch.Tensor, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None, dtype: DType) -> float:
    """The largest error in units of what a library call is allowed: its sums, and one rounding."""
    exact, size = x.double() @ w.double().T, x.double().abs() @ w.double().abs().T
    if b is not None:
        exact, size = exact + b.double(), size + b.double().abs()
    allowed = ROUNDING_SLACK * rounding(exact.abs(), dtype) + ACCUMULATION["library"] * size + TINY
    return float(((y.double() - exact).abs() / allowed).max())


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("rows", "hidden"), SIZES)
@pytest.mark.parametrize("tokens", TOKENS)
def test_every_algorithm_is_right(lt: Lt, tokens: int, rows: int, hidden: int, biased: bool, dtype: DType) -> None:
    x, w, bias = operands(tokens, rows, hidden, NAMES[dtype])
    b = bias if biased else None
    for rank, linear in ranks(lt, x, w, b):
        y = linear(x, w, b)
        assert y.shape == (tokens, 1, rows)
        assert excess(y, x, w, b, dtype) <= 1, f"ALGO = {rank}"
        assert torch.equal(linear(x, w, b), y), f"ALGO = {rank} differs from itself"


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize(("rows", "hidden"), SIZES[2:])
def test_a_graph_gives_the_same_bits_for_inputs_that_change(lt: Lt, tokens: int, rows: int, hidden: int) -> None:
    x, w, b = operands(tokens, rows, hidden, torch.bfloat16)
    for rank, linear in ranks(lt, x, w, b):
        place = torch.empty(tokens, 1, rows, dtype=torch.bfloat16, device="cuda")
        graph = captured(lambda linear=linear, place=place: place.copy_(linear(x, w, b)), times=2)  # type: ignore[misc]
        for seed in range(3):
            x.copy_(torch.randn(x.shape, generator=torch.Generator("cuda").manual_seed(seed), device="cuda"))
            expected = linear(x, w, b)
            place.fill_(torch.nan)
            graph.replay()
            torch.cuda.synchronize()
            assert torch.equal(place, expected), f"ALGO = {rank}"


def test_operands_off_their_alignment_give_the_same_bits(lt: Lt) -> None:
    given = operands(8, 1000, 264, torch.bfloat16)
    for rank, linear in ranks(lt, *given):
        moved = [torch.zeros(one.numel() + 1, dtype=one.dtype, device="cuda")[1:].view(one.shape) for one in given]
        for to, one in zip(moved, given, strict=True):
            to.copy_(one)
        assert torch.equal(linear(*moved), linear(*given)), f"ALGO = {rank}"


def test_graphs_on_two_streams_do_not_share_a_workspace(lt: Lt) -> None:
    x, w, _ = operands(64, 1032, 8200, torch.bfloat16)
    for rank, linear in ranks(lt, x, w):
        expected = [linear(one, w) for one in (x, -3 * x)]
        inputs = [x.clone(), -3 * x]
        places = [torch.empty_like(one) for one in expected]

        def body(at: int, linear: Linear = linear, inputs=inputs, places=places) -> None:  # type: ignore[no-untyped-def]
            for _ in range(20):
                places[at].copy_(linear(inputs[at], w))

        graphs = [captured(lambda at=at, body=body: body(at)) for at in range(2)]  # type: ignore[misc]
        streams = [torch.cuda.Stream() for _ in graphs]
        torch.cuda.synchronize()
        for _ in range(5):
            for graph, stream in zip(graphs, streams, strict=True):
                with torch.cuda.stream(stream):
                    graph.replay()
        torch.cuda.synchronize()
        assert all(torch.equal(place, wanted) for place, wanted in zip(places, expected, strict=True)), f"ALGO = {rank}"


def test_algorithms_take_no_more_workspace_than_they_may(lt: Lt) -> None:
    x, w, _ = operands(8, 1032, 8200, torch.bfloat16)
    sizes = []
    for _, linear in ranks(lt, x, w):
        sizes += [product.workspace_bytes for product in linear._products.values()]
    print(f"workspaces of {len(sizes)} algorithms: {sizes}")
    assert all(0 <= size <= WORKSPACE_BYTES for size in sizes)


def test_the_library_is_the_one_that_pytorch_has_loaded() -> None:
    torch.zeros(8, 8, device="cuda") @ torch.zeros(8, 8, device="cuda")
    maps = Path("/proc/self/maps").read_text()
    assert find_library()._name in maps


CASES = [
    (kind, dtype, batch, tokens)
    for kind in ("linear", "linear-merged", "rmsnorm-linear", "linear-residual", "gateup-silu-mul")
    for dtype in ("bf16", "fp16")
    for batch, tokens in ((1, 0), (8, 0), (1, 256), (1, 40))
]


def faults(made: Region, call: library.Function) -> list[str]:
    """Failed checks of the correctness suite that evaluates templates, as text."""

    def launch(buffers: Mapping[str, torch.Tensor]) -> None:
        for name, tensor in call(buffers).items():
            buffers[name].view(-1).copy_(tensor.reshape(-1))

    with torch.device("cuda"):
        report = validate(made, DeclaredArithmetic(accumulation="library"), launch, seed=5, repeats=8, depth="search")
    return [f"{c.name}: {c.measured:.3g} > {c.allowed:.3g} {c.detail}" for c in report.checks if not c.ok]


@pytest.mark.parametrize(("kind", "dtype", "batch", "tokens"), CASES)
def test_a_region_passes_the_suite(kind: str, dtype: DType, batch: int, tokens: int) -> None:
    rows = (1024, 264, 264) if kind in ("linear-merged", "rmsnorm-linear") else (1032,)
    made = region(kind, Extents(hidden=520, rows=rows, dtype=dtype, batch=batch, tokens=tokens))
    for rank in range(ASKED):
        bind = functools.partial(library.bind, CALL, made, (("ALGO", rank),))
        if message := refused(bind):
            assert rank > 0, message
            assert "cuBLASLt has" in message
            return
        assert faults(made, bind()) == [], f"ALGO = {rank}"


def test_a_rank_that_a_shape_does_not_have_is_refused_when_it_is_bound(lt: Lt) -> None:
    x, w, _ = operands(1, 8, 8, torch.bfloat16)
    count = len(list(ranks(lt, x, w)))
    print(f"{count} algorithms for [1, 8] x [8, 8]")
    if count < ASKED:
        made = region("linear", Extents(hidden=8, rows=(8,)))
        with pytest.raises(AgentCompileError, match=f"ALGO = {count}"):
            library.bind(CALL, made, (("ALGO", count),))
