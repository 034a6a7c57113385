"""Rules that count what mutated loops visit: each holds at the extents where the same is visited, and at no others."""

from __future__ import annotations

from pathlib import Path

from agentcompile.bench.campaign.equivalent import reason
from agentcompile.bench.campaign.mutating import mutations

from tests.templates.shapes import Extents, region
from tests.unit.test_equivalent import DOT, EVEN, GEMV, SIMD, THREE, UNEVEN, excused

VECTORS = "const long whole = n / LANES * LANES;"


def test_single_elements_stand_in_for_vectors_that_are_left_out() -> None:
    assert excused("linear", UNEVEN, SIMD, VECTORS, " * LANES", "")
    assert not excused("linear-residual", UNEVEN, SIMD, VECTORS, " * LANES", ""), "its sum is perhaps in place"
    assert not excused("rope-attention-decode", Extents(), SIMD, VECTORS, " * LANES", ""), "it adds to what is there"
    assert excused("add", UNEVEN, SIMD, VECTORS, " * LANES", "")
    assert not excused("add", UNEVEN, SIMD, VECTORS, "n / LANES * LANES", "n / LANES * (LANES + 1)")
    for width, same in ((1024, True), (512, True), (256, False), (330, False), (64, True)):
        assert excused("add", Extents(rows=(width,)), SIMD, VECTORS, "long", "signed char") == same
    assert excused("silu-mul", Extents(rows=(1024,)), SIMD, VECTORS, "long", "signed char")
    assert not excused("silu-mul", Extents(rows=(256,)), SIMD, VECTORS, "long", "signed char")
    assert excused("add", Extents(rows=(1024,)), SIMD, VECTORS, "* LANES", "+ LANES")
    assert not excused("add", Extents(rows=(64,)), SIMD, VECTORS, "/ LANES * LANES", "/ LANES * LANES + 1")
    each = "each(end - begin, [&](auto as, long i) {"
    assert excused("add", Extents(rows=(256,)), "add/plain/kernel.cpp", each, "long i", "signed char i")
    assert not excused("add", Extents(rows=(320,)), "add/plain/kernel.cpp", each, "long i", "signed char i")


def test_what_a_byte_does_not_hold_is_no_argument_of_a_template() -> None:
    whole = region("linear", EVEN)
    loop, head = "for (long i = whole; i < K; ++i) one::store(out + i, value(one{}, i));", "template <class W, long K>"
    narrow = loop.replace("long", "signed char"), head.replace("long", "signed char")
    assert reason("cast", whole, DOT, loop, narrow[0], threads=2)
    assert not reason("cast", region("linear", Extents(hidden=128)), DOT, loop, narrow[0], threads=2)
    assert reason("cast", whole, DOT, head, narrow[1], threads=2)
    assert not reason("cast", whole, DOT, "const long step = 2;", "const signed char step = 2;", threads=2)
    assert not reason("cast", whole, DOT, "void f(long begin) {", "void f(signed char begin) {", threads=2)


STEPS = "constexpr long step = step_of<W>, main = K / step * step, turns = main / (step * UNROLL) * (step * UNROLL);"


def test_what_a_byte_leaves_of_the_steps_goes_one_by_one_where_any_do() -> None:
    steps = (
        "constexpr long step = step_of<W>, main = K / step * step, turns = main / (step * UNROLL) * (step * UNROLL);"
    )
    for hidden, same, order in ((330, True, True), (330, False, False), (96, True, False), (1024, False, True)):
        told = (Extents(hidden=hidden), DOT, steps, "long", "signed char")
        assert excused("linear", *told, NATIVE=int(order)) == same
    assert not excused("linear", EVEN, DOT, steps, "step * step, turns", "step * 2, turns")


def test_turns_that_are_another_multiple_of_what_a_turn_takes_leave_more_steps_to_go_one_by_one() -> None:
    steps = (
        "constexpr long step = step_of<W>, main = K / step * step, turns = main / (step * UNROLL) * (step * UNROLL);"
    )
    fewer = ("* (step * UNROLL);", "* (step);")
    for hidden, lanes, unroll, same in ((576, 8, 2, True), (576, 8, 4, False), (576, 16, 2, False), (576, 16, 1, True)):
        assert excused("linear", Extents(hidden=hidden), DOT, steps, *fewer, LANES=lanes, UNROLL=unroll) == same
    assert not excused("linear", Extents(hidden=576), DOT, steps, *fewer), "of some accumulators it does not hold"
    assert not excused("linear", EVEN, DOT, steps, "/ (step * UNROLL)", "/ (step)", LANES=8, UNROLL=2)
    packed = "constexpr long turns = steps / UNROLL * UNROLL;"
    assert excused("linear", Extents(hidden=128), DOT, packed, "* UNROLL", "* (UNROLL + 1)", UNROLL=1) is False
    assert excused("linear", Extents(hidden=128), DOT, packed, " * UNROLL", "", UNROLL=8)
    assert not excused("linear", Extents(hidden=84), DOT, packed, " * UNROLL", "", UNROLL=4)


def test_products_of_one_row_are_the_same_either_way_round() -> None:
    one = "row_sums<W, K, 1, UNROLL, AHEAD>(w + i * K, x, &partial);"
    some = "row_sums<W, K, STREAMS, UNROLL, AHEAD>(w + i * K, x, partial + i);"
    assert excused("linear", EVEN, DOT, one, "w + i * K, x", "x, w + i * K")
    assert excused("linear", EVEN, DOT, some, "w + i * K, x", "x, w + i * K", STREAMS=1)
    assert not excused("linear", EVEN, DOT, some, "w + i * K, x", "x, w + i * K", STREAMS=2)
    assert not excused("linear", EVEN, DOT, some, "w + i * K, x", "x, w + i * K")
    border = "const long low = std::max(begin, base) - base, high = std::min(end, base + here) - base;"
    merged = region("linear-merged", THREE)
    for new, same in (("std::max(base, begin)", True), ("std::max(begin, here)", False)):
        after = border.replace("std::max(begin, base)", new)
        assert bool(reason("arguments", merged, GEMV, border, after, threads=2)) == same
    assert reason("arguments", merged, GEMV, border, border.replace("end, base + here", "base + here, end"), threads=2)


def test_a_loop_is_counted_by_a_byte_where_its_end_is_and_its_beginning() -> None:
    attention = region("rope-attention-decode", Extents())
    heads = "for (long head = kv_heads * rank / size; head < kv_heads * (rank + 1) / size; ++head) {"
    slots = "for (long s = 0; s < n; s += TILE)"
    for line, params, same in ((heads, {}, True), (slots, {"BLOCK": 64}, True), (slots, {"BLOCK": 128}, False)):
        after = line.replace("for (long", "for (signed char")
        told = reason("cast", attention, "_include/attention.h", line, after, threads=2, params=params)
        assert bool(told) == same
    single = "for (long i = whole; i < n; ++i) body(one{}, i);"
    assert excused("add", Extents(rows=(192,)), SIMD, single, "long i", "signed char i")
    assert not excused("add", Extents(rows=(1024,)), SIMD, single, "long i", "signed char i")
    turns = "for (long k = 0; k < turns; k += step * UNROLL) {"
    for width, same in ((82, True), (160, False)):
        of = region("rope-attention-decode", Extents(head_dim=width, dtype="fp32"))
        told = reason("cast", of, DOT, turns, turns.replace("long", "signed char"), threads=2, params={"LANES": 16})
        assert bool(told) == same


TILES = "_include/chunk_tiles.h"
"""It has two loops over the rows of a tile whose first lines are the same."""
BEGUN_LATER = "for (int r = 1; r < HIGH; ++r) {"


def test_of_two_loops_with_one_text_the_row_matches_that_which_skips_what_the_first_row_has_not() -> None:
    text = f'#line 1 "{TILES}"\n' + (Path(__file__).parents[2] / "templates" / TILES).read_text()
    some = text.index("multiply_some(")
    found = [one for one in mutations(text)["initial"] if one.describe(text)["after"] == BEGUN_LATER]
    assert [one.start > some for one in found] == [False, True]
    for window, tokens in ((0, 5), (0, 70), (7, 70)):
        for kind in ("rope-attention-prefill", "qknorm-rope-attention-prefill"):
            own = region(kind, Extents(window=window, tokens=tokens))
            for mutation in found:
                at = mutation.describe(text)
                told = reason(
                    at["mutator"], own, at["file"], at["before"], at["after"], threads=2, behind=mutation.behind(text)
                )
                assert bool(told) == (window == 0 and mutation.start > some), (kind, window, at["line"])
    at = found[1].describe(text)
    row = (at["mutator"], region("rope-attention-prefill", Extents()), at["file"], at["before"])
    assert not reason(*row, at["after"], threads=2), "which of the two it is must be known"
    later = BEGUN_LATER.replace("= 1", "= 2")
    assert not reason(*row, later, threads=2, behind=found[1].behind(text)), "row 1 may have more than row 0"
