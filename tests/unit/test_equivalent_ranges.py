"""Rules that count what mutated borders leave to whom, and of what is done beside them."""

from __future__ import annotations

from agentcompile.bench.campaign.equivalent import reason
from agentcompile.bench.campaign.probing import behind_walls

from tests.templates.shapes import Extents, region
from tests.unit.test_equivalent import ARGMAX, DOT, EVEN, GEMV, SHARED, SIMD, THREE, UNEVEN, excused

ATTENTION = "_include/attention.h"
DECODE = "rope-attention-decode"
BORDERS = "const long begin = units * rank / size, end = units * (rank + 1) / size;"


def test_shares_may_overlap_but_leave_nothing_and_stay_within_their_matrix() -> None:
    assert excused("linear-merged", THREE, GEMV, BORDERS, "(rank + 1) / size", "(rank + 1) * size")
    assert not excused("linear-merged", THREE, GEMV, BORDERS, "units * rank / size", "units * (rank + 1) / size")
    assert not excused("linear-merged", THREE, GEMV, SHARED, "std::min(high * UNIT, counts[i])", "high * UNIT - 1")
    assert not excused("linear", UNEVEN, GEMV, SHARED, "counts[i])", "counts[i] + 1)")


def test_tiles_that_end_late_reach_behind_a_share() -> None:
    loop = "for (; row + TILES * TILE <= end; row += TILES * TILE) {"
    for rows, same in ((160, True), (192, False)):
        told = (
            "linear",
            Extents(hidden=64, rows=(rows,)),
            GEMV,
            loop,
            "row + TILES * TILE <=",
            "row + TILES + TILE <=",
        )
        assert excused(*told, TILES=4) == same
    assert not excused("linear", EVEN, GEMV, loop, "row += TILES * TILE", "row += TILES * (TILE + 1)", TILES=1)


def test_columns_are_each_taken_once() -> None:
    wide = "for (; column + wide_columns * LANES <= D; column += wide_columns * LANES)"
    assert excused(DECODE, Extents(head_dim=82), ATTENTION, wide, "<= D", "< D")
    assert not excused(DECODE, Extents(head_dim=82), ATTENTION, wide, "column += wide", "column += 2 * wide")
    assert not excused(DECODE, Extents(head_dim=82), ATTENTION, wide, "wide_columns * LANES <= D", "0 <= D")


def test_parts_of_a_cache_hold_all_slots() -> None:
    file = "rope-attention-decode/split/kernel.cpp"
    part = "const long length = position + 1 - low, part = ((length + SPLITS - 1) / SPLITS + 15) / 16 * 16;"
    assert excused(DECODE, Extents(), file, part, "+ 15)", "+ 16)", SPLITS=4)
    assert excused(DECODE, Extents(), file, part, "/ 16 * 16", "/ 16 * 17", SPLITS=4)
    assert not excused(DECODE, Extents(), file, part, "/ 16 * 16", "/ 16 * 15", SPLITS=4)
    assert not excused(DECODE, Extents(), file, part, "/ 16 * 16", "/ 17 * 16", SPLITS=4)
    assert not excused(DECODE, Extents(), file, part, "+ 15)", "+ 16)"), "of some number of parts nothing is known"


def test_an_operand_has_room_for_the_second_of_its_last_pair() -> None:
    room = "template <long K> constexpr long operand_room = (K + 2 * LANES - 1) / (2 * LANES) * (2 * LANES);"
    assert excused("linear", EVEN, DOT, room, "- 1", "+ 1")
    assert excused("linear", EVEN, DOT, room, "* (2 * LANES);", "* (2 * (LANES + 1));")
    assert not excused("linear", UNEVEN, DOT, room, "/ (2 * LANES)", "/ (3 * LANES)")
    whole = "constexpr long whole = K / (2 * LANES) * (2 * LANES);"
    assert excused("linear", Extents(hidden=128), DOT, whole, "K / (2 * LANES)", "K / (4 * LANES)", NATIVE=1, LANES=16)
    assert not excused("linear", Extents(hidden=128), DOT, whole, "* (2 * LANES)", "* (2 * LANES) / 2", NATIVE=0)
    assert excused("linear", UNEVEN, DOT, "tail[0] += a;", "tail[0]", "tail[(0) + 1]")


def test_before_a_first_block_there_is_nothing_to_keep() -> None:
    keep = "keep[g] = run.total[g] == 0 ? 0.0f : std::exp(run.top[g] - next);"
    for old, new in (("== 0", "!= 0"), ("run.top[g] - next", "run.top[g] + next")):
        assert excused(DECODE, Extents(context=96), ATTENTION, keep, old, new, BLOCK=128)
        assert not excused(DECODE, Extents(context=256), ATTENTION, keep, old, new, BLOCK=128)
    assert excused(DECODE, Extents(context=256), ATTENTION, keep, "0.0f", "1.0f", BLOCK=128)


def test_numbers_that_are_zero_are_left_out() -> None:
    row = "const x_t* x = a.x + group * hidden;"
    file = "rmsnorm/plain/kernel.cpp"
    groups = region("rmsnorm", Extents())
    assert dict(groups.dims)["groups"] == 1
    assert excused("rmsnorm", Extents(), file, row, "* hidden", "* (hidden + 1)")
    norm = "room, [&](auto as, long i) { return as.load(x + i) * inverse * (as.load(norm + i) + offset); });"
    at = ("_include/norm_operand.h", norm, " + offset", "")
    assert excused("rmsnorm-linear", EVEN, *at)
    assert not excused("rmsnorm-linear", Extents(offset=1.0), *at)


def test_which_logit_is_chosen_among_some_that_are_nan_matters_where_no_norm_makes_all_alike() -> None:
    line = "return (bits & 0x7fffffff) > 0x7f800000 ? INT32_MAX : key;"
    after = line.replace("INT32_MAX", "INT32_MIN")
    for kind, same in (("rmsnorm-linear-argmax", True), ("linear-argmax", False)):
        assert bool(reason("extreme", region(kind, EVEN), ARGMAX, line, after, threads=2)) == same
    assert excused("linear-argmax", EVEN, ARGMAX, "long index = 0;", "= 0", "= 1")
    assert excused("linear-argmax", EVEN, ARGMAX, "v += 0.0f;", "+=", "-=")


def test_clamps_hold_what_overflows_and_what_vanishes() -> None:
    silu = "_include/silu.h"
    high = "x = (x > 128.0f * 0.6931472f) ? splat(128.0f * 0.6931472f + 1) : x;"
    low = "x = (x < -150.0f * 0.6931472f) ? splat(-150.0f * 0.6931472f) : x;"
    for line, old, new, same in (
        (high, "(x > 128.0f * 0.6931472f)", "(x > 128.0f * (2.0f * 0.6931472f))", True),
        (high, "(x > 128.0f * 0.6931472f)", "(x > 128.0f * (-0.6931472f))", False),
        (low, "splat(-150.0f * 0.6931472f)", "splat(-150.0f + 0.6931472f)", True),
        (low, "splat(-150.0f * 0.6931472f)", "splat(-150.0f * (2.0f * 0.6931472f))", False),
        (low, "x < ", "x > ", False),
    ):
        assert excused("silu-mul", EVEN, silu, line, old, new) == same


def test_arrays_that_are_filled_through_pointers_have_walls() -> None:
    text = '#line 1 "a.cpp"\n    alignas(64) operand_t<w_t> room[operand_room<hidden>];\n    float other[4];\n'
    walled = behind_walls(text)
    assert "walled<operand_t<w_t>, long(operand_room<hidden>)> room;" in walled
    assert "float other[4];" in walled
    assert walled.index("struct walled") < walled.index("#line 1")


def test_an_exponent_may_be_split_anyhow_that_floats_hold() -> None:
    line = "vi k = __builtin_convertvector((n == n) ? n : vf{}, vi), half = k >> 1;"
    for new, same in (("k >> 2", True), ("k / 2", True), ("k >> 0", False), ("k >> 5", False), ("k / 0", False)):
        assert excused("silu-mul", EVEN, "_include/silu.h", line, "k >> 1", new) == same, new
    assert not excused("silu-mul", EVEN, "_include/silu.h", line, "? n :", "? -n :")
    magic = "const vf magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to the nearest integer"
    assert excused("silu-mul", EVEN, "_include/silu.h", magic, "12582912.0f", "(-12582912.0f)")
    assert not excused("silu-mul", EVEN, "_include/silu.h", magic, "12582912.0f", "(-8388608.0f)")


def test_the_clamp_of_what_overflows_begins_where_it_did() -> None:
    high = "x = (x > 128.0f * 0.6931472f) ? splat(128.0f * 0.6931472f + 1) : x;"
    for new, same in (("128.0f + 0.6931472f + 1", True), ("128.0f * 0.6931472f - 1", False)):
        assert excused("silu-mul", EVEN, "_include/silu.h", high, "128.0f * 0.6931472f + 1", new) == same


def test_slots_behind_the_newest_may_be_scored_where_the_cache_has_them() -> None:
    for line, old, new in (
        ("for (int i = 0; i < n; ++i) {", "i < n", "i <= n"),
        ("if (n == TILE) {", "n == TILE", "!(n == TILE)"),
    ):
        assert excused(DECODE, Extents(context=1024), DOT, line, old, new)
        assert not excused(DECODE, Extents(context=1021), DOT, line, old, new)
        assert not excused(DECODE, Extents(context=1024, window=100), DOT, line, old, new)
    assert not excused("linear", UNEVEN, DOT, "for (int i = 0; i < n; ++i) {", "i < n", "i <= n")
    largest = "inline float largest(const float* v, long n) {"
    for context, block, same in ((96, 128, True), (1024, 128, False), (1024, 64, True)):
        told = (DECODE, Extents(context=context), SIMD, largest, "long n", "signed char n")
        assert excused(*told, BLOCK=block) == same
    assert not excused(DECODE, Extents(context=96), SIMD, largest, "long n", "signed char n"), "of some block's length"


def test_a_norm_that_a_region_has_is_no_branch_of_another() -> None:
    line = (
        "each(D, [&](auto as, long i) { as.store(plain, as.load(x + i) * inverse * (as.load(norm + i) + offset)); });"
    )
    for kind, unreached, same in ((DECODE, True, True), (DECODE, False, False), (f"qknorm-{DECODE}", True, False)):
        told = reason(
            "dropped", region(kind, Extents()), ATTENTION, line, ";", threads=2, params={}, unreached=unreached
        )
        assert bool(told) == same


def test_a_whole_product_is_at_least_a_step() -> None:
    line = "if constexpr (K % step != 0) {"
    assert excused("linear", Extents(hidden=64), DOT, line, "K % step", "K / step")
    assert not excused("linear", Extents(hidden=17), DOT, line, "K % step", "K / step")


def test_ranks_take_every_group_and_none_that_there_is_not() -> None:
    line = "for (long group = groups * rank / size; group < groups * (rank + 1) / size; ++group) {"
    file = "rmsnorm/plain/kernel.cpp"
    assert excused("rmsnorm", Extents(), file, line, "(rank + 1)", "(rank + 2)")
    assert not excused("rmsnorm", Extents(), file, line, "(rank + 1)", "(rank + 2)", threads=1)
    assert not excused("rmsnorm", Extents(), file, line, "(rank + 1) / size", "rank / size")


def test_a_packed_operand_may_be_read_to_the_end_of_its_last_line() -> None:
    loop = "for (long i = 0; i < whole; i += 2 * LANES) {"
    whole = "constexpr long whole = K / (2 * LANES) * (2 * LANES);"
    for hidden, kernel, same in (
        (330, "linear/packed", True),
        (64, "linear/packed", False),
        (330, "linear/rows", False),
    ):
        told = reason(
            "constant",
            region("linear", Extents(hidden=hidden)),
            DOT,
            loop,
            loop.replace("2 * LANES", "1 * LANES"),
            threads=2,
            params={"LANES": 16, "NATIVE": 0},
            kernel=kernel,
        )
        assert bool(told) == same, (hidden, kernel)
    for kernel, same in (("linear/packed", True), ("linear/rows", False)):
        after = whole.replace("(2 * LANES) *", "(2 * (LANES + 1)) *")
        told = reason(
            "stride",
            region("linear", Extents(hidden=128)),
            DOT,
            whole,
            after,
            threads=2,
            params={"LANES": 8, "NATIVE": 0},
            kernel=kernel,
        )
        assert bool(told) == same


def test_blocks_of_sums_have_room_for_whole_tiles() -> None:
    loop = "for (; row + TILES * TILE <= end; row += TILES * TILE) {"
    told = (GEMV, loop, "row + TILES * TILE <=", "row + TILES <=")
    assert excused("gateup-silu-mul", Extents(hidden=64, rows=(75,)), *told, TILES=1, BLOCK=64)
    assert not excused("gateup-silu-mul", Extents(hidden=64, rows=(75,)), *told, TILES=4, BLOCK=64)
    assert not excused("linear", UNEVEN, *told, TILES=1)
    emit = "emit(row, sums, int(std::min<long>(TILE, end - row)));"
    assert excused("linear", EVEN, GEMV, emit, "std::min", "std::max")
    assert not excused("linear", UNEVEN, GEMV, emit, "std::min", "std::max")
    assert not excused("linear-argmax", EVEN, GEMV, emit, "std::min", "std::max")
    assert not excused("linear-residual", EVEN, GEMV, emit, "std::min", "std::max")
    room = "alignas(64) float sums[TILES * TILE];"
    assert excused("linear", EVEN, GEMV, room, "TILES * TILE", "TILES * (TILE + 1)")
    assert not excused("linear", EVEN, GEMV, room, "TILES * TILE", "TILES * (TILE - 1)")
    bias = "if (bias) each(n, [&](auto as, long i) { as.store(y + i, as.load(sums + i) + as.load(bias + i)); });"
    for given in (False, True):
        of = region("linear", Extents(bias=given))
        assert bool(reason("dropped", of, GEMV, bias, "if (bias) ;", threads=2, params={})) != given


def test_an_operand_in_place_is_its_copy_where_nothing_is_read_behind_it() -> None:
    line = "if constexpr (std::is_same_v<X, operand_t<W>> && O == Order::natural && K % 2 == 0) return x;"
    odd, even = Extents(hidden=875), Extents(hidden=128)
    for kernel, at, same in (
        ("linear/rows", odd, True),
        ("linear/packed", odd, False),
        ("linear/packed", even, True),
    ):
        for old, new in (("K % 2", "K % 3"), ("> &&", "> ||")):
            told = reason(
                "logic", region("linear", at), DOT, line, line.replace(old, new), threads=2, params={}, kernel=kernel
            )
            assert bool(told) == same, (kernel, new)
    assert not reason("logic", region("linear", even), DOT, line, ";", threads=2, params={}, kernel="linear/rows")


def test_of_logits_that_are_all_one_nan_the_first_is_chosen() -> None:
    line = "return (bits & 0x7fffffff) > 0x7f800000 ? INT32_MAX : key;"
    after = line.replace("0x7fffffff", "0x3fffffff")
    for kind, way, at, same in (
        ("rmsnorm-linear-argmax", "packed", UNEVEN, True),
        ("rmsnorm-linear-argmax", "rows", EVEN, True),  # every row is in a whole tile
        ("rmsnorm-linear-argmax", "rows", UNEVEN, False),
        ("linear-argmax", "packed", EVEN, False),
    ):
        told = reason("mask", region(kind, at), ARGMAX, line, after, threads=2, params={}, kernel=f"{kind}/{way}")
        assert bool(told) == same
    wider = line.replace("0x7fffffff", "0xffffffff")
    assert not reason(
        "mask",
        region("rmsnorm-linear-argmax", EVEN),
        ARGMAX,
        line,
        wider,
        threads=2,
        kernel="rmsnorm-linear-argmax/packed",
    )


def test_single_tiles_are_those_that_are_left() -> None:
    loop = "for (; row < end; row += TILE) {"
    for rows, tiles, old, new, same in (
        (96, 2, "+= TILE", "+= 2 * (TILE)", True),  # 48 rows a rank: one tile is left
        (54, 2, "+= TILE", "+= 2 * (TILE)", False),  # 32 and 22 rows: of two that are left the second is missed
        (96, 4, "+= TILE", "+= 2 * (TILE)", False),
        (96, 2, "< end", "<= end", False),
        (96, 2, "+= TILE", "+= (-TILE)", False),  # it would never end
    ):
        told = reason(
            "stride",
            region("linear", Extents(rows=(rows,))),
            GEMV,
            loop,
            loop.replace(old, new),
            threads=2,
            params={"TILES": tiles},
            kernel="linear/packed",
        )
        assert bool(told) == same, (rows, tiles, new)
    ranks = "for (int r = 1; r < size; ++r)"
    for threads, same in ((2, True), (3, False)):
        assert excused("linear-argmax", EVEN, ARGMAX, ranks, "++r", "r += 2", threads) == same


def test_a_tail_that_is_zero_may_be_left_out() -> None:
    line = "float total = sum((acc[0] + acc[1]) + (acc[2] + acc[3])) + tail;"
    for hidden, old, new, same in (
        (512, " + tail", "", True),
        (512, "+ tail", "- tail", True),
        (520, " + tail", "", False),
        (512, " + acc[1]", "", False),
        (512, "(acc[0] + acc[1])", "(acc[0] - acc[1])", False),
    ):
        at = ("_include/rmsnorm.h", line, old, new)
        assert bool(excused("rmsnorm-linear", Extents(hidden=hidden), *at)) == same, (hidden, new)
