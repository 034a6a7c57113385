"""What is said to be no fault of a CUDA kernel, and where the same mutation is one."""

from __future__ import annotations

import re
from pathlib import Path

from agentcompile.bench.campaign.equivalent import reason
from agentcompile.bench.campaign.equivalent_cuda import CUDA

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
