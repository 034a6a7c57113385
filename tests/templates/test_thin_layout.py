"""Thin matrix products without a GPU: how elements meet in tensor cores, and texts on the host whose rows are long.

The defaults at odd sizes, for the fewest and the most sequences, are in `test_templates_emulated.py` with all others.
"""

from __future__ import annotations

import random
import zlib
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from agentcompile.ir.graph import DType
from tests.templates.emulated import TARGET, faults
from tests.templates.suite import CATALOG, legal, odd

THIN = [template for template in CATALOG.templates if template.id.partition("/")[2].startswith("thin-rows")]
TILE, CHUNK, COLUMN = 16, 32, 20
"""Rows of an instruction, elements of k in one load of four lanes, floats of a column of sums in shared memory."""


@pytest.fixture(autouse=True)
def _one_torch_thread() -> None:
    torch.set_num_threads(1)


def multiplied(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """m16n8k16 by its fragments (PTX manual): a [32, 8] and b [32, 4] by lane, to sums [32, 4]."""
    rows, columns = torch.zeros(16, 16), torch.zeros(16, 8)
    for lane in range(32):
        g, q = divmod(lane, 4)
        for i in range(8):
            rows[g + 8 * (i // 2 % 2), 2 * q + i % 2 + 8 * (i // 4)] = a[lane, i]
        for i in range(4):
            columns[2 * q + i % 2 + 8 * (i // 2), g] = b[lane, i]
    sums = rows @ columns
    return torch.stack([sums[g + 8 * (i // 2), 2 * q + i % 2] for g, q in lanes() for i in range(4)]).view(32, 4)


def lanes() -> list[tuple[int, int]]:
    return [divmod(lane, 4) for lane in range(32)]


def product(w: torch.Tensor, x: torch.Tensor, warps: int) -> torch.Tensor:
    """x [tokens, hidden] · w [rows, hidden]ᵀ as the kernel does it: by tile, warp, chunk and halves of eight."""
    (rows, hidden), tokens = w.shape, x.shape[0]
    chunks = -(-hidden // (CHUNK * warps))
    y = torch.zeros(tokens, rows)
    for first in range(0, rows, TILE):
        for warp in range(warps):
            sums = torch.zeros(32, 4)
            for chunk in range(chunks):
                words = torch.zeros(3, 32, 8)  # of rows g and g + 8 and of vector g
                for lane, (g, q) in enumerate(lanes()):
                    k = (warp * chunks + chunk) * CHUNK + 8 * q
                    if k < hidden:
                        for half in (0, 1):
                            words[half, lane] = w[min(first + g + 8 * half, rows - 1), k : k + 8]
                        words[2, lane] = x[g, k : k + 8] if g < tokens else 0.0
                top, bottom, column = words.view(3, 32, 4, 2)
                for i in (0, 2):
                    a = torch.stack([top[:, i], bottom[:, i], top[:, i + 1], bottom[:, i + 1]], dim=1)
                    sums += multiplied(a.reshape(32, 8), column[:, i : i + 2].reshape(32, 4))
            for lane, (g, q) in enumerate(lanes()):
                for i in range(4):
                    token, row = 2 * q + i % 2, first + g + 8 * (i // 2)
                    if token < tokens and row < rows:
                        y[token, row] += sums[lane, i]
    return y


@pytest.mark.parametrize(("hidden", "rows", "tokens", "warps"), [(104, 47, 3, 8), (104, 17, 8, 2), (520, 16, 2, 4)])
def test_the_order_of_k_gives_the_matrix_product(hidden: int, rows: int, tokens: int, warps: int) -> None:
    rng = torch.Generator().manual_seed(hidden + rows)
    w, x = (torch.randint(-4, 5, (n, hidden), generator=rng).float() for n in (rows, tokens))
    assert torch.equal(product(w, x, warps), x @ w.T)


def test_what_a_warp_leaves_and_takes_of_sums_meets_each_bank_once() -> None:
    for i in range(4):
        places = [(2 * q + i % 2) * COLUMN + i // 2 * 8 + g for g, q in lanes()]
        assert max(Counter(place % 32 for place in places).values()) == 1
    everything = [(2 * q + i % 2) * COLUMN + i // 2 * 8 + g for g, q in lanes() for i in range(4)]
    assert len(set(everything)) == TILE * 8


@pytest.mark.parametrize(("id", "dtype"), [(template.id, template.dtypes[0]) for template in THIN])
def test_a_point_drawn_from_the_space_is_right_where_rows_take_several_steps(
    id: str, dtype: DType, tmp_path: Path
) -> None:
    template, rng = CATALOG.get(id, dtype), random.Random(zlib.crc32(f"{id} {dtype}".encode()))
    batch = rng.randint(*template.tokens)
    made = odd(template.region, dtype, hidden=1096, head_dim=24, batch=batch)
    points = legal(made, template, TARGET)
    point = rng.choice(points)
    assert faults(template, made, point.params, tmp_path) == [], point.label


@pytest.mark.parametrize(
    ("file", "right", "wrong"),
    [
        ("thin_slice.cuh", "x[2], x[3]", "x[3], x[2]"),
        ("thin_slice.cuh", "column(c) < K", "column(c) <= K"),
        ("thin.cuh", "exchange.turn();", ""),
        ("thin.cuh", "copies_there<S::HELD - 1>", "copies_there<S::HELD>"),
        ("thin.cuh", "int(unit.left) - 1", "int(unit.left) - 2"),
        ("thin_normalised.cuh", "__syncthreads();", "__syncwarp();"),
    ],
)
def test_a_planted_fault_is_caught(file: str, right: str, wrong: str, tmp_path: Path) -> None:
    template = CATALOG.get("rmsnorm-linear/thin-rows", "bf16")
    assert right in dict(template.includes)[file]
    includes = tuple((name, text.replace(right, wrong) if name == file else text) for name, text in template.includes)
    made = odd(template.region, "bf16", hidden=104, head_dim=24, batch=5)
    assert faults(replace(template, includes=includes), made, template.defaults, tmp_path) != []
