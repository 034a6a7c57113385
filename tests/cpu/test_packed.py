"""Prompts on packed weights: products and rows that are not unpacked, against the same from row-major ones."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from agentcompile.build import compile_executor, find_toolchain
from agentcompile.ops.layouts import LAYOUTS
from agentcompile.runtime import packed
from agentcompile.runtime.native import Executor
from agentcompile.runtime.packed import Packed, PackedOperator
from agentcompile.system.store import Store

LAYOUT = {torch.bfloat16: "rows16-k2", torch.float32: "rows16-k1"}
FLAGS = {"plain": (), "avx2": ("-mavx2", "-mfma"), "here": ("-march=native",)}
SIZES = [(1, 16, 16), (2, 3, 5), (5, 64, 48), (12, 31, 33), (13, 128, 1), (29, 7, 100), (64, 300, 272)]
"""Tokens, hidden, rows."""


@pytest.fixture(scope="module", params=list(FLAGS))
def executor(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Executor:
    if request.param == "avx2" and "avx2" not in Path("/proc/cpuinfo").read_text(encoding="utf-8"):
        pytest.skip("this machine has no AVX2")
    path = compile_executor(
        Store(tmp_path_factory.mktemp("executor")), toolchain=find_toolchain(), flags=FLAGS[request.param]
    )
    return Executor(path, 1)


@pytest.fixture(scope="module")
def on(executor: Executor) -> Packed:
    return Packed(executor)


def linear(on: Packed, w: torch.Tensor) -> PackedOperator:
    found = on.operator("linear", LAYOUT[w.dtype], tuple(w.shape), w.dtype)
    assert found is not None
    return found


def flat(w: torch.Tensor) -> torch.Tensor:
    return LAYOUTS[LAYOUT[w.dtype]].pack(w)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("dtype", LAYOUT, ids=str)
@pytest.mark.parametrize("biased", [False, True], ids=["", "bias"])
def test_a_product_is_rounded_once(on: Packed, size: tuple[int, int, int], dtype: torch.dtype, biased: bool) -> None:
    torch.manual_seed(0)
    tokens, hidden, rows = size
    x, w = torch.randn(1, tokens, hidden, dtype=dtype), torch.randn(rows, hidden, dtype=dtype)
    b = torch.randn(rows, dtype=dtype) if biased else None
    made = linear(on, w)([x, flat(w), b] if biased else [x, flat(w)])
    exact = torch.nn.functional.linear(x.double(), w.double(), None if b is None else b.double())
    magnitude = torch.nn.functional.linear(x.double().abs(), w.double().abs(), None if b is None else b.double().abs())
    assert (made.shape, made.dtype) == (exact.shape, dtype)
    # One rounding of the result, and float32's of every sum.
    allowed = torch.finfo(dtype).eps / 2 * exact.abs() + 2**-23 * (hidden + 2) * magnitude
    assert ((made.double() - exact).abs() <= allowed).all()


@pytest.mark.parametrize("dtype", LAYOUT, ids=str)
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_token_has_the_same_bits_in_every_chunk_on_any_number_of_threads(
    on: Packed, dtype: torch.dtype, threads: int
) -> None:
    torch.manual_seed(1)
    x, w = torch.randn(1, 40, 130, dtype=dtype), torch.randn(150, 130, dtype=dtype)
    whole = linear(on, w)([x, flat(w)])
    count = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        pieces = [linear(on, w)([piece, flat(w)]) for piece in x.split([1, 2, 11, 26], dim=1)]
    finally:
        torch.set_num_threads(count)
    assert torch.equal(torch.cat(pieces, dim=1), whole)


def test_what_is_no_number_stays_in_its_token(on: Packed) -> None:
    w = torch.randn(20, 9, dtype=torch.bfloat16)  # an odd row: what fills it up is multiplied with nothing of x
    x = torch.ones(1, 3, 9, dtype=torch.bfloat16)
    x[0, 1] = float("nan")
    made = linear(on, w)([x, flat(w)])
    assert made[0, 1].isnan().all()
    assert made[0, (0, 2)].isfinite().all()


def test_a_view_of_another_tensor_is_read_as_it_is_seen(on: Packed) -> None:
    w, x = torch.randn(33, 24), torch.randn(1, 24, 6)
    made = linear(on, w)([x.transpose(1, 2), flat(w)])
    torch.testing.assert_close(made, torch.nn.functional.linear(x.transpose(1, 2), w))


@pytest.mark.parametrize(
    ("layout", "dtype"), [(name, dtype) for dtype, name in LAYOUT.items()] + [("row-major", torch.float32)]
)
@pytest.mark.parametrize("width", [1, 2, 17, 64])
def test_rows_of_a_packed_table_are_those_of_the_table(layout: str, dtype: torch.dtype, width: int) -> None:
    table = torch.randn(50, width, dtype=dtype)
    ids = torch.randint(0, 50, (1, 23))
    made = LAYOUTS[layout].take(LAYOUTS[layout].pack(table), ids, tuple(table.shape))
    assert torch.equal(made, table[ids])
    assert made.is_contiguous()


@pytest.mark.parametrize("row", [-1, 50])
def test_a_row_that_the_table_has_not_is_refused(row: int) -> None:
    table = torch.randn(50, 8)
    with pytest.raises(IndexError, match=f"{row}"):
        LAYOUTS["rows16-k1"].take(flat(table), torch.tensor([[3, row]]), (50, 8))


def test_what_it_cannot_do_is_left_to_others(on: Packed, executor: Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    assert on.operator("linear", "rows16-k2", (4, 4), torch.float16) is None
    assert on.operator("linear", "row-major", (4, 4), torch.bfloat16) is None
    assert on.operator("mul", "rows16-k2", (4, 4), torch.bfloat16) is None
    monkeypatch.setattr(packed, "team", lambda: None)
    alone = Packed(executor)
    assert alone.operator("linear", "rows16-k2", (4, 4), torch.bfloat16) is None
    assert alone.operator("embedding", "rows16-k2", (4, 4), torch.bfloat16) is not None
