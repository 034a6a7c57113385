"""What is said to be no fault of a CUDA kernel, and where the same mutation is one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from agentcompile.bench.campaign.equivalent import equivalents, reason

from agentcompile.ir.graph import DType
from agentcompile.ir.region import Region
from tests.templates.shapes import Extents, region

TEMPLATES = Path(__file__).parents[2] / "templates"


def test_every_row_is_about_a_line_that_ships() -> None:
    files = {str(path.relative_to(TEMPLATES)): path.read_text("utf-8") for path in TEMPLATES.rglob("*.cu*")}
    others = [str(path.relative_to(TEMPLATES)) for ending in ("h", "cpp") for path in TEMPLATES.rglob(f"*.{ending}")]
    about = [
        row
        for row in equivalents()
        if any(re.fullmatch(row.file, name) for name in files)
        and not any(re.fullmatch(row.file, name) for name in others)
    ]
    assert len(about) > 50
    for row in about:
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


@pytest.mark.parametrize(
    ("file", "before"),
    [
        ("device", "for (int step = WIDTH / 2; step > 0; step /= 2) v += __shfl_xor_sync(ALL, v, step);"),
        ("argmax", "const Key other = __shfl_xor_sync(ALL, key, step);"),
        ("attention_tiles", "if (__any_sync(ALL, most > base + (LIFT + SLACK))) {"),
    ],
)
def test_a_mask_without_lanes_that_take_part_has_no_meaning_and_another_exchange_has(file: str, before: str) -> None:
    made = region("linear", Extents(hidden=64, rows=(48,)))
    masked = before.replace("ALL", "(ALL >> 16)")
    assert _said(made, f"_include/{file}.cuh", before, masked).startswith("undefined")
    for after in (
        before.replace("step)", "step + 1)"),
        before.replace("most >", "most >="),
        before.replace("_xor", ""),
    ):
        assert after == before or not _said(made, f"_include/{file}.cuh", before, after)


def test_a_mask_is_a_number_to_a_kernel_that_chooses() -> None:
    before = "constexpr unsigned ALL = 0xffffffffu;"
    for kind, undefined in (("linear", True), ("embedding", True), ("linear-argmax", False)):
        for mask in ("0x7fffffffu", "0xfffffffeu"):
            said = _said(region(kind, Extents()), "_include/device.cuh", before, before.replace("0xffffffffu", mask))
            assert said.startswith("undefined") == undefined, (kind, mask)
    key = "const unsigned ordered = v != v ? ALL : bits & 0x80000000u ? ~bits : bits | 0x80000000u;"
    made = region("linear-argmax", Extents())
    assert not _said(made, "_include/argmax.cuh", key, key.replace("ALL", "(ALL >> 16)"))


def test_sums_that_begin_with_nothing_have_no_meaning_and_those_that_begin_elsewhere_have() -> None:
    before = "for (int r = 0; r < ROWS; ++r) sum[r] = 0;"
    made = region("linear", Extents(hidden=64, rows=(48,)))
    assert _said(made, "_include/gemv.cuh", before, before.replace("<", ">=")).startswith("undefined")
    for after in (before.replace("= 0;", "= 1;"), before.replace("<", "<="), before.replace("++r", "r += 2")):
        assert after == before or not _said(made, "_include/gemv.cuh", before, after)


def _said(made: Region, file: str, before: str, after: str) -> str:
    return reason("any", made, file, before, after, threads=132)


BULK, HEADS, PARTS = "_include/bulk.cuh", "_include/attention_heads.cuh", "_include/attention_parts.cuh"
BASE = "for (long base = 0; unit_of<1>(rows_of, long(blockIdx.x) * TEAMS + base * step).left; base += WARP) {"
PARTNER = "const int partner = near ? HALF_LANES + (i + HALF_REST) / PER_LANE : -HALF_LANES - (i < HALF_REST ? 1 : 0);"
ASK = "ask(ring.slot, turn + (side + DEPTH) / SIDE, (side + DEPTH) % SIDE);"
MINE = "const bool mine = lane < ROWS && lane < unit.left;"
SQUARES = "for (long i = threadIdx.x; i < hidden; i += WARP * WARPS) squares += to_float(x[i]) * to_float(x[i]);"
LOOKUP = (
    "for (long i = long(blockIdx.x) * blockDim.x + threadIdx.x; i < hidden; i += long(gridDim.x) * blockDim.x) "
    "y[i] = row[i];"
)
LENGTH = "const long length = y_numel[which] / tokens;"
TAIL = "for (long k = i; k < width; ++k) put(a.y + k, silu(to_float(a.g[k])) * to_float(a.u[k]));"
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
        ("linear", "_include/gemv.cuh", "if (++step == STEPS) break;", "if (!(++step == STEPS)) break;",
         {"LOADS": 1}, {}),
        ("linear", "_include/gemv.cuh", MINE, MINE.replace("< unit", "<= unit"), {"ROWS": 8}, {"ROWS": 16}),
        ("linear", BULK, ASK, "ask(ring.slot, turn / SIDE, (side + DEPTH) % SIDE);",
         {"WARPS": 4, "PARTS": 1, "DEPTH": 2}, {"WARPS": 4, "PARTS": 1, "DEPTH": 1}),
        ("linear", BULK, BASE, BASE.replace(") * TEAMS", ") + TEAMS"), {"WARPS": 8, "PARTS": 2}, {"WARPS": 8}),
        ("rmsnorm", "rmsnorm/block/kernel.cu", SQUARES, SQUARES.replace("+= to", "= to"), {"WARPS": 2}, {"WARPS": 1}),
        ("linear", "_include/vector.cuh", "if (before && unit < here) found = {i};",
         "if (before || unit < here) found = {i};", {"ROWS": 2, "WARPS": 4}, {"ROWS": 2, "WARPS": 16}),
        ("rope-attention-decode", "_include/attention_joined.cuh",
         "const int until = (rank + 1) * CHUNK < ELEMENTS ? (rank + 1) * CHUNK : ELEMENTS;",
         "const int until = (rank) * CHUNK < ELEMENTS ? (rank + 1) * CHUNK : ELEMENTS;", {"SPLITS": 8}, {"SPLITS": 5}),
        ("rope-attention-decode", PARTS, "if (begin < TEAMS && quad < QUADS) ask(begin);",
         "if (begin < TEAMS || quad < QUADS) ask(begin);", {"WARPS": 3}, {"WARPS": 4}),
        ("linear", BULK, "reads_done();", ";", {"WARPS": 4, "PARTS": 1, "DEPTH": 2},
         {"WARPS": 4, "PARTS": 1, "DEPTH": 1}),
        ("rope-attention-decode", "_include/attention_joined.cuh",
         "const int until = (rank + 1) * CHUNK < ELEMENTS ? (rank + 1) * CHUNK : ELEMENTS;",
         "const int until = !((rank + 1) * CHUNK < ELEMENTS) ? (rank + 1) * CHUNK : ELEMENTS;",
         {"SPLITS": 8}, {"SPLITS": 5}),
    ],
)  # fmt: skip
def test_what_depends_on_a_candidates_parameters(
    kind: str, file: str, before: str, after: str, holds: dict[str, int], fails: dict[str, int]
) -> None:
    made = region(kind, DECODE if "attention" in kind else WIDE)
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
        # 96 turns of 132 warps are the most whose groups a signed byte counts: the next begins at 128.
        (region("linear", Extents(rows=(96 * 132,))), region("linear", Extents(rows=(96 * 132 + 1,))), BULK,
         BASE, BASE.replace("long base", "signed char base")),
        (region("rope-attention-decode", DECODE), region("rope-attention-decode", Extents(head_dim=80)), HEADS,
         PARTNER, PARTNER.replace(": -HALF_LANES", ": HALF_LANES")),
        (region("embedding", Extents()), region("embedding", Extents(batch=2)), "embedding/row/kernel.cu",
         "y_t* y = a.y + blockIdx.y * hidden;", "y_t* y = a.y - blockIdx.y * hidden;"),
        (region("embedding", Extents(hidden=(1 << 32) - 256)), region("embedding", Extents(hidden=(1 << 32) - 255)),
         "embedding/row/kernel.cu", LOOKUP, LOOKUP.replace("+= long(gridDim.x)", "+= (gridDim.x)")),
        (region("position-tables", Extents(hidden=127)), region("position-tables", Extents(hidden=128)),
         "position-tables/row/kernel.cu", LENGTH, LENGTH.replace("const long", "const signed char")),
        (region("silu-mul", Extents(rows=(17,))), region("silu-mul", Extents(rows=(18,))), "silu-mul/flat/kernel.cu",
         TAIL, TAIL.replace("++k", "k += 2")),
        (region("silu-mul", Extents(rows=(12,), dtype="fp32")), region("silu-mul", Extents(rows=(12,))),
         "silu-mul/flat/kernel.cu", TAIL, TAIL.replace("++k", "k += 2")),
    ],
)  # fmt: skip
def test_what_depends_on_a_regions_extents(held: Region, broken: Region, file: str, before: str, after: str) -> None:
    assert reason("any", held, file, before, after, threads=132)
    assert not reason("any", broken, file, before, after, threads=132)


FIRST = "if (i == 0) ends[g * SPLITS + split] = make_float2(top, total);"
COUNT = "if (threadIdx.x == 0) *arrived = 0;"
PLACE = "if (PARTS > 1 && lane == 0) squares[warp] = slice.squares;"
EXTRA = "const float extra = mine ? more(unit.matrix, unit.row + lane) : 0.0f;"
EXCHANGE = "for (int step = WARP / 2; step > 0; step /= 2) {"
WEIGHT = "const float w = n < SPLITS ? weight[n] : 0.0f;"
STEP = "i += long(gridDim.x) * blockDim.x"
TURN = "for (int from = begin; from < SPLITS && begin < TEAMS; from += AHEAD * TEAMS) {"


@pytest.mark.parametrize(
    ("kind", "file", "before", "same", "wrong"),
    [
        ("linear", BULK, "__syncwarp();", ";", "__syncthreads();"),
        ("linear", BULK, BASE, BASE.replace("long base", "signed char base"), BASE.replace("long(", "signed char(")),
        ("linear", BULK, BASE, BASE.replace("long base", "signed char base"), BASE.replace("+= WARP", "+= 2 * (WARP)")),
        ("rope-attention-decode", PARTS, FIRST, FIRST.replace("==", "!="), ";"),
        ("rope-attention-decode", PARTS, FIRST, FIRST.replace("==", "!="), FIRST.replace("top, total", "total, top")),
        ("rope-attention-decode", PARTS, COUNT, COUNT.replace("==", "!="), ";"),
        ("rope-attention-decode", PARTS, COUNT, COUNT.replace("==", "!="), COUNT.replace("= 0;", "= 1;")),
        ("rope-attention-decode", PARTS, TURN, TURN.replace("from <", "from <="), TURN.replace("from <", "from >=")),
        ("rope-attention-decode", PARTS, TURN, TURN.replace("from <", "from <="), TURN.replace("&&", "||")),
        ("embedding", "embedding/row/kernel.cu", LOOKUP, LOOKUP.replace(STEP, f"i += 2 * ({STEP[5:]})"),
         LOOKUP.replace("+=", "-=")),
        ("embedding", "embedding/row/kernel.cu", LOOKUP, LOOKUP.replace("+=", "="),
         LOOKUP.replace("i < hidden", "i <= hidden")),
        ("embedding", "embedding/row/kernel.cu", LOOKUP, LOOKUP.replace("+= long(gridDim.x)", "+= (gridDim.x)"),
         LOOKUP.replace("long(gridDim.x) *", "long(gridDim.x) +")),
        ("linear-argmax", "_include/argmax.cuh", EXCHANGE, EXCHANGE.replace("WARP / 2", "WARP * 2"),
         EXCHANGE.replace("step /= 2", "step *= 2")),
        ("linear-argmax", "_include/argmax.cuh", EXCHANGE, EXCHANGE.replace("WARP / 2", "WARP * 2"),
         EXCHANGE.replace("WARP / 2", "WARP / 3")),
        ("linear", BULK, "barriers_made();", ";", "reads_done();"),
        ("linear", BULK, PLACE, PLACE.replace("&&", "||"), PLACE.replace("> 1", "<= 1")),
        ("linear", BULK, PLACE, PLACE.replace("&&", "||"), PLACE.replace("[warp]", "[(warp) + 1]")),
        ("linear", "_include/gemv.cuh", EXTRA, EXTRA.replace("0.0f", "1.0f"), EXTRA.replace("mine ?", "!(mine) ?")),
        ("rope-attention-decode", PARTS, WEIGHT, WEIGHT.replace("0.0f", "1.0f"), WEIGHT.replace("<", "<=")),
        ("rope-attention-decode", HEADS, PARTNER, PARTNER.replace(": -HALF", ": HALF"),
         PARTNER.replace("HALF_LANES +", "HALF_LANES -")),
    ],
)  # fmt: skip
def test_a_row_is_about_one_mutation_of_its_line(kind: str, file: str, before: str, same: str, wrong: str) -> None:
    made = region(kind, DECODE if "attention" in kind else WIDE)
    assert _said(made, file, before, same)
    assert before != same
    assert wrong != before
    assert not _said(made, file, before, wrong)


@pytest.mark.parametrize(
    ("context", "window", "head_dim", "holds"),
    [(256, 0, 64, True), (250, 0, 64, False), (255, 0, 64, False), (256, 100, 64, False), (256, 0, 80, False)],
)
def test_a_byte_where_there_is_nothing_is_read_within_the_cache(
    context: int, window: int, head_dim: int, holds: bool
) -> None:
    before = '::"r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");'
    made = region("rope-attention-decode", Extents(context=context, window=window, head_dim=head_dim))
    params = {"SPLITS": 1, "WARPS": 2, "SLOTS": 4}

    def said(after: str, kernel: str = "rope-attention-decode/split-kv") -> str:
        file = "_include/async_copies.cuh"
        return reason("constant", made, file, before, after, threads=132, params=params, kernel=kernel)

    assert bool(said(before.replace(": 0", ": 1"))) == holds
    assert not said(before.replace(": 0", ": 2"))
    assert not said(before.replace("16 : 0", "15 : 0"))
    assert not said(before.replace(": 0", ": 1"), "linear/thin-rows")


@pytest.mark.parametrize(("context", "warps", "holds"), [(1025, 4, True), (1026, 4, False), (1026, 8, True)])
def test_a_warp_with_one_tile_never_steps(context: int, warps: int, holds: bool) -> None:
    before = (
        "__device__ void step() { asked += TILE * WARPS, keys += TILE * WARPS * head_dim, "
        "values += TILE * WARPS * head_dim; }"
    )
    made = region("rope-attention-decode", Extents(context=context))

    def said(after: str, kernel: str = "rope-attention-decode/tensor-kv") -> str:
        params = {"SPLITS": 16, "WARPS": warps, "DEPTH": 3}
        file = "_include/attention_tiles.cuh"
        return reason("factor", made, file, before, after, threads=132, params=params, kernel=kernel)

    wrong = "values += TILE * head_dim; }".join(before.rsplit("values += TILE * WARPS * head_dim; }", 1))
    assert bool(said(wrong)) == holds
    assert not said(before.replace("asked += TILE * WARPS", "asked += TILE"))


def test_a_running_softmax_of_tiles_begins_elsewhere() -> None:
    before = "float top = -INFINITY, total = 0, sum[PER_LANE] = {};"
    after, made = before.replace("-INFINITY", "INFINITY"), region("rope-attention-decode", Extents())

    def said(kernel: str) -> str:
        return reason("sign", made, "_include/attention.cuh", before, after, threads=132, kernel=kernel)

    assert said("rope-attention-decode/cluster-tensor")
    assert not said("rope-attention-decode/cluster-kv")


def test_the_grid_of_a_lookup_has_a_thread_for_every_element() -> None:
    said = (TEMPLATES / "embedding/row/template.toml").read_text("utf-8")
    assert 'grid = ["ceil_div(hidden, 256)", "tokens"]\nblock = ["256"]' in said


@pytest.mark.parametrize("threads", [1, 5, 132])
@pytest.mark.parametrize(("warps", "parts"), [(4, 4), (4, 2), (8, 1)])
def test_a_block_that_counts_from_its_number_begins_every_turn_in_which_it_has_a_row(
    threads: int, warps: int, parts: int
) -> None:
    teams = warps // parts
    turn = 32 * threads * teams

    def begins(rows: int, block: int) -> bool:
        return all(block + teams + base < rows for base in range(0, rows, turn) if block * teams + base < rows)

    params = {"WARPS": warps, "PARTS": parts}
    after = BASE.replace(") * TEAMS", ") + TEAMS")
    for rows in (1, teams, 2 * teams + 1, 64, turn - 1, turn, turn + 1, turn + teams, turn + 3 * teams, 2 * turn):
        made = region("linear", Extents(rows=(rows,)))
        said = reason("arithmetic", made, BULK, BASE, after, threads=threads, params=params)
        assert bool(said) == all(begins(rows, block) for block in range(threads)), rows


def test_the_rows_of_a_gate_are_counted_once() -> None:
    for rows, holds in ((11, True), (8, False)):
        made = region("gateup-silu-mul", Extents(rows=(rows,)))
        params = {"WARPS": 8, "PARTS": 1, "DEPTH": 2}
        after = BASE.replace(") * TEAMS", ") + TEAMS")
        assert bool(reason("arithmetic", made, BULK, BASE, after, threads=132, params=params)) == holds


@pytest.mark.parametrize(
    ("hidden", "loads", "dtype", "holds"),
    [(768, 4, "bf16", True), (576, 8, "bf16", False), (1024, 2, "bf16", True), (768, 2, "bf16", False),
     (640, 8, "fp32", True), (640, 8, "bf16", False), (768, 0, "bf16", False)],
)  # fmt: skip
def test_a_load_behind_the_last_column_is_made_beside_others(
    hidden: int, loads: int, dtype: DType, holds: bool
) -> None:
    before = "held[r][j] = k < K ? stream(base + (r < last ? r : last) * K + k) : Words{};"
    made = region("linear", Extents(hidden=hidden, dtype=dtype))
    after, params = before.replace("k < K", "k <= K"), {"LOADS": loads}
    said = reason("boundary", made, "_include/gemv.cuh", before, after, threads=132, params=params)
    assert bool(said) == holds
