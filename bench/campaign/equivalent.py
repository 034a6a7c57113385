"""Survivors that are no faults: which mutation of which line, and why no input can tell it from the original.

A row is keyed by the template's or shared file, mutators and the line before and after. "It passed" is no reason: a
reason says why the results are the same, or lie within what the template declares, whatever the inputs are.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Mutations of one line that are equivalent; the file is matched whole, the other patterns are searched for."""

    why: str
    before: str
    after: str = ""
    """Regular expressions, as all patterns are."""
    file: str = r"_include/.*"
    region: str = r".*"
    """The kind, whole."""
    mutators: tuple[str, ...] = ()
    """Empty: any."""
    unreached: bool = False
    """Holds only where a trap before the statement is never sprung (`probing.py`)."""


def reason(mutator: str, region: str, file: str, before: str, after: str, *, unreached: bool) -> str:
    """Why a mutation is equivalent; empty when no row says so."""
    for row in EQUIVALENT:
        asked = (not row.mutators or mutator in row.mutators) and unreached >= row.unreached
        here = re.fullmatch(row.file, file) and re.fullmatch(row.region, region)
        if asked and here and re.search(row.before, before) and re.search(row.after, after):
            return row.why
    return ""


_NO_ATTENTION = r"(?!.*attention).*"
_PREFETCH = "a prefetch moves a line nearer and changes no value; one of an unmapped address does nothing"
_AGAIN = "ranks do rows again that others do too: each writes the same value, from inputs that nobody writes"
_QUIET = (
    "arithmetic sets a NaN's quiet bit, and what was a bf16 has its payload in the upper half: it stays a NaN, "
    "whatever of this bit or of rounding is left"
)
_TIES = "a tie rounds the other way: one unit roundoff at most, which the element bound allows"
EQUIVALENT: tuple[Row, ...] = (
    Row(before=r"__builtin_prefetch|^if \([^;]*\) fetch<AHEAD>\([^;]*\);$|^fetch<AHEAD>\([^;]*\);$", why=_PREFETCH),
    Row(
        before=r"",
        file=r"_include/(simd|dot|gemv|rmsnorm|silu|norm_operand)\.h|(add|silu-mul|rmsnorm)/plain/kernel\.cpp",
        region=_NO_ATTENTION,
        unreached=True,
        why="nothing is left over at this region's extents, which alone decide whether the statement runs",
    ),
    Row(
        file=r"_include/gemv\.h",
        before=r"const long low = .*high = std::min\(end, base \+ here\) - base;",
        after=r"high = std::max\(end, base \+ here\) - base;",
        why=_AGAIN,
    ),
    Row(
        file=r"_include/gemv\.h",
        before=r"body\(int\(i\), low \* UNIT, std::min\(high \* UNIT, counts\[i\]\)\)",
        after=r"body\(int\(i\), low \* UNIT, std::max\(high \* UNIT, counts\[i\]\)\)",
        why=_AGAIN,
    ),
    Row(
        file=r"_include/argmax\.h",
        before=r"if \(top <= key\) return;",
        after=r"^;$|if \(top < key\) return;|if \(top == key\) return;",
        why="the loop behind it finds by itself that none is larger: the way out is only faster",
    ),
    Row(
        file=r"_include/dot\.h",
        before=r"if constexpr \(K % step != 0\) \{",
        after=r"if constexpr \((K % step == 0|!\(K % step != 0\))\) \{",
        region=r".*",
        why="where the step divides K the loop over what is left is empty, and adds zero",
    ),
    Row(
        file=r"_include/simd\.h",
        before=r"\| 0x40|v != v|quiet : rounded|rounded : quiet",
        after=r"\| 0x(20|0|60|41)\b|& 0x40|^;$|\| \(?0x",
        mutators=("mask", "block", "constant", "factor"),
        why=_QUIET,
    ),
    Row(file=r"_include/simd\.h", before=r"0x7fff", after=r"0x7ffe|>> 16\) \| 1\)|0x7fff\) >> 16", why=_TIES),
    Row(
        file=r"(position-table|position-tables|embedding)/copy/kernel\.cpp",
        before=r"if \(rank == 0\)",
        after=r"if \((rank == 1|rank != 0|!\(rank == 0\)|rank > 0|rank >= 0)\)",
        why="any one rank may copy, and the target has two threads or more",
    ),
    Row(
        file=r"add/plain/kernel\.cpp",
        before=r"end = std::min\(numel, lines \* \(rank \+ 1\) / size \* 32\)",
        after=r"end = std::max\(numel, ",
        region="add",
        why=f"{_AGAIN}; where the lines go past the end it is no equivalent, and the redzone tells",
    ),
    Row(
        file=r"_include/dot\.h",
        before=r"for \(long i = K; i < operand_room<K>; \+\+i\) one::store\(out \+ i, 0\.0f\);",
        after=r"one::store\(out \+ i, 1\.0f\);",
        mutators=("coefficient",),
        why="what pads the activation meets the zeros that pad packed weights; rows are read up to K alone",
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
        why="n rounds to even integers: the remainder is 0.7 at most, where the polynomial is still right to 2e-6",
    ),
    Row(
        file=r"_include/dot\.h",
        before=r"^for \((int [tsu]|long) = \w+; . < (TILES|STREAMS|UNROLL); \+\+.\)",
        after=r" <= (TILES|STREAMS|UNROLL);",
        mutators=("boundary",),
        why="one more turn would index past the accumulators, which is undefined: the compiler leaves that turn out",
    ),
    Row(
        file=r"_include/simd\.h",
        before=r"for \(long i = 0; i < whole; i \+= LANES\) body\(wide\{\}, i\);",
        after=r"i \+= 2 \* \(LANES\)\)|i = LANES\)",
        region=r"(rmsnorm-)?linear.*",
        why="the 16 sums of a tile are one whole vector where this passes: there is no second turn",
    ),
    Row(
        file=r"_include/dot\.h",
        before=r"constexpr int TILE = 16;",
        after=r"constexpr int TILE = 15;",
        why="rows go 15 at a time; the sixteenth lane lies in the room that the alignment of the sums leaves",
    ),
    Row(
        file=r"_include/gemv\.h",
        before=r"for \(; row \+ (TILES \* )?TILE <= end; row \+= (TILES \* )?TILE\)",
        after=r"row \+ (TILES \* )?TILE < end;",
        why="the last whole tiles are left to what does single and partial ones behind the loop",
    ),
)
