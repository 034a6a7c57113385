"""Survivors that are no faults: which mutation of which line, and why no input can tell it from the original.

A row is keyed by the template's or shared file, mutators and the line before and after, and where it needs some by the
region's extents. "It passed" is no reason: a reason says why the results are the same, or lie within what the template
declares, whatever the inputs are.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from agentcompile.ir.region import Port, Region
from agentcompile.validate.cases import rounds_sums

_TILE = 16
"""Rows that the kernels take at once."""
_LINE = 32
"""Elements that elementwise kernels share out at once."""


def _any(_: Region, __: int) -> bool:
    return True


def _matrices(region: Region) -> list[Port]:
    return [port for port in region.ports if port.role == "weight" and len(port.shape) == 2]


def _alone(region: Region, _: int) -> bool:
    """No matrix has others of its family beside it."""
    families = [port.family for port in _matrices(region)]
    return bool(families) and len(set(families)) == len(families)


def _ragged(region: Region, _: int) -> bool:
    """No matrix has a whole number of tiles."""
    rows = [int(port.shape[0]) for port in _matrices(region)]
    return bool(rows) and all(count % _TILE for count in rows)


def _tiled(region: Region, threads: int) -> bool:
    """All matrices have a whole number of tiles, and enough rows to be shared out in them."""
    rows = [int(port.shape[0]) for port in _matrices(region)]
    return not any(count % _TILE for count in rows) and dict(region.dims).get("rows", 0) >= 2 * _TILE * threads


def _no_odd_pair(region: Region, _: int) -> bool:
    """No row of a matrix ends in half a pair: it is of pairs, or of floats, which are taken one by one."""
    found = _matrices(region)
    return bool(found) and all(port.dtype == "fp32" or int(port.shape[1]) % 2 == 0 for port in found)


def _whole_lines(region: Region, _: int) -> bool:
    return all(port.numel % _LINE == 0 for port in region.ports if port.role == "output")


def _no_sums(region: Region, _: int) -> bool:
    return not rounds_sums(region)


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
    where: Callable[[Region, int], bool] = _any
    """Which regions, on how many threads."""
    unreached: bool = False
    """Holds only where a trap before the statement is never sprung (`probing.py`)."""


def reason(
    mutator: str, region: Region, file: str, before: str, after: str, *, threads: int, unreached: bool = False
) -> str:
    """Why a mutation of a kernel of `region` on so many threads is equivalent; empty when no row says so."""
    for row in EQUIVALENT:
        asked = (not row.mutators or mutator in row.mutators) and unreached >= row.unreached
        here = re.fullmatch(row.file, file) and re.fullmatch(row.region, region.kind)
        said = asked and here and re.search(row.before, before) and re.search(row.after, after)
        if said and row.where(region, threads):
            return row.why
    return ""


_NO_ATTENTION = r"(?!.*attention).*"
_PREFETCH = "a prefetch moves a line nearer and changes no value; one of an unmapped address does nothing"
_AGAIN = "ranks do rows again that others do too: each writes the same value, from inputs that nobody writes"
_QUIET = (
    "arithmetic sets a NaN's quiet bit, and what was a bf16 has its payload in the upper half: it stays a NaN, "
    "whatever of this bit or of rounding is left"
)
_TIES = (
    "what lies half way, or next to that, rounds the other way: one unit roundoff at most, which the element bound "
    "allows. No output is an exact sum, whose rounding could be told"
)
_BORDERS = "too large a count moves the borders between ranks alone: every share ends where its matrix or vector does"
_ZEROS = "padding meets the zeros that a packed layout ends in, where anything reads it at all: it need only be finite"
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
        file=r"_include/gemv\.h",
        before=r"long units = 0, base = 0;",
        after=r"long units = 1, base = 0;",
        why=_BORDERS,
    ),
    Row(
        file=r"_include/gemv\.h",
        before=r"for \(long count : counts\) units \+= \(count \+ UNIT - 1\) / UNIT;",
        after=r"units \+= \(count \+ UNIT( - 0| \+ 1)?\) / UNIT;|units \+= \(count \+ UNIT - 1\)( \* UNIT)?;",
        why=_BORDERS,
    ),
    Row(
        file=r"_include/gemv\.h",
        before=r"for \(long count : counts\) units \+= ",
        after=r"for \(long count : counts\) units = \(count \+ UNIT - 1\) / UNIT;",
        where=_alone,
        why="there is one count, and the sum begins with zero",
    ),
    Row(
        file=r"_include/gemv\.h",
        before=r"const long low = std::max\(begin, base\) - base, high = std::min\(end, base \+ here\) - base;",
        after=r"low = std::max\(begin, base\)( [-+] base)?, high = std::min\(end, base \+ here\)( [-+] base)?;$",
        where=_alone,
        why="there is one matrix, and its rows begin at zero",
    ),
    Row(
        file=r"_include/gemv\.h",
        before=r"^base \+= here;",
        after=r"^(base -?= here)?;$",
        where=_alone,
        why="there is no matrix behind the one",
    ),
    Row(
        file=r"_include/gemv\.h",
        before=r"for \(; row < end; row \+= TILE\)",
        after=r"for \(; row <= end; row \+= TILE\)",
        region=_NO_ATTENTION,
        where=_ragged,
        why="a share ends at a border of tiles behind which its matrix has another, of which no row is kept, or behind "
        "the matrix's last row, which is within a tile: there is no turn at its end",
    ),
    Row(
        file=r"(add|silu-mul)/plain/kernel\.cpp",
        before=r"end = std::min\((numel|width), lines \* \(rank \+ 1\) / size \* 32\);",
        after=r"end = std::max\((numel|width), lines \* \(rank \+ 1\) / size \* 32\);",
        where=_whole_lines,
        why=f"the last line ends where the vector does; {_AGAIN}",
    ),
    Row(
        file=r"_include/dot\.h",
        before=r"if \(n == TILE\) \{",
        after=r"if \((n != TILE|!\(n == TILE\))\) \{",
        region=_NO_ATTENTION,
        where=_tiled,
        why="every tile is whole, and row after row sums the same products as sixteen rows at once, in another order",
    ),
    Row(
        file=r"_include/dot\.h",
        before=r"for \(long i = K; i < operand_room<K>; \+\+i\) one::store\(out \+ i, 0\.0f\);",
        after=r"^for \(long i = K; i < operand_room<K>; \+\+i\) one::store\(out \+ i, 1\.0f\);$",
        why=_ZEROS,
    ),
    Row(
        file=r"_include/dot\.h",
        before=r"for \(long i = K; i < operand_room<K>; \+\+i\) one::store\(out \+ i, 0\.0f\);",
        after=r"^;$|^for \(long i = K; i < operand_room<K>; \+\+i\) ;$"
        r"|^for \(long i = K; i (< operand_room<K>; i \+= 2|>= operand_room<K>; \+\+i)\) one::store\(out \+ i, 0",
        region=_NO_ATTENTION,
        where=_no_odd_pair,
        why="nothing reads the padding of a row that ends with a step",
    ),
    Row(
        file=r"_include/argmax\.h",
        before=r"return \(bits & 0x7fffffff\) > 0x7f800000 \?",
        after=r"return \(bits & 0x7ffffffe\) > 0x7f800000 \?",
        why=f"only a NaN with no other bit set would be taken for an infinity, but {_QUIET}",
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
        file=r"_include/gemv\.h",
        before=r"constexpr long row_unit = ROWS >= 2 \* TILE \* THREADS \? TILE : 1;",
        after=r"row_unit = [^?]*\? TILE : [12];",
        why="a share of rows may begin with any row of a row-major matrix, whatever the unit",
    ),
    Row(
        file=r"_include/attention\.h",
        before=r"constexpr int unroll = .* \? 4 : .* \? 2 : 1;",
        after=r"unroll = [^?]*\? [345] : [^?]*\? [123] : [12];",
        why="how many sums of a row go side by side changes their order alone",
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
    Row(
        file=r"_include/simd\.h",
        before=r"0x7fff",
        after=r"0x7ffe|>> 16\) \| 1\)|0x7fff\) >> 16|u >> 1[57]\) & 1\)|u >> 16\) & [02]\)",
        where=_no_sums,
        why=_TIES,
    ),
    Row(
        file=r"(position-table|position-tables|embedding)/copy/kernel\.cpp",
        before=r"if \(rank == 0\)",
        after=r"if \((rank == 1|rank != 0|!\(rank == 0\)|rank > 0|rank >= 0)\)",
        why="any one rank may copy, and the target has two threads or more",
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
