"""What is said to be no fault of a CUDA kernel, and where the same mutation is one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from agentcompile.bench.campaign.equivalent import reason
from agentcompile.bench.campaign.equivalent_cuda import CUDA

from agentcompile.ir.region import Region
from tests.templates.shapes import Extents, region

TEMPLATES = Path(__file__).parents[2] / "templates"


def test_every_row_is_about_a_line_that_ships() -> None:
    files = {str(path.relative_to(TEMPLATES)): path.read_text("utf-8") for path in TEMPLATES.rglob("*.cu*")}
    for row in CUDA:
        lines = [
            line.strip() for name, text in files.items() if re.fullmatch(row.file, name) for line in text.split("\n")
        ]
        assert any(re.search(row.before, line) for line in lines), row.before


def test_a_row_that_is_wider_than_a_block_takes_more_turns() -> None:
    before = "for (long i = threadIdx.x; i < width; i += blockDim.x) y[i] = row[i];"
    for after in (
        before.replace("+= blockDim.x", "= blockDim.x"),
        before.replace("+= blockDim.x", "+= 2 * (blockDim.x)"),
    ):
        said = [
            reason("stride", region("position-table", Extents(hidden=width)), "position-table/row/kernel.cu", before,
                   after, threads=132)
            for width in (128, 129)
        ]  # fmt: skip
        assert said[0]
        assert not said[1]


def test_a_warp_that_lacks_rows_reads_copies_of_the_last_one_alone() -> None:
    before = "base = matrix + row * K, last = left > 0 ? left - 1 : 0;"
    after = before.replace("left - 1", "left")
    said = [
        reason(
            "factor", region("linear", Extents(hidden=64, rows=(rows,))), "_include/gemv.cuh", before, after, threads=1
        )
        for rows in (48, 47)
    ]
    assert said[0]
    assert not said[1]


def test_a_mask_that_leaves_out_lanes_is_excused_by_nothing() -> None:
    before = "v += __shfl_xor_sync(ALL, v, step);"
    after = before.replace("ALL", "(ALL >> 16)")
    made = region("linear", Extents(hidden=64, rows=(48,)))
    assert not reason("mask", made, "_include/device.cuh", before, after, threads=1)


BULK, HEADS = "_include/bulk.cuh", "_include/attention_heads.cuh"
WIDE = Extents(hidden=64, rows=(600,))
DECODE = Extents(q_heads=12, kv_heads=2, head_dim=64)


@pytest.mark.parametrize(
    ("kind", "file", "before", "after", "holds", "fails"),
    [
        ("linear", BULK, "ask(ring.slot, turn + (side + DEPTH) / SIDE, (side + DEPTH) % SIDE);", ";",
         {"WARPS": 4, "PARTS": 1, "DEPTH": 2}, {"WARPS": 4, "PARTS": 1, "DEPTH": 1}),
        ("linear", BULK, "const auto ask = [&](int into, long turn, int side) {",
         "const auto ask = [&](int into, signed char turn, int side) {",
         {"WARPS": 8, "PARTS": 1, "DEPTH": 8}, {"WARPS": 8, "PARTS": 1, "DEPTH": 126}),
        ("linear", BULK, "if (PARTS > 1) {", "if (!(PARTS > 1)) {", {"PARTS": 1}, {"PARTS": 2}),
        ("linear", "_include/gemv.cuh", "if (++step == STEPS) break;", "if (++step != STEPS) break;",
         {"LOADS": 1}, {}),
        ("linear", "_include/vector.cuh", "if (before && unit < here) found = {i};",
         "if (before || unit < here) found = {i};", {"ROWS": 2, "WARPS": 4}, {"ROWS": 2, "WARPS": 16}),
        ("rope-attention-decode", "_include/attention_joined.cuh",
         "const int until = (rank + 1) * CHUNK < ELEMENTS ? (rank + 1) * CHUNK : ELEMENTS;",
         "const int until = (rank) * CHUNK < ELEMENTS ? (rank + 1) * CHUNK : ELEMENTS;", {"SPLITS": 8}, {"SPLITS": 5}),
        ("rope-attention-decode", "_include/attention_parts.cuh", "if (begin < TEAMS && quad < QUADS) ask(begin);",
         "if (begin < TEAMS || quad < QUADS) ask(begin);", {"WARPS": 3}, {"WARPS": 4}),
    ],
)  # fmt: skip
def test_what_depends_on_a_candidates_parameters(
    kind: str, file: str, before: str, after: str, holds: dict[str, int], fails: dict[str, int]
) -> None:
    made = region(kind, WIDE if kind == "linear" else DECODE)
    said = [reason("any", made, file, before, after, threads=132, params=params) for params in (holds, fails)]
    assert said[0]
    assert not said[1]


@pytest.mark.parametrize(
    ("held", "broken", "file", "before", "after"),
    [
        (region("linear", WIDE), region("rmsnorm-linear", WIDE), BULK, "const float factor = inverse_of(in, all, K);",
         "const float factor = to_float(Rounded<bf16>::of(inverse_of(in, all, K)));"),
        (region("linear", WIDE), region("linear", Extents(rows=(1,))), "_include/vector.cuh",
         "Unit found = {0, 0, 0};", "Unit found = {0, 1, 0};"),
        (region("rope-attention-decode", DECODE), region("rope-attention-decode", Extents(head_dim=80)), HEADS,
         "of_k.load(norm_k + part, used && newest);", "of_k.load(norm_k + part, used || newest);"),
        (region("embedding", Extents()), region("embedding", Extents(batch=2)), "embedding/row/kernel.cu",
         "y_t* y = a.y + blockIdx.y * hidden;", "y_t* y = a.y - blockIdx.y * hidden;"),
    ],
)  # fmt: skip
def test_what_depends_on_a_regions_extents(held: Region, broken: Region, file: str, before: str, after: str) -> None:
    assert reason("any", held, file, before, after, threads=132)
    assert not reason("any", broken, file, before, after, threads=132)
