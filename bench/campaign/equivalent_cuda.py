"""Why mutants of CUDA kernels are no faults.

Not here: warp intrinsics whose mask leaves out lanes that call them, and warp barriers that are gone. CUDA leaves their
results undefined; on the devices tried the bits were right, and such mutants stay survivors.
"""

from __future__ import annotations

from agentcompile.ir.region import Region

from .excuses import Row
from .extents import matrices

_BLOCK = 128
"""Threads of the kernels that look a row up."""
_MOST_ROWS = 16
"""Rows that a warp holds at most; all numbers of them are powers of two."""


def _one_turn(region: Region, _: int) -> bool:
    """No row of an output is wider than a block."""
    return all(int(port.shape[-1]) <= _BLOCK for port in region.ports if port.role == "output")


def _one_sequence(region: Region, _: int) -> bool:
    return dict(region.dims).get("tokens", 1) == 1


def _whole_warps(region: Region, _: int) -> bool:
    """Every warp that has rows has all of them."""
    return bool(matrices(region)) and all(int(port.shape[0]) % _MOST_ROWS == 0 for port in matrices(region))


CUDA: tuple[Row, ...] = (
    Row(
        file=r"(.*/)?[^/]*\.cuh?",
        before=r"^let_successor_start\(\);",
        after=r"^;$",
        why="the next kernel starts when this one has ended, as it would without programmatic dependent launch: later, "
        "on the same inputs",
    ),
    Row(
        file=r"(position-table|position-tables)/row/kernel\.cu",
        before=r"for \(long i = threadIdx\.x; i < (width|length); i \+= blockDim\.x\)",
        after=r"i (= blockDim\.x|\+= 2 \* \(blockDim\.x\))\)",
        where=_one_turn,
        why="a thread has one element at most, and the loop ends behind it",
    ),
    Row(
        file=r"position-table/row/kernel\.cu",
        before=r"y_t\* y = a\.y \+ blockIdx\.x \* width;",
        after=r"y_t\* y = a\.y \+ blockIdx\.x;",
        where=_one_sequence,
        why="there is one block, and its index is zero",
    ),
    Row(
        file=r"embedding/row/kernel\.cu",
        before=r"i \+= long\(gridDim\.x\) \* blockDim\.x\)",
        after=r"i \+= long\(gridDim\.x\)\)",
        why="shorter steps visit what longer ones do and some elements of other threads: each writes the same value",
    ),
    Row(
        file=r"_include/device\.cuh",
        before=r"if \(threadIdx\.x % WARP == 0\) room\[threadIdx\.x / WARP\] = v;",
        after=r"if \((threadIdx\.x % WARP != 0|!\(threadIdx\.x % WARP == 0\))\) room",
        why="the sum by exchanges in pairs leaves the same bits in every lane, since a + b is b + a: any may write it",
    ),
    Row(
        file=r"_include/gemv\.cuh",
        before=r"STEPS = \(K \+ SPAN \* LOADS - 1\) / \(SPAN \* LOADS\);",
        after=r"STEPS = \(K \+ SPAN \* LOADS (\+ 1\) / \(SPAN \* LOADS\)|- 1\));",
        why="steps behind the last column fetch zeros and multiply nothing",
    ),
    Row(
        file=r"_include/gemv\.cuh",
        before=r"last = left > 0 \? left - 1 : 0;",
        after=r"last = left > 0 \? left : 0;",
        where=_whole_warps,
        why="a warp that has rows has all of them, and no row is a copy of the last",
    ),
)
