"""Equivalent mutants of the bounds of shares, tiles, parts and columns, and of the code beside them."""

from __future__ import annotations

from .clamps import same_clamp, same_scalings
from .excuses import AGAIN, NO_ATTENTION, Row
from .extents import a_step, few_lines, no_bias, no_offset, tiled, two_ranks, whole_cache
from .loops import packed
from .ranges import (
    even_groups,
    one_block,
    one_group,
    roomy,
    same_columns,
    same_groups,
    same_operand,
    same_parts,
    same_rest,
    same_rows,
    same_share,
    same_squares,
    same_tiles,
    short_blocks,
)

_ALL = "which was found by counting at the region's extents"

RANGES: tuple[Row, ...] = (
    Row(
        file=r"_include/gemv\.h",
        before=r"^long units = 0, base|^for \(long count : counts\)|^(const )?long (begin|here|low) = |^base \+= here;"
        r"|^if \(low < high\) body",
        region=NO_ATTENTION,
        counts=same_rows,
        why=f"every row of every matrix is still some rank's, and no rows are that there are not, {_ALL}. {AGAIN}",
    ),
    Row(
        file=r"_include/gemv\.h",
        before=r"^for \(; row \+ (TILES \* )?TILE <= end; row \+= (TILES \* )?TILE\) \{",
        region=NO_ATTENTION,
        counts=same_tiles,
        why=f"with what does single and partial tiles behind it, the loop takes the rows of every share, {_ALL}",
    ),
    Row(
        file=r"_include/attention\.h",
        before=r"^for \(; column (\+ (wide_columns \* )?LANES <=|<) D; ",
        counts=same_columns,
        why=f"the three loops still take every column once, {_ALL}: each sums for itself",
    ),
    Row(
        file=r"(qknorm-)?rope-attention-decode/split/kernel\.cpp",
        before=r"^const long length = position \+ 1 - low, part = ",
        counts=same_parts,
        why="the parts still hold all slots at every length, each once: another size is another order of sums",
    ),
    Row(
        file=r"(add|silu-mul)/plain/kernel\.cpp|embedding/packed/kernel(_fp32)?\.cpp",
        before=r"^const long (begin|low) = ",
        counts=same_share,
        why=f"the ranks still take the whole vector and nothing else, {_ALL}. {AGAIN}",
    ),
    Row(
        file=r"(add|silu-mul)/plain/kernel\.cpp",
        before=r"^constexpr long lines = ",
        after=r"^constexpr signed char lines = ",
        where=few_lines,
        why="a signed byte holds the number of lines",
    ),
    Row(
        file=r"_include/dot\.h",
        before=r"^constexpr long whole = K / |^for \(long i = 0; i < whole; i \+= 2 \* LANES\) \{"
        r"|^for \(long i = whole; i < K; \+\+i\) one::store",
        counts=same_operand,
        why=f"the operand is still filled in the order that is read, {_ALL}",
    ),
    Row(
        file=r"_include/dot\.h",
        before=r"^template <long K> constexpr long operand_room = ",
        counts=roomy,
        why="the room holds an operand and the second of its last pair, and what is behind them becomes zero",
    ),
    Row(
        file=r"_include/dot\.h",
        before=r"tail\[0\] \+= ",
        after=r"tail\[(\(0\) \+ 1|1)\] \+= ",
        why="the lanes of a row's sum are summed: any of them may have the tail",
    ),
    Row(
        file=r"_include/rmsnorm\.h",
        before=r"^constexpr long whole = K / \(4 \* LANES\) \* \(4 \* LANES\);",
        counts=same_squares,
        why="another multiple of four vectors: more elements go one by one, in another order of sums",
    ),
    Row(
        file=r"rmsnorm/plain/kernel\.cpp",
        before=r" = a\.(x|y) \+ group \* hidden;",
        after=r" = a\.(x|y) [-+] group( [*/] (\(hidden \+ 1\)|hidden))?;",
        counts=one_group,
        why="there is one group, and its number is zero",
    ),
    Row(
        file=r"_include/norm_operand\.h|_include/attention\.h|rmsnorm/plain/kernel\.cpp",
        before=r"\(as\.load\((a\.)?norm \+ i\) \+ offset\)",
        after=r"\(as\.load\((a\.)?norm \+ i\)( - offset)?\)",
        where=no_offset,
        why="the offset is zero, and a weight of zero of either sign is the same product but for its sign",
    ),
    Row(
        file=r"embedding/packed/kernel\.cpp",
        before=r"j < group && k \* group \+ j < hidden;",
        after=r"j < group && k \* group (\+ j <= hidden|- j < hidden|< hidden);",
        counts=even_groups,
        why="whole pairs: every element of a group below the last border is one of the row's",
    ),
    Row(
        file=r"_include/attention\.h",
        before=r"keep\[g\] = run\.total\[g\] == 0 \? 0\.0f :",
        after=r"== 0 \? 1\.0f :",
        why="where the sum of weights is zero, what is kept is zero, too",
    ),
    Row(
        file=r"_include/attention\.h",
        before=r"keep\[g\] = run\.total\[g\] == 0 \? 0\.0f : std::exp\(run\.top\[g\] - next\);",
        after=r"^keep\[g\] = (!\(run\.total\[g\] == 0\)|run\.total\[g\] [!=]= [01]) \? 0"
        r"|^keep\[g\] = run\.total\[\(g\) [-+] 1\] == 0 \? 0"
        r"|std::exp\((run\.top\[g\] \+ next|run\.top\[g\]|run\.top\[\(g\) [-+] 1\] - next)\)",
        counts=one_block,
        why="there is one block, before which nothing is kept: its top was minus infinity, whose exp is zero, and zero "
        "is what it is multiplied with",
    ),
    Row(
        file=r"_include/attention\.h",
        before=r"wide::load\(&sum\[g\]\[column \+ c \* LANES\]\) \* keep\[g\]|run\.total\[g\] \* keep\[g\]"
        r"|run\.sum\[g\]\[column\] \* keep\[g\]",
        after=r"(LANES\]\)|run\.total\[g\]|run\.sum\[g\]\[column\])( [-+] keep\[g\]| \* keep\[\(g\) [-+] 1\])?[ ;]",
        counts=one_block,
        why="there is one block, before which sums and what is kept of them are zero",
    ),
    Row(
        file=r"_include/attention\.h",
        before=r"next = top > run\.top\[g\] \|\| top != top \? top : run\.top\[g\];",
        after=r"next = top > run\.top\[g\] \|\| top == top \? top|next = top > run\.top\[\(g\) [-+] 1\]",
        counts=one_block,
        why="there is one block, whose largest score is the largest",
    ),
    Row(
        file=r"_include/attention\.h",
        before=r"shift = next == -INFINITY \? 0\.0f : next;",
        after=r"\? 1\.0f : next;",
        why="where every score is minus infinity, exp of it less any number is zero",
    ),
    Row(
        file=r"_include/attention\.h",
        before=r"^for \(long begin = low; begin < high; begin \+= BLOCK\) \{",
        after=r"begin <= high;",
        why="a block of no slots has no score, keeps what is there and adds nothing",
    ),
    Row(
        file=r"(qknorm-)?rope-attention-decode/split/kernel\.cpp",
        before=r"^long loaded = -1;",
        after=r"^long loaded = -2;",
        why="neither is the number of a head",
    ),
    Row(
        file=r"(qknorm-)?rope-attention-decode/split/kernel\.cpp",
        before=r"^if \(begin < end\) (\{|std::memcpy\(record \+ 16)|^if \(end == position \+ 1\) append"
        r"|here > top \|\|",
        after=r"^if \(begin <= end\)|^if \(end >= position|here >= top \|\|",
        why="of no slots the sums are zero, and nobody reads them; a new key is written twice alike; of equal largest "
        "scores either is the largest; no range ends behind the newest slot",
    ),
    Row(
        file=r"_include/argmax\.h",
        before=r"^long index = 0;",
        after=r"^long index = 1;",
        why="no logit has the lowest key, so a rank's first row takes the place of whatever index is there, and a rank "
        "without rows is above none",
    ),
    Row(
        file=r"_include/argmax\.h",
        before=r"^v \+= 0\.0f;",
        after=r"^;$|^v -= 0\.0f;",
        why="a sum that begins with zero is no negative zero, but where it is rounded to one from less than 1e-30, "
        "which is always allowed",
    ),
    Row(
        file=r"_include/argmax\.h",
        before=r"> 0x7f800000 \? INT32_MAX : key;",
        after=r"\? INT32_MIN : key;|\? key : INT32_MAX|\? key : key",
        region=r"rmsnorm-linear-argmax",
        mutators=("extreme",),
        why="behind a norm all logits are NaN or none is, as weights are finite: the first is chosen either way",
    ),
    Row(
        file=r"_include/gemv\.h",
        before=r"^if \(bias\) each|^if \(bias\)$|as\.load\(bias \+ i\)",
        region=NO_ATTENTION,
        where=no_bias,
        unreached=True,
        why="there is no bias, whose address decides whether the statement runs",
    ),
    Row(
        file=r"_include/silu\.h",
        before=r"^x = \(x [<>] -?1(28|50)\.0f \* 0\.6931472f\) \? splat\(.*\) : x;",
        counts=same_clamp,
        why="from 88.72284 up to 177.5 exp overflows in two scalings, and from -103.972 down to -150 it is at most "
        "1.5e-45, with a clamp between these and without",
    ),
    Row(
        file=r"_include/gemv\.h",
        before=r"^if \(bias\) each\(",
        after=r"^if \(bias\) ;",
        region=NO_ATTENTION,
        where=no_bias,
        why="there is no bias, whose address decides whether the statement runs",
    ),
    Row(
        file=r"_include/simd\.h",
        before=r"^inline float largest\(const float\* v, long n\)",
        after=r"const float\* v, signed char n\)",
        counts=short_blocks,
        why="a block has no more slots than a signed byte counts",
    ),
    Row(
        file=r"_include/silu\.h",
        before=r", half = k >> 1;$",
        counts=same_scalings,
        why="other halves of the exponent: floats hold both of every exponent that the clamps leave, the first leaves "
        "a normal number, and so the second product alone rounds, once",
    ),
    Row(
        file=r"_include/silu\.h",
        before=r"magic = splat\(12582912\.0f\)",
        after=r"splat\(\(-12582912\.0f\)\)",
        why="a sum with either sign lies where floats are the integers, and half way goes to the even one on "
        "both sides",
    ),
    Row(
        file=r"_include/attention\.h",
        before=r"^each\(D, .*\(as\.load\(norm \+ i\) \+ offset\)\);|= inverse_rms<D>\(x, eps\);",
        region=r"rope-attention-decode",
        unreached=True,
        why="no head here has a norm: the branch serves regions with one",
    ),
    Row(
        file=r"_include/dot\.h",
        before=r"^for \(int i = 0; i < n; \+\+i\) \{",
        after=r"^for \(int i = 0; i <= n; \+\+i\) \{",
        region=r".*attention.*",
        where=whole_cache,
        why="the slot behind the newest is scored too, within the last tile of the cache and of the block; nothing "
        "asks for its score",
    ),
    Row(
        file=r"_include/dot\.h",
        before=r"^if \(n == TILE\) \{",
        after=r"^if \((n != TILE|!\(n == TILE\))\) \{",
        region=r".*attention.*",
        where=whole_cache,
        why="slots behind the newest are scored too, within the last tile of the cache and of the block, and nothing "
        "asks for their scores; of whole tiles row after row is summed, in another order",
    ),
    Row(
        file=r"_include/dot\.h",
        before=r"^if constexpr \(K % step != 0\) \{",
        after=r"^if constexpr \(K / step != 0\) \{",
        where=a_step,
        why="no product is shorter than a step: what is left over is summed, and where nothing is, zero is added",
    ),
    Row(
        file=r"_include/gemv\.h",
        before=r"^alignas\(64\) float sums\[(TILES \* )?TILE\];",
        after=r"float sums\[(TILES \* \(TILE \+ 1\)|\(TILES \* TILE\) \+ 1|\(TILE\) \+ 1|\(?TILE \+ 1\)?)\];",
        why="of a longer array no more is used",
    ),
    Row(
        file=r"rmsnorm/plain/kernel\.cpp",
        before=r"^for \(long group = groups \* rank / size; ",
        counts=same_groups,
        why=f"every group is still some rank's, and no group is that there is not, {_ALL}. {AGAIN}",
    ),
    Row(
        file=r"_include/gemv\.h",
        before=r"emit\(row, sums, int\(std::min<long>\(TILE, end - row\)\)\);",
        after=r"std::max<long>\(TILE, end - row\)",
        region=r"(rmsnorm-)?linear(-merged)?",
        where=tiled,
        why="every tile of a share is whole, and what is written behind one, up to the share's end, is written again "
        "with its own sums",
    ),
    Row(
        file=r"_include/argmax\.h",
        before=r"\(bits & 0x7fffffff\) > 0x7f800000 \? INT32_MAX : key;",
        after=r"\(bits & 0x[0-7][0-9a-f]{7}\) > 0x7f800000 \? INT32_MAX : key;",
        region=r"rmsnorm-linear-argmax",
        counts=packed,
        why="behind a norm all logits are NaN or none is, as weights are finite; all rows are summed in one order, so "
        "that all are one NaN: the first is chosen. A number is never above infinity's bits, whatever is masked",
    ),
    Row(
        file=r"_include/gemv\.h",
        before=r"^for \(; row < end; row \+= TILE\) \{",
        region=NO_ATTENTION,
        counts=same_rest,
        why=f"the loop still takes the tiles that are left, {_ALL}",
    ),
    Row(
        file=r"_include/argmax\.h",
        before=r"^for \(int r = 1; r < size; \+\+r\)",
        after=r"r \+= 2\)",
        where=two_ranks,
        why="there are two ranks: behind the second the loop ends",
    ),
)
