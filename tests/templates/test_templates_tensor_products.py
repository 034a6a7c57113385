"""Products of a chunk on the tensor cores: right on the host, every fault of theirs caught, and without spills."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from agentcompile.build.nvrtc import Cubin
from agentcompile.ir.region import Region
from agentcompile.ir.template import Params
from agentcompile.materialize import specialise
from tests.kernels.kept import cubin
from tests.templates.emulated import faults, planted
from tests.templates.shapes import Extents, region
from tests.templates.suite import CATALOG, gpu, problems

MODELS = {
    "Llama-3.2-1B": ((2048, 512, 512), 2048, (32, 64), 8192),
    "Qwen3-1.7B": ((2048, 1024, 1024), 2048, (16, 128), 6144),
    "Qwen3-4B": ((4096, 1024, 1024), 2560, (32, 128), 9728),
}
"""Rows of q, k and v; the hidden width; heads and their width; the MLP's width."""


@pytest.fixture(autouse=True)
def _one_torch_thread() -> None:
    torch.set_num_threads(1)


def at(splits: int = 1, cluster: int = 2) -> Params:
    return (("SPLITS", splits), ("CLUSTER", cluster), ("BAND", 8))


def chunk(kind: str, tokens: int, hidden: int, *rows: int, bias: bool = False) -> Region:
    """Of heads first, `hidden` columns are three heads of a third of them."""
    heads = {"q_heads": 3, "head_dim": hidden // 3} if kind.startswith("heads") else {}
    return region(kind, Extents(hidden=hidden, rows=rows, tokens=tokens, bias=bias, **heads))


WHOLE = [
    # One block a tile: tails of columns, rows and tokens, several tiles a block, pairs that copy for each other.
    ("linear", chunk("linear", 200, 136, 300), at(cluster=2), 2),
    ("linear-residual", chunk("linear-residual", 1, 72, 47, bias=True), at(), 2),
    ("linear-residual", chunk("linear-residual", 200, 136, 304), at(cluster=1), 2),
    ("linear-residual", chunk("linear-residual", 1100, 8, 40, bias=True), at(cluster=2), 2),
    ("linear-residual", chunk("linear-residual", 130, 904, 296), at(cluster=2), 2),
    ("linear-merged", chunk("linear-merged", 70, 72, 40, 8, 136, bias=True), at(), 2),
    ("linear-merged", chunk("linear-merged", 200, 72, 47, 3, 17), at(cluster=2), 2),
    ("heads-linear-residual", chunk("heads-linear-residual", 130, 384, 72), at(cluster=2), 2),
    ("heads-linear-residual", chunk("heads-linear-residual", 1100, 72, 40, bias=True), at(cluster=1), 2),
]
SHARED = [
    # Blocks that share columns: fewer columns than blocks, two clusters, several tiles a cluster.
    ("linear", chunk("linear", 64, 600, 296, bias=True), at(8), 18),
    ("linear", chunk("linear", 130, 904, 40), at(4), 9),
    ("linear-residual", chunk("linear-residual", 1, 72, 47, bias=True), at(8), 18),
    ("linear-residual", chunk("linear-residual", 70, 1096, 304, bias=True), at(8), 18),
    ("linear-residual", chunk("linear-residual", 300, 200, 40), at(2), 6),
    ("linear-residual", chunk("linear-residual", 300, 328, 40, bias=True), at(4), 14),
    ("linear-merged", chunk("linear-merged", 128, 520, 40, 8, 136), at(4), 9),
    ("linear-merged", chunk("linear-merged", 5, 200, 47, 3, 17, bias=True), at(2), 8),
    ("heads-linear-residual", chunk("heads-linear-residual", 128, 384, 72, bias=True), at(4), 4),
    ("heads-linear-residual", chunk("heads-linear-residual", 200, 264, 40), at(2), 8),
]


@pytest.mark.parametrize(("kind", "made", "params", "threads"), WHOLE + SHARED)
def test_products_of_a_chunk_are_right_on_the_host(
    kind: str, made: Region, params: Params, threads: int, tmp_path: Path
) -> None:
    assert faults(CATALOG.get(f"{kind}/tensor-tiles"), made, params, tmp_path, threads) == []


def test_a_product_of_the_last_token_alone_writes_no_other(tmp_path: Path) -> None:
    """The head's region says how many tokens its chunk has, and gets one."""
    made = region("linear", Extents(hidden=136, rows=(72,), tokens=200), within="last-rmsnorm-linear")
    assert (made.port("x").shape, dict(made.dims)["tokens"]) == ((1, 1, 136), 200)
    assert faults(CATALOG.get("linear/tensor-tiles"), made, at(2), tmp_path, 6) == []


ONE, TILED, TURNS, HEADS, MERGED = SHARED[0], SHARED[3], SHARED[5], SHARED[8], SHARED[6]
PLANTED = [
    # A block's sums left out, and joined before they are there.
    (TILED, "for (int p = 1; p < SPLIT; ++p)", "for (int p = 2; p < SPLIT; ++p)"),
    (TILED, "        parts_meet();\n#pragma", "        cluster_arrive();\n#pragma"),
    # Sums over stages that another warpgroup still multiplies, at first and in the next tile.
    (TILED, "wait_for(tiles.multiplied, tiles.turn_of(t) & 1);", ""),
    (TURNS, "tiles.turn_of(t) & 1", "0"),
    # A share of rows that nobody or the wrong block has.
    (TILED, "EIGHTS * (tiles.rank + 1) / SPLIT;", "EIGHTS * (tiles.rank + 1) / SPLIT - 1;"),
    (TILED, "read_four_from(parts + (begin + e) * CONSUMERS, p)", "read_four_from(parts + e * CONSUMERS, p)"),
    # Bias and residual: left out, twice, or another's.
    (ONE, "(lower(bias) + lower(more))", "lower(more)"),
    (TILED, "two<WHOLE>(a.r + token * at.count", "two<WHOLE>(a.r + (token ^ 1) * at.count"),
    (WHOLE[2], "load16(a.r + token * at.count", "load16(a.r + (token ^ 1) * at.count"),
    (WHOLE[3], "sum[4 * i + 2 * half] += lower(bias),", ""),
    (WHOLE[4], "if (WHOLE) turn(more[f]);", ""),
    # Another head's tokens or columns, and another matrix's rows.
    (HEADS, "k / OF_HEAD * int(THERE) + token", "token"),
    (WHOLE[8], "k / OF_HEAD * WIDTH + ", "k / OF_HEAD * COLUMNS + "),
    (MERGED, "unit -= here;", ""),
    (WHOLE[6], "const int here = over(w_rows[i], UNIT);", "const int here = w_rows[i] / UNIT;"),
    (WHOLE[5], "at.row += four * 32 % BOX;", "at.row += 8;"),
]
PLANTED_IN_TILES = [
    (TILED, "STEPS * rank / SPLIT", "0"),
    (TILED, "STEPS * (rank + 1) / SPLIT", "(STEPS - 1) * (rank + 1) / SPLIT"),
    (TILED, "work.tokens_at(token, begin + k)", "work.tokens_at(token, k)"),
    (TURNS, "parts_meet(), parts_meet();", "parts_meet();"),
    (WHOLE[3], "Work::STARTED || k > 0", "k > 0"),
    (WHOLE[4], "p % Tiles::SHARE != tiles.rank", "p % Tiles::SHARE != 0"),
]


@pytest.mark.parametrize(
    ("file", "case", "right", "wrong"),
    [("tensor_products.cuh", *one) for one in PLANTED] + [("tensor_tiles.cuh", *one) for one in PLANTED_IN_TILES],
)
def test_a_planted_fault_is_caught(
    file: str, case: tuple[str, Region, Params, int], right: str, wrong: str, tmp_path: Path
) -> None:
    kind, made, params, threads = case
    template = planted(CATALOG.get(f"{kind}/tensor-tiles"), file, right, wrong)
    assert faults(template, made, params, tmp_path, threads) != []


def test_a_block_that_ends_before_others_have_read_its_sums_is_caught(tmp_path: Path) -> None:
    kind, made, params, threads = TILED
    whole = CATALOG.get(f"{kind}/tensor-tiles")
    filled = planted(whole, "tensor_tiles.cuh", "parts_meet(), parts_meet();", "parts_meet();")
    template = planted(filled, "tensor_products.cuh", "others_read();\n        parts_meet();", "")
    assert "the shared memory of a block is read that has ended" in faults(template, made, params, tmp_path, threads)


AT_ONCE = {1: 132, 2: 66, 4: 30, 8: 15}
"""The clusters of so many blocks that an H200 runs at once, as measured: none may wait for another to end."""


@pytest.mark.parametrize("tokens", [128, 256, 2048, 8192])
@pytest.mark.parametrize("model", MODELS)
def test_products_of_known_models_fit_the_registers(model: str, tokens: int) -> None:
    qkv, hidden, (heads, head_dim), wide = MODELS[model]
    for kind, extents in (
        ("linear", Extents(hidden=hidden, rows=(hidden,), tokens=tokens)),
        ("linear-merged", Extents(hidden=hidden, rows=qkv, tokens=tokens)),
        ("linear-residual", Extents(hidden=wide, rows=(hidden,), tokens=tokens)),
        ("heads-linear-residual", Extents(q_heads=heads, head_dim=head_dim, rows=(hidden,), tokens=tokens)),
    ):
        template, made = CATALOG.get(f"{kind}/tensor-tiles"), region(kind, extents)
        for params in (template.defaults, at(8)) if tokens < 512 else (template.defaults,):
            assert problems(made, template, params, gpu("sm_90a")) == ()
            source = specialise(template, made, params, gpu("sm_90a"))
            splits = dict(params)["SPLITS"]
            split = max(splits // -(-splits * -(-tokens // 128) * -(-dict(made.dims)["rows"] // 192) // 132), 1)
            assert int(source.launches[0].grid[0]) == AT_ONCE[split] * split
            text = f"static_assert(Tiling<Work>::SPLIT == {split} && Tiling<Work>::COUNT <= {AT_ONCE[split]});\n"
            code = cubin(replace(source, text=source.text + (text if split > 1 else "")))
            assert isinstance(code, Cubin), code
            (one,) = code.resources
            assert one.spill_bytes == 0, (kind, one)
            assert one.registers * int(source.launches[0].block[0]) <= 65_536, (kind, one)
