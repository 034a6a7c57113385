"""Rules that excuse a survivor: each holds where its reason does, and nowhere else."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from agentcompile.bench.campaign.equivalent import equivalents, reason

from agentcompile.ir.region import Region
from tests.templates.shapes import Extents, region

THREADS = 2
UNEVEN = Extents(hidden=33, rows=(75,))
EVEN = Extents(hidden=64, rows=(96,))
THREE = Extents(hidden=64, rows=(96, 32, 32))

GEMV, DOT, ARGMAX, SIMD = (f"_include/{name}.h" for name in ("gemv", "dot", "argmax", "simd"))
UNITS = "for (long count : counts) units += (count + UNIT - 1) / UNIT;"
SHARE = "const long low = std::max(begin, base) - base, high = std::min(end, base + here) - base;"
NONE = "long units = 0, base = 0;"
LEFT = "for (; row < end; row += TILE) {"
WHOLE = "if (n == TILE) {"
PADDING = "for (long i = K; i < operand_room<K>; ++i) one::store(out + i, 0.0f);"
KEY = "return (bits & 0x7fffffff) > 0x7f800000 ? INT32_MAX : key;"
ROUND = "vu rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;"
LINES = "const long begin = lines * rank / size * 32, end = std::min(numel, lines * (rank + 1) / size * 32);"


def excused(
    kind: str, at: Extents, file: str, before: str, old: str, new: str, threads: int = THREADS, **params: int
) -> bool:
    assert before.count(old) == 1
    return excuse(region(kind, at), file, before, before.replace(old, new), threads, **params) != ""


def excuse(
    of: Region, file: str, before: str, after: str, threads: int = THREADS, *, unreached: bool = False, **params: int
) -> str:
    return reason("any", of, file, before, after, threads=threads, params=params, unreached=unreached)


def test_no_row_excuses_everything() -> None:
    attention = region("rope-attention-decode", Extents())
    assert excuse(attention, "_include/attention.h", "y = a + b;", "y = a - b;", unreached=True) == ""
    assert all(
        count == 1
        for count in Counter(
            (r.file, r.region, r.before, r.after, r.mutators, r.undefined) for r in equivalents()
        ).values()
    )
    assert all(len(row.why) > 20 and (row.before or row.unreached or row.undefined) for row in equivalents())


def test_a_count_of_units_need_not_be_summed_where_there_is_one() -> None:
    assert excused("linear-residual", UNEVEN, GEMV, UNITS, "+= (", "= (")
    assert excused("gateup-silu-mul", UNEVEN, GEMV, UNITS, "+= (", "= (")
    assert not excused("linear-merged", THREE, GEMV, UNITS, "+= (", "= (")
    assert not excused("linear-residual", UNEVEN, GEMV, UNITS, "+= (", "-= (")
    assert not excused("silu-mul", UNEVEN, GEMV, UNITS, "+= (", "= ("), "it has no matrix"


@pytest.mark.parametrize(("kind", "at"), [("linear", UNEVEN), ("linear-merged", THREE)])
def test_a_count_of_units_may_be_too_large_but_not_too_small(kind: str, at: Extents) -> None:
    assert excused(kind, at, GEMV, NONE, "units = 0", "units = 1")
    assert excused(kind, at, GEMV, UNITS, "UNIT - 1", "UNIT - 0")
    assert excused(kind, at, GEMV, UNITS, "UNIT - 1", "UNIT + 1")
    assert not excused(kind, at, GEMV, UNITS, "UNIT - 1", "UNIT - 2")
    assert not excused(kind, at, GEMV, NONE, "base = 0", "base = 1")


def test_where_a_matrix_begins_matters_where_another_stands_before_it() -> None:
    assert excused("linear", UNEVEN, GEMV, SHARE, "std::max(begin, base) - base", "std::max(begin, base)")
    assert not excused("linear-merged", THREE, GEMV, SHARE, "std::max(begin, base) - base", "std::max(begin, base)")
    assert excused("linear-merged", THREE, GEMV, SHARE, "here) - base", "here) + base"), "more is done again"
    assert excused("linear", UNEVEN, GEMV, "base += here;", "+=", "=")
    assert excused("linear-merged", THREE, GEMV, "base += here;", "+=", "="), "ranks are at the same rows, or before"
    assert not excused("linear-merged", THREE, GEMV, "base += here;", "+= here", "+= here + 4")
    assert not excused("linear", UNEVEN, GEMV, SHARE, "base + here", "base - here")


def test_a_turn_at_the_end_of_a_share_is_no_fault_where_every_matrix_ends_within_a_tile() -> None:
    assert excused("linear-residual", UNEVEN, GEMV, LEFT, "row <", "row <=")
    assert not excused("linear-residual", EVEN, GEMV, LEFT, "row <", "row <=")
    mixed = Extents(hidden=64, rows=(75, 32))
    assert not excused("linear-merged", mixed, GEMV, LEFT, "row <", "row <=")
    assert not excused("linear-residual", UNEVEN, GEMV, LEFT, "+= TILE", "+= 2 * (TILE)")


def test_ranks_may_go_on_to_the_end_where_it_is_that_of_a_line() -> None:
    file = "add/plain/kernel.cpp"
    assert excused("add", EVEN, file, LINES, "std::min", "std::max")
    assert not excused("add", UNEVEN, file, LINES, "std::min", "std::max")
    assert not excused("add", EVEN, file, LINES, "(rank + 1)", "(rank + 0)")


def test_sixteen_rows_may_go_one_by_one_where_there_are_no_fewer() -> None:
    assert excused("linear", EVEN, DOT, WHOLE, "==", "!=")
    assert not excused("linear", UNEVEN, DOT, WHOLE, "==", "!=")
    assert not excused("linear", EVEN, DOT, WHOLE, "==", "!=", threads=4), "so many share single rows"
    assert not excused("rope-attention-decode", Extents(context=81), DOT, WHOLE, "==", "!=")


def test_padding_may_be_any_finite_number_and_be_left_where_nothing_reads_it() -> None:
    dropped = ("one::store(out + i, 0.0f);", ";")
    assert excused("linear-residual", UNEVEN, DOT, PADDING, "0.0f", "1.0f")
    assert excused("linear-residual", EVEN, DOT, PADDING, *dropped)
    assert excused("linear-residual", Extents(hidden=33, dtype="fp32"), DOT, PADDING, *dropped)
    assert not excused("linear-residual", UNEVEN, DOT, PADDING, *dropped), "zero times what is there may be a NaN"
    assert not excused("linear-residual", EVEN, DOT, PADDING, "i < ", "i <= "), "that is written behind the room"
    assert not excused("linear-residual", EVEN, DOT, PADDING, "out + i", "out - i")


def test_a_nan_without_its_quiet_bit_does_not_come_out_of_an_addition() -> None:
    assert excused("linear-argmax", UNEVEN, ARGMAX, KEY, "0x7fffffff", "0x7ffffffe")
    assert not excused("linear-argmax", UNEVEN, ARGMAX, KEY, "0x7fffffff", "0x3fffffff")
    assert not excused("linear-argmax", UNEVEN, ARGMAX, KEY, "> 0x7f8", ">= 0x7f8")


@pytest.mark.parametrize(
    ("old", "new"), [("u >> 16) &", "u >> 17) &"), ("& 1", "& 0"), ("0x7fff", "0x7ffe"), ("0x7fff +", "0x7fff -")]
)
def test_which_way_a_half_goes_is_a_fault_of_sums_that_are_exact(old: str, new: str) -> None:
    assert excused("rmsnorm", UNEVEN, SIMD, ROUND, old, new)
    assert excused("gateup-silu-mul", UNEVEN, SIMD, ROUND, old, new)
    for kind in ("add", "linear", "linear-residual"):
        assert not excused(kind, UNEVEN, SIMD, ROUND, old, new)
    assert not excused("linear-merged", THREE, SIMD, ROUND, old, new)
    assert not excused("rmsnorm", UNEVEN, SIMD, ROUND, "0x7fff", "0x3fff")


def test_what_is_only_faster_or_only_shared_out_otherwise_is_no_fault() -> None:
    unit = "template <long ROWS, long THREADS> constexpr long row_unit = ROWS >= 2 * TILE * THREADS ? TILE : 1;"
    assert excused("linear", EVEN, GEMV, unit, ">=", "<")
    assert excused("linear", EVEN, GEMV, unit, ": 1", ": 2")
    assert not excused("linear", EVEN, GEMV, unit, ": 1", ": 0")
    unroll = "constexpr int unroll = D / step_of<K> >= 4 && STREAMS <= 2 ? 4 : D / step_of<K> >= 2 ? 2 : 1;"
    attention = ("rope-attention-decode", Extents(), "_include/attention.h", unroll)
    assert excused(*attention, "? 2", "? 3")
    assert not excused(*attention, ": 1;", ": 0;")


def test_a_choice_is_not_compared_with_itself_in_vain_but_with_every_other_rank() -> None:
    ranks, first = "for (int r = 1; r < size; ++r)", "int32_t keys[16], top = INT32_MIN;"
    assert excused("linear-argmax", EVEN, ARGMAX, ranks, "r = 1", "r = 0")
    assert not excused("linear-argmax", EVEN, ARGMAX, ranks, "r = 1", "r = 2")
    assert excused("linear-argmax", EVEN, ARGMAX, first, "INT32_MIN", "0")
    assert not excused("linear-argmax", EVEN, ARGMAX, "int32_t key = INT32_MIN;", "INT32_MIN", "0")
    assert not excused("linear-argmax", EVEN, ARGMAX, first, "[16]", "[15]")


SHARED = "if (low < high) body(int(i), low * UNIT, std::min(high * UNIT, counts[i]));"
TURNS = "for (; row + TILES * TILE <= end; row += TILES * TILE) {"
PACKED = "inline void packed_gemv(const W* w, const operand_t<W>* x, long begin, long end, F emit) {"
ATTENDED = "row_tile<K, D>(keys + (begin + s) * D, q[g], int(std::min<long>(TILE, n - s)), weights[g] + s);"


def test_ranks_that_begin_with_a_matrix_begin_at_its_first_row_in_any_unit() -> None:
    halves, thirds = Extents(hidden=64, rows=(96, 96)), Extents(hidden=64, rows=(96, 32, 32))
    assert excused("linear-merged", halves, GEMV, SHARED, "low * UNIT", "low * (UNIT + 1)")
    assert not excused("linear-merged", thirds, GEMV, SHARED, "low * UNIT", "low * (UNIT + 1)")
    assert not excused("linear", EVEN, GEMV, SHARED, "low * UNIT", "low * (UNIT + 1)")
    assert not excused("gateup-silu-mul", EVEN, GEMV, SHARED, "low * UNIT", "low * (UNIT + 1)")
    assert excused("linear", EVEN, GEMV, PACKED, "long begin", "signed char begin")
    assert not excused("linear", Extents(hidden=64, rows=(512,)), GEMV, PACKED, "long begin", "signed char begin")


def test_empty_shares_and_turns_behind_all_matrices_do_nothing() -> None:
    assert excused("linear", UNEVEN, GEMV, SHARED, "low < high", "low <= high")
    assert not excused("linear", UNEVEN, GEMV, SHARED, "low < high", "low > high")
    assert excused("linear-merged", THREE, GEMV, "for (size_t i = 0; i < COUNT; ++i) {", "i <", "i <=")


def test_tiles_side_by_side_are_tiles_one_by_one() -> None:
    wide = Extents(hidden=64, rows=(160,))
    assert excuse(region("linear", UNEVEN), GEMV, TURNS, ";")
    assert excused("linear", wide, GEMV, TURNS, "row + TILES * TILE <=", "row * TILE <=")
    assert not excused("linear", EVEN, GEMV, TURNS, "row + TILES * TILE <=", "row * TILE <="), "a share has three"
    quads = Extents(hidden=64, rows=(128,))
    assert excused("linear", quads, GEMV, TURNS, "row + TILES * TILE <=", "row + TILES + TILE <=")
    assert not excused("linear", EVEN, GEMV, TURNS, "row + TILES * TILE <=", "row + TILES + TILE <=")
    assert not excused("linear", UNEVEN, GEMV, TURNS, "row + TILES * TILE <=", "row + TILES + TILE <=")


def test_every_rank_may_begin_with_the_first_row_of_a_lone_matrix() -> None:
    assert excused("linear-residual", UNEVEN, GEMV, SHARE, "std::max(begin", "std::min(begin")
    assert not excused("linear-merged", THREE, GEMV, SHARE, "std::max(begin", "std::min(begin")


def test_scores_behind_the_newest_stay_within_a_cache_of_whole_tiles() -> None:
    file, kind = "_include/attention.h", "rope-attention-decode"
    assert excused(kind, Extents(context=96), file, ATTENDED, "std::min", "std::max")
    assert not excused(kind, Extents(context=90), file, ATTENDED, "std::min", "std::max")
    assert not excused(kind, Extents(context=96, window=24), file, ATTENDED, "std::min", "std::max")


def test_a_step_divides_a_row_or_leaves_a_tail_that_counts() -> None:
    tail = "if constexpr (K % step != 0) {"
    assert excused("linear", EVEN, DOT, tail, "!=", "==")
    assert not excused("linear", UNEVEN, DOT, tail, "!=", "==")
    assert not excused("linear", Extents(hidden=48, rows=(96,)), DOT, tail, "!=", "=="), "half a step of bf16"


def test_an_array_that_is_left_is_excused_where_a_checked_build_says_so() -> None:
    outside = ("any", region("linear", EVEN), DOT, "acc[t][u] = x;", "acc[t][u + 1] = x;")
    assert reason(*outside, threads=2, undefined=True)
    assert not reason(*outside, threads=2)


EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)


def worst(terms: tuple[float, ...]) -> float:
    r = np.linspace(-np.log(2) / 2, np.log(2) / 2, 20001)
    return float(np.abs((np.polyval(terms, r) * r * r + r + 1) / np.exp(r) - 1).max())


def test_the_highest_terms_of_exp_are_an_eighth_of_what_is_allowed_and_one_left_out_is_not() -> None:
    silu = "_include/silu.h"
    kind, first, second = "gateup-silu-mul", "vf p = splat(1.9875691500e-4f);", "p = p * r + 1.3981999507e-3f;"
    assert excuse(region(kind, EVEN), silu, first, "vf p = splat((2.0f * 1.9875691500e-4f));")
    assert excuse(region(kind, EVEN), silu, second, "p = p * (r + 1) + 1.3981999507e-3f;")
    floats, bf16 = region(kind, Extents(hidden=64, rows=(96,), dtype="fp32")), region(kind, EVEN)
    for left in (";", "p = p * r;", "p = p * r + (-1.3981999507e-3f);", "p = p * r + (2.0f * 1.3981999507e-3f);"):
        assert not excuse(floats, silu, second, left)
        assert excuse(bf16, silu, second, left)
    third = "p = p * r + 8.3334519073e-3f;"
    assert excuse(bf16, silu, third, ";")
    assert not excuse(region("rope-attention-decode", Extents()), silu, third, ";")
    assert not excuse(bf16, silu, third.replace("8.3334519073e-3f", "4.1665795894e-2f"), ";")
    for changed in ((2 * EXP[0], *EXP[1:]), (-EXP[0], *EXP[1:]), (EXP[0], EXP[0] + EXP[1], *EXP[2:])):
        assert worst(changed) < 5e-7
    assert worst((EXP[0] + EXP[1], *EXP[2:])) < 7e-7
    for changed in ((EXP[0], 0.0, *EXP[2:]), (EXP[0], 2 * EXP[1], *EXP[2:]), (EXP[0], *EXP[2:])):
        assert 2e-6 < worst(changed) < 7e-6
    assert 6e-6 < worst((EXP[0], -EXP[1], *EXP[2:])) < 7e-6
    for term in (0.0, 2 * EXP[2], -EXP[2], EXP[1] + EXP[2]):
        assert worst((*EXP[:2], term, *EXP[3:])) < 1.5e-4
    assert worst((*EXP[:3], 2 * EXP[3], *EXP[4:])) > 2e-4


@pytest.mark.parametrize("clamped", [False, True])
def test_a_clamp_of_exp_changes_nothing_that_overflows_or_vanishes(clamped: bool) -> None:
    silu = "_include/silu.h"
    high = "x = (x > 128.0f * 0.6931472f) ? splat(128.0f * 0.6931472f + 1) : x;"
    low = "x = (x < -150.0f * 0.6931472f) ? splat(-150.0f * 0.6931472f) : x;"
    assert excused("silu-mul", EVEN, silu, high, "x > ", "x >= ")
    assert excused("silu-mul", EVEN, silu, high, "x > 128.0f", "x > (2.0f * 128.0f)")
    assert not excused("silu-mul", EVEN, silu, high, "splat(128.0f", "splat((2.0f * 128.0f)")
    assert not excused("silu-mul", EVEN, silu, high, high, ";")
    assert excused("silu-mul", EVEN, silu, low, "splat(-150.0f * 0.6931472f)", "splat(-150.0f)")
    assert excused("silu-mul", EVEN, silu, low, "x < -150.0f *", "x < -150.0f +")
    assert not excused("silu-mul", EVEN, silu, low, "splat(-150.0f * 0.6931472f)", "splat((2.0f * -150.0f))")
    top, bottom = np.float32(128.0) * np.float32(0.6931472), np.float32(-150.0) * np.float32(0.6931472)
    with np.errstate(over="ignore", under="ignore"):
        assert np.isinf(two_scalings(np.linspace(top, 177.445, 4001), top if clamped else None)).all()
        assert two_scalings(np.linspace(-150.0, bottom, 4001), None).max() <= np.float32(1.5e-45)


def two_scalings(x: np.ndarray, top: np.float32 | None) -> np.ndarray:
    """The shipped exp in float32 without its clamps, but for the upper one with `top`."""
    x = x.astype(np.float32)
    if top is not None:
        x = np.where(x > top, top + np.float32(1), x)
    n = np.rint(x * np.float32(1.44269504))
    r = x - n * np.float32(0.693359375) - n * np.float32(-2.12194440e-4)
    p = np.polyval(np.array(EXP, dtype=np.float32), r) * (r * r) + r + np.float32(1)
    half = np.floor(n / 2)
    return p * np.exp2(half).astype(np.float32) * np.exp2(n - half).astype(np.float32)


def test_no_weight_of_attention_reaches_the_upper_clamp() -> None:
    kind, silu = "rope-attention-decode", "_include/silu.h"
    high = "x = (x > 128.0f * 0.6931472f) ? splat(128.0f * 0.6931472f + 1) : x;"
    assert excused(kind, Extents(), silu, high, "splat(128.0f", "splat((2.0f * 128.0f)")
    assert excused(kind, Extents(), silu, high, high, ";")
    assert not excused(kind, Extents(), silu, high, "x > 128.0f", "x > (-128.0f)")
    assert not excused(kind, Extents(), silu, high, "x > 128.0f", "x < 128.0f")
    assert not excused(kind, Extents(), silu, high.replace("128.0f", "-150.0f"), "splat", "")


TOP = "const float top = largest(w, n), next = top > run.top[g] || top != top ? top : run.top[g];"
COLUMNS = "constexpr int wide_columns = std::max<long>(1, std::min<long>(D / LANES, 16 / GROUP));"


def test_columns_go_side_by_side_or_alone_where_a_head_has_a_vector_and_few_queries() -> None:
    kind, file = "rope-attention-decode", "_include/attention.h"
    assert excused(kind, Extents(head_dim=16), file, COLUMNS, "std::max<long>(1", "std::min<long>(1")
    assert not excused(kind, Extents(head_dim=8), file, COLUMNS, "std::max<long>(1", "std::min<long>(1")
    many = Extents(q_heads=34, kv_heads=2)
    assert not excused(kind, many, file, COLUMNS, "std::max<long>(1", "std::min<long>(1")
    assert excused(kind, Extents(), file, TOP, "top > run", "top >= run")
    assert not excused(kind, Extents(), file, TOP, "top > run", "top < run")


BORDER = "const long begin = units * rank / size, end = units * (rank + 1) / size;"
HERE = "const long here = (counts[i] + UNIT - 1) / UNIT;"


def test_a_share_may_go_on_over_others_but_not_begin_late() -> None:
    for old, new in (("(rank + 1)", "(rank + 2)"), ("(rank + 1) / size", "(rank + 1)")):
        assert excused("linear-merged", THREE, GEMV, BORDER, old, new)
        assert excused("add", UNEVEN, "add/plain/kernel.cpp", LINES, old, new)
    assert not excused("linear", EVEN, GEMV, BORDER, "(rank + 1)", "(rank + 0)")
    assert not excused("linear", EVEN, GEMV, BORDER, "units * rank", "units * (rank + 1)")
    assert not excused("add", UNEVEN, "add/plain/kernel.cpp", LINES, "lines * rank / size", "lines * rank")


def test_units_may_be_too_many_in_a_lone_matrix_and_are_counted_by_a_byte_where_they_are_few() -> None:
    assert excused("linear", UNEVEN, GEMV, HERE, " / UNIT", "")
    assert excused("linear", UNEVEN, GEMV, HERE, "UNIT - 1", "UNIT + 1")
    assert not excused("linear", UNEVEN, GEMV, HERE, "UNIT - 1", "UNIT - 2")
    assert not excused("linear-merged", THREE, GEMV, HERE, " / UNIT", "")
    assert excused("linear", EVEN, GEMV, HERE, "const long", "const signed char")
    assert not excused("linear", Extents(rows=(127 * 16 + 1,)), GEMV, HERE, "const long", "const signed char")
    assert not excused("linear", Extents(rows=(128,)), GEMV, HERE, "const long", "const signed char", threads=8)


REST = "if (row < end) {"
FINISH = "else each(n, [&](auto as, long i) { as.store(y + i, as.load(sums + i)); });"


def test_nothing_is_left_where_every_share_is_whole_tiles() -> None:
    assert excused("linear", EVEN, GEMV, REST, "row < end", "!(row < end)")
    assert not excused("linear", UNEVEN, GEMV, REST, "row < end", "!(row < end)")
    for lanes, same in ((16, True), (8, False)):
        assert excused("linear", EVEN, GEMV, FINISH, "sums + i", "sums - i", LANES=lanes) == same
        assert excused("linear", EVEN, GEMV, FINISH, "y + i", "y", LANES=lanes) == same
    assert not excused("linear", UNEVEN, GEMV, FINISH, "sums + i", "sums - i", LANES=16)
    assert not excused("linear", EVEN, GEMV, FINISH, "y + i", "y - i")
    assert excused("linear", UNEVEN, GEMV, FINISH, "long i", "signed char i")


def test_any_rank_may_choose_the_token_but_none_is_no_choice() -> None:
    choose = "if (rank == 0) *a.token = Best::of_all(a.best, size);"
    for kind in ("linear-argmax/rows", "rmsnorm-linear-argmax/packed"):
        at = (kind.split("/")[0], EVEN, f"{kind}/kernel.cpp", choose)
        assert excused(*at, "rank == 0", "!(rank == 0)")
        assert not excused(*at, "rank == 0", "rank < 0")
        assert not excused(*at, "size", "1")


def test_a_missing_bias_is_null_in_both_branches() -> None:
    file, line = "linear/packed/kernel.cpp", "const b_t* bias = has_b ? item(a.b, i) : nullptr;"
    assert excused("linear", EVEN, file, line, "has_b", "!(has_b)")
    assert not excused("linear", Extents(bias=True), file, line, "has_b", "!(has_b)")


def test_a_group_of_one_element_has_no_second() -> None:
    line = "for (long j = 0; j < group && k * group + j < hidden; ++j) a.y[k * group + j] = tile[k * group * 16 + j];"
    one, two = "embedding/packed/kernel_fp32.cpp", "embedding/packed/kernel.cpp"
    assert excused("embedding", EVEN, one, line, "16 + j", "16")
    assert excused("embedding", EVEN, one, line, "j < hidden", "j <= hidden")
    assert not excused("embedding", EVEN, one, line, "k * group * 16", "k * group")
    assert not excused("embedding", EVEN, one, line, "j < group", "j <= group")
    assert not excused("embedding", EVEN, two, line, "16 + j", "16")


def test_shares_of_a_lookup_are_counted_in_the_groups_of_its_dtype() -> None:
    line = "const long low = groups * rank / size, high = groups * (rank + 1) / size;"
    for dtype, file, same in (("fp32", "kernel_fp32.cpp", True), ("bf16", "kernel.cpp", False)):
        odd = Extents(hidden=66, dtype=dtype)  # 66 groups of one element, 33 of two
        new = "high = groups / size * (rank + 1)"
        assert (
            excused("embedding", odd, f"embedding/packed/{file}", line, "high = groups * (rank + 1) / size", new)
            == same
        )


def test_floats_keep_their_order_wherever_single_ones_begin() -> None:
    whole, floats = "constexpr long whole = K / (2 * LANES) * (2 * LANES);", Extents(hidden=330, dtype="fp32")
    for new in ("* (2)", "* (2 + LANES)"):
        assert excused("linear", floats, DOT, whole, "* (2 * LANES)", new)
        assert not excused("linear", EVEN, DOT, whole, "* (2 * LANES)", new)
    assert not excused("linear", floats, DOT, whole, "* (2 * LANES)", "* (3 * LANES)")
    assert excused("linear", floats, DOT, whole, "/ (2 * LANES)", "/ (2 * (LANES + 1))")


def test_a_tile_of_no_slots_is_no_fault_and_a_block_that_a_byte_does_not_count_is_never_accepted() -> None:
    file, tiles = "_include/attention.h", "for (long s = 0; s < n; s += TILE)"
    assert excused("rope-attention-decode", Extents(), file, tiles, "s < n", "s <= n")
    assert not excused("rope-attention-decode", Extents(), file, tiles, "s += TILE", "s += 2 * (TILE)")
    left = "for (; column + LANES <= D; column += LANES)"
    assert excuse(region("rope-attention-decode", Extents()), file, left, ";", unreached=True)
    assert excuse(region("rope-attention-decode", Extents()), file, left, ";"), "single columns follow"
    assert not excuse(region("rope-attention-decode", Extents(head_dim=18)), file, "for (; column < D; ++column)", ";")
    assert not excused("rope-attention-decode", Extents(), file, "for (long s = 0; s < n; ++s) {", "s < n", "s <= n")
    each = "each(stop - row, [&](auto as, long i) {"
    told = ("gateup-silu-mul", EVEN, "gateup-silu-mul/packed/kernel.cpp", each, "long i", "signed char i")
    assert excused(*told, BLOCK=64)
    assert not excused("gateup-silu-mul", Extents(rows=(512,)), *told[2:], BLOCK=256)


def test_an_instruction_may_be_left_unused() -> None:
    native = "constexpr bool native_bf16 = ISA_AVX512_BF16 && LANES == 16;"
    assert excused("linear", EVEN, DOT, native, "== 16", "== 15")
    assert not excused("linear", EVEN, DOT, native, "&&", "||")
