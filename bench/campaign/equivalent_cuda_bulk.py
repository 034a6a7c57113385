"""Reasons why mutants of CUDA products that copy rows in bulk are no faults.

Undefined ones say so, as in `equivalent_cuda`.
"""

from __future__ import annotations

from agentcompile.ir.region import Region

from .excuses import Row
from .extents import BYTE, matrices
from .loops import Asked

_WARP = 32


def _plain(region: Region, _: int) -> bool:
    """Return whether the kernel does not normalise its input."""
    return not any(port.role == "weight" and len(port.shape) == 1 and "norm" in port.family for port in region.ports)


def _turns(asked: Asked) -> int:
    """Return the most rows that a team of warps takes, where `asked.threads` is the number of multiprocessors.

    Each multiprocessor has one block.
    """
    teams = asked.params.get("WARPS", 1) // asked.params.get("PARTS", 1)
    return -(-sum(int(port.shape[0]) for port in matrices(asked.region)) // (asked.threads * max(teams, 1)))


def _few_turns(asked: Asked) -> bool:
    """Return whether the numbers of all rows that a team takes or requests ahead fit a signed byte."""
    return _turns(asked) + asked.params.get("DEPTH", BYTE) < BYTE


def _all_asked_for(asked: Asked) -> bool:
    """Return whether a warp requests all of its rows before it computes its first."""
    sides = 2 if "gateup" in asked.region.kind else 1
    return _turns(asked) <= asked.params.get("DEPTH", 0) // sides


def _few_bases(asked: Asked) -> bool:
    """Return whether a signed byte counts through a warp's groups of 32 rows, up to the number that ends the loop."""
    return _turns(asked) <= BYTE // _WARP * _WARP


def _rows_behind(asked: Asked) -> bool:
    """Return whether, in every phase of the barriers, row (block number + teams) exists for each block that has a row.

    Rows are counted from the first of the phase. The mutant counts from a block's number where the original counts from
    the block's first row.
    """
    teams = asked.params.get("WARPS", 0) // asked.params.get("PARTS", 1 << 10)
    rows = dict(asked.region.dims).get("rows", 0)
    if teams == 0 or rows == 0:
        return False
    left = range(rows, 0, -_WARP * asked.threads * teams)
    return all(min(asked.threads, -(-count // teams)) - 1 + teams < count for count in left)


def _one_part_of_plain(asked: Asked) -> bool:
    """Return whether a single warp computes each row and the input is not normalised."""
    return asked.params.get("PARTS") == 1 and _plain(asked.region, asked.threads)


BULK: tuple[Row, ...] = (
    Row(
        file=r"_include/bulk\.cuh",
        before=r"^barriers_made\(\);",
        after=r"^;$",
        why="undefined: without the fence nothing orders the making of a barrier before what a copy, which is another "
        "proxy's, does to it, and CUDA does not say what the copy finds",
    ),
    Row(
        file=r"_include/bulk\.cuh",
        before=r"^if \(PARTS > 1 && lane == 0\) squares\[warp\] = slice\.squares;",
        after=r"^if \(PARTS > 1 \|\| lane == 0\) squares\[warp\] = slice\.squares;",
        why="every lane of a warp has the same sum, so any may write it, and there is room for it where a row is one "
        "warp's too, though nobody reads it there",
    ),
    Row(
        file=r"_include/bulk\.cuh",
        before=r"^for \(long base = 0; unit_of<1>\(rows_of, long\(blockIdx\.x\) \* TEAMS \+ base \* step\)\.left; ",
        after=r"^for \(long base = 0; unit_of<1>\(rows_of, long\(blockIdx\.x\) \+ TEAMS \+ base \* step\)\.left; ",
        counts=_rows_behind,
        why="every block begins the turns in which it has a row; in others, which end too, no warp of it finds one",
    ),
    Row(
        file=r"_include/bulk\.cuh",
        before=r"^ask\(ring\.slot, turn \+ \(side \+ DEPTH\) / SIDE, \(side \+ DEPTH\) % SIDE\);",
        after=r"^ask\(ring\.slot, turn / SIDE, \(side \+ DEPTH\) % SIDE\);",
        counts=_all_asked_for,
        why="undefined: all rows of a warp are asked for before the first, and one of them again comes to a slot that "
        "nobody reads any more; but nobody waits for it either, and CUDA does not say where a copy goes whose block "
        "has ended",
    ),
    Row(
        file=r"_include/bulk\.cuh",
        before=r"^const auto ask = \[&\]\(int into, long turn, int side\) \{",
        after=r"\(int into, signed char turn, int side\) \{",
        counts=_few_turns,
        why="the number of every row of a warp fits",
    ),
    Row(
        file=r"_include/bulk\.cuh",
        before=r"^ask\(ring\.slot, turn \+ \(side \+ DEPTH\) / SIDE, \(side \+ DEPTH\) % SIDE\);",
        after=r"^;$",
        counts=_all_asked_for,
        why="all rows of a warp are asked for before the first: there is none behind them",
    ),
    Row(
        file=r"_include/bulk\.cuh",
        before=r"^for \(long base = 0; unit_of<1>\(rows_of, long\(blockIdx",
        after=r"^for \(signed char base = 0; unit_of<1>\(rows_of, long\(blockIdx",
        counts=_few_bases,
        why="no warp has more than three groups of rows behind its first, and the number that ends the loop fits",
    ),
    Row(
        file=r"_include/bulk\.cuh",
        before=r"^reads_done\(\);",
        after=r"^;$",
        counts=_all_asked_for,
        why="all rows of a warp are asked for before the first: no copy follows that the fence could hold back",
    ),
    Row(
        file=r"_include/bulk\.cuh",
        before=r"^__syncwarp\(\);",
        after=r"^;$",
        why="undefined: one of these barriers orders what a lane makes in shared memory before the other lanes' waits "
        "on it, the other the lanes' reads of a slot before the copy into it that one of them asks for. Without, CUDA "
        "does not say what is read; and where no slot is copied into again the second orders nothing",
    ),
    Row(
        file=r"_include/bulk\.cuh",
        before=r"^if \(\+\+slot == DEPTH\) slot = 0, parity \^= 1;",
        unreached=True,
        why="no warp takes as many rows as its ring has slots: it never begins again",
    ),
    Row(
        file=r"_include/bulk\.cuh",
        before=r"const float factor = inverse_of\(in, all, K\);",
        after=r"const float factor = to_float\(Rounded<\w+>::of\(inverse_of\(in, all, K\)\)\);",
        where=_plain,
        why="nothing is normalised: the factor is one, in every type",
    ),
    Row(
        file=r"_include/bulk\.cuh",
        before=r"^if \(PARTS > 1\) \{",
        after=r"^if \(!\(PARTS > 1\)\) \{",
        counts=_one_part_of_plain,
        why="the sums of one part go through shared memory and come back as they were; no squares are used",
    ),
    Row(
        file=r"_include/bulk\.cuh",
        before=r"const float extra = here \? more\(mine\.matrix, mine\.row\) : 0\.0f;",
        after=r"const float extra = here \? more\(mine\.matrix, mine\.row\) : -?\(?-?[0-9.]+f\)?;",
        why="a lane that has no row emits none",
    ),
)
