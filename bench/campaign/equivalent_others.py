"""Equivalent mutants of all but matrix products: vectors, norms, exponentials, attention, choices, copies."""

from __future__ import annotations

from .excuses import AGAIN, BORDERS, NO_ATTENTION, PREFETCH, QUIET, TIES, Row
from .extents import (
    few_heads,
    fourths,
    in_a_byte,
    narrow,
    narrow_groups,
    no_sums,
    two_ranks,
    whole_cache,
    whole_lines,
)
from .loops import blocks_in_a_byte, counted_by_a_byte, same_elements

OTHERS: tuple[Row, ...] = (
    Row(before=r"__builtin_prefetch|^if \([^;]*\) fetch<AHEAD>\([^;]*\);$|^fetch<AHEAD>\([^;]*\);$", why=PREFETCH),
    Row(
        before=r"",
        file=r".*",
        undefined=True,
        why="it indexes an array of its own behind the end, where a build that checks bounds traps: a text without a "
        "meaning, of which a compiler makes what it likes; what it made here was judged, and is right",
    ),
    Row(
        before=r"",
        file=r"_include/(simd|dot|gemv|rmsnorm|silu|norm_operand)\.h|(add|silu-mul|rmsnorm)/plain/kernel\.cpp",
        region=NO_ATTENTION,
        unreached=True,
        why="nothing is left over at this region's extents, which alone decide whether the statement runs",
    ),
    Row(
        file=r"(add|silu-mul)/plain/kernel\.cpp",
        before=r"end = std::min\((numel|width), lines \* \(rank \+ 1\) / size \* 32\);",
        after=r"end = std::max\((numel|width), lines \* \(rank \+ 1\) / size \* 32\);",
        where=whole_lines,
        why=f"the last line ends where the vector does; {AGAIN}",
    ),
    Row(
        file=r"_include/argmax\.h",
        before=r"return \(bits & 0x7fffffff\) > 0x7f800000 \?",
        after=r"return \(bits & 0x7ffffffe\) > 0x7f800000 \?",
        why=f"only a NaN with no other bit set would be taken for an infinity, but {QUIET}",
    ),
    Row(
        file=r"_include/argmax\.h",
        before=r"if \(top <= key\) return;",
        after=r"^;$|if \(top < key\) return;|if \(top == key\) return;",
        why="the loop behind it finds by itself that none is larger: the way out is only faster",
    ),
    Row(
        file=r"_include/argmax\.h",
        before=r"^int32_t keys\[16\], top = INT32_MIN;",
        after=r"^int32_t keys\[16\], top = 0;|^int32_t keys\[17\], top = INT32_MIN;",
        why="zero for a largest key that is negative misses the way out, which is only faster; of a longer array no "
        "more is used",
    ),
    Row(
        file=r"_include/argmax\.h",
        before=r"^for \(int r = 1; r < size; \+\+r\)",
        after=r"^for \(int r = 0; r < size; \+\+r\)",
        why="the first rank's choice is not larger than itself",
    ),
    Row(
        file=r"_include/attention\.h",
        before=r"constexpr int unroll = .* \? 4 : .* \? 2 : 1;",
        after=r"unroll = [^?]*\? [345] : [^?]*\? [123] : [12];",
        why="how many sums of a row go side by side changes their order alone",
    ),
    Row(
        file=r"_include/simd\.h",
        before=r"\| 0x40|v != v|quiet : rounded|rounded : quiet",
        after=r"\| 0x(20|0|60|41)\b|& 0x40|^;$|\| \(?0x",
        mutators=("mask", "block", "constant", "factor"),
        why=QUIET,
    ),
    Row(
        file=r"_include/simd\.h",
        before=r"0x7fff",
        after=r"0x7ffe|0x7fff - \(\(u|>> 16\) \| 1\)|0x7fff\) >> 16"
        r"|u >> 1[57]\) & 1\)|u << 16\) & 1\)|u >> 16\) & [02]\)",
        where=no_sums,
        why=TIES,
    ),
    Row(
        file=r"(position-table|position-tables|embedding)/copy/kernel\.cpp|(rmsnorm-)?linear-argmax/.*/kernel\.cpp",
        before=r"if \(rank == 0\)",
        after=r"if \((rank == 1|rank != 0|!\(rank == 0\)|rank > 0|rank >= 0)\)",
        why="any rank may copy, or choose among what a launch before has left, and the target has two threads or more",
    ),
    Row(
        file=r"position-tables/copy/kernel\.cpp",
        before=r"for \(int i = rank; i < y_count; i \+= size\)",
        after=r"i = size\)|i \+= 2 \* \(size\)\)",
        why="there are two tables and two threads or more: a rank has one of them at most, and the loop ends behind it",
    ),
    Row(
        file=r"_include/silu\.h",
        before=r"magic = splat\(12582912\.0f\)",
        after=r"splat\(\(2\.0f \* 12582912\.0f\)\)",
        why="n rounds to even integers: the remainder is 0.7 at most, where the polynomial is still right to 9e-7: "
        "less than is allowed an activation there, and by half of it than attention is",
    ),
    Row(
        file=r"_include/simd\.h",
        before=r"for \(long i = 0; i < whole; i \+= LANES\) body\(wide\{\}, i\);",
        after=r"i \+= 2 \* \(LANES\)\)|i = LANES\)",
        region=r"(rmsnorm-)?linear.*",
        why="the 16 sums of a tile are one whole vector where this passes: there is no second turn",
    ),
    Row(
        file=r"_include/simd\.h",
        before=r"v\.bits|std::memcpy\(&[fu], &(bits|v), 4\)|uint16_t\(",
        region=r".*attention.*",
        unreached=True,
        why="a bf16 is converted alone where a head leaves some behind its vectors, which its width decides",
    ),
    Row(
        file=r"_include/attention\.h",
        before=r"each\(D, .*as\.store\(plain \+ i, as\.load\(x \+ i\)\);",
        region=r"qknorm-.*",
        unreached=True,
        why="every head here has a norm: the other branch serves regions without",
    ),
    Row(
        file=r"embedding/packed/kernel(_fp32)?\.cpp",
        before=r"for \(long k = low; k < high; \+\+k\)",
        after=r"k (<=|!=) high;",
        why=f"one turn more is the next share's first; behind the last share the inner loop has none. {AGAIN}",
    ),
    Row(
        file=r"_include/simd\.h",
        before=r"\(here > tops\)|(lanes\[i\]|v\[i\]) > top \|\|",
        after=r"here >= tops|(lanes\[i\]|v\[i\]) >= top \|\|",
        why="of two that are equal either is the largest; a zero of the other sign is the same shift of scores",
    ),
    Row(
        file=r"(add|silu-mul)/plain/kernel\.cpp",
        before=r"constexpr long lines = \((numel|width) \+ 31\) / 32;",
        after=r"lines = \((numel|width) \+ (31\) / 31|32\) / 32|31\) \* 32|31\));",
        why=BORDERS,
    ),
    Row(
        file=r"_include/rmsnorm\.h",
        before=r"whole = K / \(4 \* LANES\) \* \(4 \* LANES\);",
        after=r"\* \(3 \* LANES\);",
        where=fourths,
        why="a smaller multiple of four vectors: more elements go one by one, in another order of sums",
    ),
    Row(
        file=r"_include/argmax\.h",
        before=r"if \(slots\[r \* 16\] > key\) key = slots\[r \* 16\], index = slots\[r \* 16 \+ 1\];",
        after=r"^if \(slots\[r \* 16\] > key\) key = [^,=]*, index = slots\[r \* 16 \+ 1\];",
        where=two_ranks,
        why="behind the second of two ranks nothing asks for the largest key again",
    ),
    Row(
        file=r"_include/attention\.h",
        before=r"wide_columns = std::max<long>\(1, std::min<long>\(D / LANES, 16 / GROUP\)\);",
        after=r"wide_columns = std::max<long>\([12], std::(min|max)<long>\(D [/*] LANES, 1[567] [/*] GROUP\)\);",
        why="how many columns go side by side: each sums for itself, and single ones follow",
    ),
    Row(
        file=r"_include/attention\.h",
        before=r"int\(std::min<long>\(TILE, n - s\)\), weights\[g\] \+ s\);",
        after=r"int\(std::max<long>\(TILE, n - s\)\), weights",
        where=whole_cache,
        why="slots behind the newest are scored too, within the last tile of the cache and of the block; nothing asks "
        "for their scores",
    ),
    Row(
        file=r"_include/silu\.h",
        before=r"x = \(x > 128\.0f \* 0\.6931472f\) \? splat\(128\.0f \* 0\.6931472f \+ 1\) : x;",
        after=r"\(x >= 128\.0f \* 0\.6931472f\)|\(x > 128\.0f\)|splat\(128\.0f \+ 1\)"
        r"|\(x > \(2\.0f \* 128\.0f\) \* 0\.6931472f\)",
        why="from 88.72284 up to 177.445 exp overflows in two scalings without a clamp, as it does with one",
    ),
    Row(
        file=r"_include/silu\.h",
        before=r"x = \(x < -150\.0f \* 0\.6931472f\) \? splat\(-150\.0f \* 0\.6931472f\) : x;",
        after=r"\(x <= -150\.0f \* 0\.6931472f\)|\(x < -150\.0f( \+ 0\.6931472f)?\)|splat\(-150\.0f\)",
        why="from -103.972 down to -150 exp is at most 1.5e-45 with the clamp and without; 1e-30 is always allowed",
    ),
    Row(
        file=r"_include/silu\.h",
        before=r"splat\(1\.9875691500e-4f\)|p = p \* r \+ 1\.3981999507e-3f",
        after=r"splat\(\((2\.0f \* |-)1\.98|p = p( \* \(r \+ 1\))? \+ 1\.398",
        why="the highest term: exp is off by 7e-7 of itself at most, which is less than the 4e-7 of each of an "
        "activation's two operators, and by half of it, as errors of one sign move a weighted mean, than the 4e-7 of "
        "attention",
    ),
    Row(
        file=r"_include/silu\.h",
        before=r"^p = p \* r \+ 1\.3981999507e-3f;",
        after=r"^p = p \* r [-+] \(?(-|2\.0f \* )?1\.398|^p = p \* r;|^;$",
        where=narrow,
        why="exp is off by 7e-6 of itself at most. A twentieth of a bf16's roundoff, which is allowed beside its "
        "rounding, is 2e-4; a weighted mean moves by half of the error at most where it is near zero, and is allowed "
        "4e-6 of the absolute values. Float32 outputs are told apart",
    ),
    Row(
        file=r"_include/silu\.h",
        before=r"^p = p \* r \+ 8\.3334519073e-3f;",
        after=r"^p = p \* r [-+] \(?(-|2\.0f \* )?8\.333|^p = p \* r;|^p = p( \* \(r \+ 1\))? \+ 8\.333|^;$",
        region=r".*silu-mul",
        where=narrow,
        why="exp is off by 1.5e-4 of itself at most: less than a twentieth of a bf16's roundoff, which is allowed "
        "beside its rounding",
    ),
    Row(
        file=r"_include/silu\.h",
        before=r"^x = \(x > 128\.0f \* 0\.6931472f\) \? splat\(.*\) : x;$",
        after=r"^x = \(x > 128\.0f \* 0\.6931472f\) \? splat\(.*\) : x;$|^;$",
        region=r".*attention.*",
        why="weights are of scores less the largest of them: no argument is above zero, where this clamp is",
    ),
    Row(
        file=r"_include/attention\.h",
        before=r"next = top > run\.top\[g\] \|\| top != top \?",
        after=r"next = top >= run\.top\[g\] \|\| top != top \?",
        why="of two that are equal either is the largest; a zero of the other sign is the same shift of scores",
    ),
    Row(
        file=r"_include/attention\.h",
        before=r"wide_columns = std::max<long>\(1, std::min<long>\(D / LANES, 16 / GROUP\)\);",
        after=r"wide_columns = std::min<long>\(1, std::min<long>\(D / LANES, 16 / GROUP\)\);",
        where=narrow_groups,
        why="single columns: each sums for itself, however many go side by side",
    ),
    Row(
        file=r"_include/argmax\.h",
        before=r"top = std::max\(top, keys\[i\]\);",
        after=r"top = std::max\(keys\[i\], top\);",
        why="the larger of two integers, whichever comes first",
    ),
    Row(
        file=r"(add|silu-mul)/plain/kernel\.cpp",
        before=r"end = std::min\((numel|width), lines \* \(rank \+ 1\) / size \* 32\);",
        after=r"std::min\((numel|width), lines \* \(rank \+ (1\)|2\) / size) \* 32\);",
        why=f"every share begins where it did, and goes on over others' elements. {AGAIN}",
    ),
    Row(
        file=r"(add|silu-mul)/plain/kernel\.cpp",
        before=r"each\(end - begin, \[&\]\(auto as, long i\) \{",
        after=r"each\(end - begin, \[&\]\(auto as, signed char i\) \{",
        where=in_a_byte,
        why="no share has more elements than a signed byte counts",
    ),
    Row(
        file=r"_include/simd\.h",
        before=r"^const long whole = n / LANES \* LANES;|inline void each\(long n, F body\)"
        r"|^for \(long i = (0|whole); i < (whole|n); (i \+= LANES|\+\+i)\) body\(",
        counts=same_elements,
        why="at all lengths that the region has, vectors and single elements together are the elements that they were: "
        "in another split of them, and again only where that writes the same",
    ),
    Row(
        file=r"(qknorm-)?rope-attention-decode/split/kernel\.cpp",
        before=r"^long loaded = -1;",
        after=r"^signed char loaded = -1;",
        where=few_heads,
        why="it holds the number of a key-value head, of which there are fewer than a signed byte counts",
    ),
    Row(
        file=r"embedding/packed/kernel_fp32\.cpp",
        before=r"for \(long j = 0; j < group && k \* group \+ j < hidden; \+\+j\)",
        after=r"k \* group( - j)? < hidden;|\+ j <= hidden;|a\.y\[k \* group( - j)?\] ="
        r"|tile\[k \* group \* 16( - j)?\];",
        why="a group is one element: j is zero, and every k is below hidden",
    ),
    Row(
        file=r".*",
        before=r"^for \(long \w+ = ",
        after=r"^for \(signed char \w+ = ",
        mutators=("cast",),
        counts=counted_by_a_byte,
        why="the counter stays within a signed byte from its beginning to its end, which follows from the extents and "
        "parameters; lengths count up to the longest that the cache or a block has",
    ),
    Row(
        file=r"_include/(dot|gemv|attention|attention_head|rmsnorm|norm_operand)\.h",
        before=r"^template <.*\blong [A-Z]+\b.*>",
        after=r"^template <.*\bsigned char [A-Z]+\b.*>",
        mutators=("cast",),
        why="an argument that does not fit does not compile, and one that does is the same",
    ),
    Row(
        file=r"(rmsnorm-)?gateup-silu-mul/.*/kernel\.cpp",
        before=r"^alignas\(64\) float gate\[BLOCK\], up\[BLOCK\];",
        after=r"(gate|up)\[\(?BLOCK\)? [-+] 1\]",
        why="a block is whole lines of 16 floats, each array begins a line, and so does what the compiler puts behind: "
        "the last element's place stays its own",
    ),
    Row(
        file=r"(rmsnorm-)?gateup-silu-mul/.*/kernel\.cpp",
        before=r"^each\(stop - row, \[&\]\(auto as, long i\) \{",
        after=r"^each\(stop - row, \[&\]\(auto as, signed char i\) \{",
        counts=blocks_in_a_byte,
        why="the index of every row of a block fits a signed byte",
    ),
    Row(
        file=r"_include/attention\.h",
        before=r"^for \(long s = 0; s < n; s \+= TILE\)",
        after=r"^for \(long s = 0; s <= n; s \+= TILE\)",
        why="a tile of no slots reads, scores and writes nothing",
    ),
    Row(
        file=r"_include/attention\.h",
        before=r"column \+ LANES <= D|weigh<GROUP, D, 1, 0>|column < D; \+\+column|run\.sum\[g\]\[column\]",
        region=r".*attention.*",
        unreached=True,
        why="no columns are left over, which a head's width and the group alone decide",
    ),
    Row(
        file=r"_include/rmsnorm\.h",
        before=r"whole = K / \(4 \* LANES\) \* \(4 \* LANES\);",
        after=r"whole = K / \(4 \* \(LANES \+ 1\)\) \* \(4 \* LANES\);|whole = K / \(5 \* LANES\) \* \(4 \* LANES\);",
        why="a smaller multiple of four vectors: more elements go one by one, in another order of sums",
    ),
    Row(
        file=r"_include/argmax\.h",
        before=r"key = bits \^ \(\(bits >> 31\) & 0x7fffffff\);",
        after=r"key = bits \^ \(\(bits >> 31\) & 0x7ffffffe\);",
        why="of two negative logits the lower may win where they differ in float32's last bit alone, which is less "
        "than both their roundings; bf16 has no such bit",
    ),
)
