"""Equivalents among mutations of matrix products: how rows are shared out, how a dot product goes along them."""

from __future__ import annotations

from .excuses import AGAIN, BORDERS, NO_ATTENTION, ZEROS, Row
from .extents import (
    alone,
    among_the_first,
    few_units,
    floats,
    no_bias,
    no_odd_pair,
    of_four_tiles,
    ragged,
    room_behind,
    tiled,
    whole_quads,
    whole_steps,
    whole_turns,
    with_matrices,
)
from .loops import in_place, one_stream, same_products, same_steps, swapped_extreme

PRODUCTS: tuple[Row, ...] = (
    Row(
        file=r"_include/gemv\.h",
        before=r"const long low = .*high = std::min\(end, base \+ here\) - base;",
        after=r"high = std::max\(end, base \+ here\) - base;",
        why=AGAIN,
    ),
    Row(
        file=r"_include/gemv\.h",
        before=r"body\(int\(i\), low \* UNIT, std::min\(high \* UNIT, counts\[i\]\)\)",
        after=r"body\(int\(i\), low \* UNIT, std::max\(high \* UNIT, counts\[i\]\)\)",
        why=AGAIN,
    ),
    Row(
        file=r"_include/gemv\.h",
        before=r"long units = 0, base = 0;",
        after=r"long units = 1, base = 0;",
        why=BORDERS,
    ),
    Row(
        file=r"_include/gemv\.h",
        before=r"for \(long count : counts\) units \+= \(count \+ UNIT - 1\) / UNIT;",
        after=r"units \+= \(count \+ UNIT( - 0| \+ 1)?\) / UNIT;|units \+= \(count \+ UNIT - 1\)( \* UNIT)?;",
        why=BORDERS,
    ),
    Row(
        file=r"_include/gemv\.h",
        before=r"for \(long count : counts\) units \+= ",
        after=r"for \(long count : counts\) units = \(count \+ UNIT - 1\) / UNIT;",
        where=alone,
        why="there is one count, and the sum begins with zero",
    ),
    Row(
        file=r"_include/gemv\.h",
        before=r"const long low = std::max\(begin, base\) - base, high = std::min\(end, base \+ here\) - base;",
        after=r"low = std::max\(begin, base\)( [-+] base)?, high = std::min\(end, base \+ here\)( [-+] base)?;$",
        where=alone,
        why="there is one matrix, and its rows begin at zero",
    ),
    Row(
        file=r"_include/gemv\.h",
        before=r"^base \+= here;",
        after=r"^(base -?= here)?;$",
        where=alone,
        why="there is no matrix behind the one",
    ),
    Row(
        file=r"_include/gemv\.h",
        before=r"for \(; row < end; row \+= TILE\)",
        after=r"for \(; row <= end; row \+= TILE\)",
        region=NO_ATTENTION,
        where=ragged,
        why="a share ends at a border of tiles behind which its matrix has another, of which no row is kept, or behind "
        "the matrix's last row, which is within a tile: there is no turn at its end",
    ),
    Row(
        file=r"_include/dot\.h",
        before=r"if \(n == TILE\) \{",
        after=r"if \((n != TILE|!\(n == TILE\))\) \{",
        region=NO_ATTENTION,
        where=tiled,
        why="every tile is whole, and row after row sums the same products as sixteen rows at once, in another order",
    ),
    Row(
        file=r"_include/dot\.h",
        before=r"for \(long i = K; i < operand_room<K>; \+\+i\) one::store\(out \+ i, 0\.0f\);",
        after=r"^for \(long i = K; i < operand_room<K>; \+\+i\) one::store\(out \+ i, 1\.0f\);$",
        why=ZEROS,
    ),
    Row(
        file=r"_include/dot\.h",
        before=r"for \(long i = K; i < operand_room<K>; \+\+i\) one::store\(out \+ i, 0\.0f\);",
        after=r"^;$|^for \(long i = K; i < operand_room<K>; \+\+i\) ;$"
        r"|^for \(long i = K; i (< operand_room<K>; i \+= 2|>= operand_room<K>; \+\+i)\) one::store\(out \+ i, 0",
        region=NO_ATTENTION,
        where=no_odd_pair,
        why="nothing reads the padding of a row that ends with a step",
    ),
    Row(
        file=r"_include/gemv\.h",
        before=r"constexpr long row_unit = ROWS >= 2 \* TILE \* THREADS \? TILE : 1;",
        after=r"row_unit = [^?]*\? TILE : [12];",
        why="a share of rows may begin with any row of a row-major matrix, whatever the unit",
    ),
    Row(
        file=r"_include/dot\.h",
        before=r"if constexpr \(K % step != 0\) \{",
        after=r"if constexpr \((K % step == 0|!\(K % step != 0\))\) \{",
        where=whole_steps,
        why="the step divides K: the loop over what is left is empty, and adds zero",
    ),
    Row(
        file=r"_include/gemv\.h",
        before=r"for \(; row \+ (TILES \* )?TILE <= end; row \+= (TILES \* )?TILE\)",
        after=r"row \+ (TILES \* )?TILE < end;",
        why="the last whole tiles are left to what does single and partial ones behind the loop",
    ),
    Row(
        file=r"_include/dot\.h",
        before=r"for \(long i = whole; i < K; \+\+i\) one::store\(out \+ i, value\(one\{\}, i\)\);",
        after=r"i <= K; ",
        where=room_behind,
        why="the padding's first element, which becomes zero next: nothing sees what it was, and what it was read from "
        "lies in the last element's line",
    ),
    Row(
        file=r"_include/gemv\.h",
        before=r"const long low = std::max\(begin, base\) - base, high = std::min\(end, base \+ here\) - base;",
        after=r"low = std::min\(begin, base\) - base, high = std::min\(end, base \+ here\) - base;",
        where=alone,
        why=f"every share begins with the one matrix's first row, and ends where it did. {AGAIN}",
    ),
    Row(
        file=r"_include/gemv\.h",
        before=r"if \(low < high\) body\(",
        after=r"if \(low \* \(UNIT \+ 1\)|body\(int\(i\), low \* \(UNIT [+-] 1\), |body\(int\(i\), low, ",
        region=r"(rmsnorm-)?linear.*",
        where=with_matrices,
        why="every share begins with its matrix's first row, number zero in any unit",
    ),
    Row(
        file=r"_include/gemv\.h",
        before=r"if \(low < high\) body\(",
        after=r"^if \(low (<=|!=) high\) body\(int\(i\), low \* UNIT, std::min\(high \* UNIT, counts\[i\]\)\);",
        why="a share that is empty, or ends before it begins, has no rows: no loop over it has a first turn",
    ),
    Row(
        file=r"_include/gemv\.h",
        before=r"for \(size_t i = 0; i < COUNT; \+\+i\)",
        after=r"i <= COUNT;",
        why="behind all matrices no rows are left: low is zero and high at most that, whatever is read for a count",
    ),
    Row(
        file=r"_include/gemv\.h",
        before=r"for \(; row \+ TILES \* TILE <= end; row \+= TILES \* TILE\)",
        after=r"^;$",
        why="the loop behind it takes all tiles one by one: a lane is a row, and sums what it did in the same order",
    ),
    Row(
        file=r"_include/gemv\.h",
        before=r"for \(; row \+ TILES \* TILE <= end; row \+= TILES \* TILE\)",
        after=r"for \(; row \* TILE <= end; row \+= TILES \* TILE\)",
        region=r"(rmsnorm-)?linear.*",
        where=of_four_tiles,
        why="at row 0 a share has as many tiles; from row 16 on it holds only where 240 rows are left; the loop behind "
        "it takes what this one leaves",
    ),
    Row(
        file=r"_include/gemv\.h",
        before=r"packed_gemv\(const W\* w, const operand_t<W>\* x, long begin, long end, F emit\)",
        after=r"signed char begin, long end",
        region=r"(rmsnorm-)?linear.*",
        where=among_the_first,
        why="every share begins within its matrix's first 128 rows",
    ),
    Row(
        file=r"_include/gemv\.h",
        before=r"emit\(row, sums, int\(std::min<long>\(TILE, end - row\)\)\);",
        after=r"std::max<long>\(TILE, end - row\)",
        region=r"(rmsnorm-)?gateup-silu-mul",
        why="sums go to a block of whole tiles, of which the share's rows alone are taken; where a tile stands is "
        "written with its own sums last",
    ),
    Row(
        file=r"_include/dot\.h",
        before=r"^if constexpr \(std::is_same_v<X, operand_t<W>> && O == Order::natural && K % 2 == 0\) return x;",
        after=r"^if constexpr \(.*\) return x;",
        counts=in_place,
        why="x in place and a copy of it in the natural order are the same operand, and nothing is read behind a row: "
        "it ends with a step, or what it has behind the last one is read one by one. Where x would be of another type "
        "it does not compile",
    ),
    Row(
        file=r"_include/dot\.h",
        before=r"native_bf16 = ISA_AVX512_BF16 && LANES == 16;",
        after=r"LANES (!= 16|== 1[57]);",
        why="float32 products of an operand that is not rounded to bf16: a rounding that a template declares is "
        "allowed and not asked for, and without it results are nearer, at 0.47 of the bound where they were at 0.66; "
        "of bf16 activations they are the same products in another order",
    ),
    Row(
        file=r"_include/dot\.h",
        before=r"whole = K / \(2 \* LANES\) \* \(2 \* LANES\);",
        after=r"whole = K / \([23] \* LANES\) \* \(((2 \+|[12] \*) LANES|2)\);"
        r"|whole = K / \(2 \* \(LANES \+ 1\)\) \* \(2 \* LANES\);",
        where=floats,
        why="floats keep their order: single elements follow from `whole` on, some of them a second time",
    ),
    Row(
        file=r"_include/dot\.h",
        before=r"turns = steps / UNROLL \* UNROLL;",
        after=r"turns = steps / UNROLL;",
        where=whole_turns,
        why="a smaller multiple of UNROLL, whichever it is: more steps go one by one, in another order of sums",
    ),
    Row(
        file=r"_include/gemv\.h",
        before=r"for \(; row \+ TILES \* TILE <= end; row \+= TILES \* TILE\)",
        after=r"for \(; row \+ TILES \+ TILE <= end; row \+= TILES \* TILE\)",
        region=r"(rmsnorm-)?linear.*",
        where=whole_quads,
        why="a share has a multiple of the rows that are read side by side: none of them are left, or all",
    ),
    Row(
        file=r"_include/gemv\.h",
        before=r"^if \(row < end\) \{",
        after=r"^if \(!\(row < end\)\) \{|^if \(row >= end\) \{|^if \(row <= end\) \{",
        region=NO_ATTENTION,
        where=tiled,
        why="no share ends within a tile: nothing is left, and a tile of no rows reads, sums and writes nothing",
    ),
    Row(
        file=r"_include/gemv\.h",
        before=r"each\(n, \[&\]\(auto as, long i\) \{",
        after=r"each\(n, \[&\]\(auto as, signed char i\) \{",
        why="they are called for the 16 rows of a tile at most",
    ),
    Row(
        file=r"_include/gemv\.h",
        before=r"as\.store\(y \+ i, as\.load\(sums \+ i\)\);",
        after=r"as\.store\(y \+ i, as\.load\(sums - i\)\);",
        region=r"(rmsnorm-)?linear(-merged|-argmax)?",
        where=tiled,
        why="every tile is whole, and the one vector of 16 rows where this passes begins with the first",
    ),
    Row(
        file=r"_include/gemv\.h",
        before=r"^const long begin = units \* rank / size, end = units \* \(rank \+ 1\) / size;",
        after=r"^const long begin = units \* rank / size, end = units \* \(rank \+ (2\) / size|1\));",
        why=f"every share begins where it did, and goes on over others' rows. {AGAIN}",
    ),
    Row(
        file=r"_include/gemv\.h",
        before=r"const long here = \(counts\[i\] \+ UNIT - 1\) / UNIT;",
        after=r"here = \(counts\[i\] \+ UNIT( \+ 1| - 0)?\) / UNIT;|here = \(counts\[i\] \+ UNIT - 1\)( \* UNIT)?;",
        where=alone,
        why="there is one matrix, and the last share ends with its units, whatever more is taken to be here",
    ),
    Row(
        file=r"_include/gemv\.h",
        before=r"^(const )?long (units|begin|here|low) = ",
        after=r"^(const )?signed char (units|begin|here|low) = ",
        where=few_units,
        why="all rows are fewer units than a signed byte counts",
    ),
    Row(
        file=r"_include/dot\.h",
        before=r"for \(int i = 0; i < TILE; i \+= LANES\) wide::store\(sums \+ i, transposed_sum",
        after=r"i = LANES\)|i \+= 2 \* \(LANES\)\)",
        why="the 16 sums of a tile are one whole vector where this passes: there is no second turn",
    ),
    Row(
        file=r"(rmsnorm-)?linear(-merged)?/(packed|rows)(-fp32)?/kernel\.cpp",
        before=r"bias = has_b \? item\(a\.b, i\) : nullptr;",
        after=r"bias = (!\(has_b\) \? item\(a\.b, i\) : nullptr|has_b \? nullptr : item\(a\.b, i\));",
        where=no_bias,
        why="where there is no bias its address is null, too",
    ),
    Row(
        file=r"_include/simd\.h",
        before=r"^const long whole = n / LANES \* LANES;",
        after=r"^const long whole = n / LANES;",
        region=r"linear(-merged|-argmax)?",
        why="of 16 rows, the most that these kernels call it for, whole vectors begin at the first alone, and what "
        "follows one by one, some of it again, is the same sums",
    ),
    Row(
        file=r"_include/dot\.h",
        before=r"^constexpr long step = step_of<W>, main = K / step \* step, turns = ",
        counts=same_products,
        why="at the region's extents the loops still take every element of a row once, in another order of sums",
    ),
    Row(
        file=r"_include/dot\.h",
        before=r"^constexpr long turns = steps / UNROLL \* UNROLL;",
        counts=same_steps,
        why="at the region's extents the loops still take every step once, in another order of sums",
    ),
    Row(
        file=r"_include/dot\.h",
        before=r"row_sums<W, K, 1, UNROLL, AHEAD>\(w \+ i \* K, x, &partial\);",
        after=r"row_sums<W, K, 1, UNROLL, AHEAD>\(x, w \+ i \* K, &partial\);",
        why="it compiles where both are of one type, and of one row the products are the same either way round",
    ),
    Row(
        file=r"_include/dot\.h",
        before=r"row_sums<W, K, STREAMS, UNROLL, AHEAD>\(w \+ i \* K, x, partial \+ i\);",
        after=r"row_sums<W, K, STREAMS, UNROLL, AHEAD>\(x, w \+ i \* K, partial \+ i\);",
        counts=one_stream,
        why="it compiles where both are of one type, and of one row the products are the same either way round",
    ),
    Row(
        file=r"_include/dot\.h",
        before=r"row_step\(acc\[s\]\[(u|0)\], (p|w \+ s \* K \+ k), x \+ k( \+ u \* step)?\)",
        after=r"row_step\(acc\[s\]\[(u|0)\], x \+ k( \+ u \* step)?, (p|w \+ s \* K \+ k)\)",
        mutators=("arguments",),
        why="it compiles where both are of one type, and the products are the same either way round",
    ),
    Row(
        file=r".*",
        before=r"std::(min|max)(<long>)?\(",
        counts=swapped_extreme,
        mutators=("arguments",),
        why="the smaller or the larger of two integers, whichever comes first",
    ),
)
