"""Equivalents among mutations of matrix products: how rows are shared out, how a dot product goes along them."""

from __future__ import annotations

from .excuses import AGAIN, BORDERS, NO_ATTENTION, ZEROS, Row
from .extents import (
    alone,
    among_the_first,
    floats,
    no_odd_pair,
    of_four_tiles,
    one_type,
    ragged,
    room_behind,
    tiled,
    whole_steps,
    whole_turns,
    with_matrices,
)

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
        before=r"std::is_same_v<X, operand_t<W>> && O == Order::natural && K % 2 == 0\) return x;",
        after=r"O != Order::natural && K % 2 == 0|O == Order::natural && K % 2 != 0|\|\||constexpr \(!\(",
        where=one_type,
        why="x in place and a copy of it in the natural order are the same operand, and rows end with a step: nothing "
        "is read behind them",
    ),
    Row(
        file=r"_include/dot\.h",
        before=r"native_bf16 = ISA_AVX512_BF16 && LANES == 16;",
        after=r"LANES != 16;",
        why="what machines without the instruction run: float products, and operands that are not rounded to bf16",
    ),
    Row(
        file=r"_include/dot\.h",
        before=r"whole = K / \(2 \* LANES\) \* \(2 \* LANES\);",
        after=r"whole = K / \([23] \* LANES\) \* \((2 \+|[12] \*) LANES\);",
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
)
