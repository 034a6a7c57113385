"""Rules that count what mutated borders leave to whom, and of what is done beside them."""

from __future__ import annotations

from agentcompile.bench.campaign.equivalent import reason
from agentcompile.bench.campaign.walls import behind_walls

from tests.templates.shapes import Extents, region
from tests.unit.test_equivalent import ARGMAX, DOT, EVEN, GEMV, SHARED, THREE, UNEVEN, excused

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
