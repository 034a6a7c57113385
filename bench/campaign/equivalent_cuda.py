"""Reasons why mutants of CUDA kernels are no faults.

Some mutants are undefined, and their rows say so first: exchanges whose mask leaves out lanes that take part, a removed
barrier between lanes that exchange data in shared memory, sums that begin with memory nobody wrote, a removed fence
between the initialisation of a barrier and copies that complete on it, a copy that a block does not wait for. CUDA
gives these no meaning, so no result of a device can count against them; on the tested devices the bits were right.

One mutant is left out on purpose: removing the fence between the reads of a slot and the copy into it, where slots are
reused. That race is a fault, though no input shows it reliably.
"""

from __future__ import annotations

from agentcompile.ir.graph import ITEM_BYTES
from agentcompile.ir.region import Region
from agentcompile.ir.scope import region_dtype

from .equivalent_cuda_attention import ATTENTION
from .equivalent_cuda_bulk import BULK
from .excuses import Row
from .extents import BYTE, matrices
from .loops import Asked

_WARP = 32
_BLOCK = 128
"""Threads in a block of the kernels that look up a row."""
_GRID_BLOCK = 256
"""Threads in a block of the kernels whose grid has one thread for every element of a row."""
_MOST_ROWS = 16
"""The most rows that a warp holds; every allowed number of rows is a power of two."""


def _one_turn(region: Region, _: int) -> bool:
    """Return whether no row of an output is wider than a block."""
    return all(int(port.shape[-1]) <= _BLOCK for port in region.ports if port.role == "output")


def _in_a_byte(region: Region, _: int) -> bool:
    """Return whether the length of every output row fits a signed byte."""
    return all(int(port.shape[-1]) <= BYTE for port in region.ports if port.role == "output")


def _threads_in_32_bits(region: Region, _: int) -> bool:
    """Return whether the threads for a row's elements, in whole blocks, number fewer than 2**32."""
    return -(-dict(region.dims).get("hidden", 1 << 32) // _GRID_BLOCK) * _GRID_BLOCK < 1 << 32


def _one_left_at_most(region: Region, _: int) -> bool:
    """Return whether pieces of 16 bytes of the narrowest type leave at most one element of the output over."""
    width = dict(region.dims).get("width", 0)
    return width > 0 and width % (16 // ITEM_BYTES[region_dtype(region)]) <= 1


def _one_sequence(region: Region, _: int) -> bool:
    return dict(region.dims).get("tokens", 1) == 1


def _whole_warps(region: Region, _: int) -> bool:
    """Return whether every warp that has rows has its full number of rows."""
    return bool(matrices(region)) and all(int(port.shape[0]) % _MOST_ROWS == 0 for port in matrices(region))


def _two_rows(region: Region, _: int) -> bool:
    """Return whether every matrix has at least two rows."""
    return bool(matrices(region)) and all(int(port.shape[0]) > 1 for port in matrices(region))


def _one_step(asked: Asked) -> bool:
    """Return whether a warp's loads in flight cover a whole row, in the wider type too."""
    found, reach = matrices(asked.region), _WARP * 4 * asked.params.get("LOADS", 0)
    return bool(found) and all(int(port.shape[1]) <= reach for port in found)


def _whole_loads(asked: Asked) -> bool:
    """Return whether no iteration of a warp's loads has the first column behind a row among columns of the row.

    Iterations are then whole ones, of the only step that a row has, and nothing multiplies what those behind it load.
    """
    for port in matrices(asked.region):
        columns, turn = int(port.shape[1]), _WARP * (16 // ITEM_BYTES[port.dtype])
        step = turn * asked.params.get("LOADS", 0)
        if step == 0 or columns % turn or (columns > step and columns % step):
            return False
    return bool(matrices(asked.region))


def _one_element(asked: Asked) -> bool:
    """Return whether a block has at least one thread for every element of a group."""
    return 0 < dict(asked.region.dims).get("hidden", 0) <= _WARP * asked.params.get("WARPS", 0)


def _whole_units(asked: Asked) -> bool:
    """Return whether every warp that has rows has as many rows of its matrix as it can hold."""
    found, at_once = matrices(asked.region), asked.params.get("ROWS", 0)
    return bool(found) and at_once > 0 and all(int(port.shape[0]) % at_once == 0 for port in found)


def _whole_blocks(asked: Asked) -> bool:
    """Return whether there is one matrix, and every warp of every block has rows of it."""
    found, at_once = matrices(asked.region), asked.params.get("ROWS", 0) * asked.params.get("WARPS", 0)
    return at_once > 0 and len(found) == 1 and int(found[0].shape[0]) % at_once == 0


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
        file=r"(position-table|embedding)/row/kernel\.cu",
        before=r"^y_t\* y = a\.y \+ blockIdx\.[xy] \* (width|hidden);",
        after=r"^y_t\* y = a\.y [+-] blockIdx\.[xy]( \* (width|hidden|\((width|hidden) \+ 1\)))?;",
        where=_one_sequence,
        why="there is one sequence, and its index is zero",
    ),
    Row(
        file=r"embedding/row/kernel\.cu",
        before=r"i \+= long\(gridDim\.x\) \* blockDim\.x\)",
        after=r"i \+= long\(gridDim\.x\)\)",
        why="shorter steps visit what longer ones do and some elements of other threads: each writes the same value",
    ),
    Row(
        file=r"embedding/row/kernel\.cu",
        before=r"i < hidden; i \+= long\(gridDim\.x\) \* blockDim\.x\) y\[i\] = row\[i\];",
        after=r"i < hidden; i (\+= 2 \* \(long\(gridDim\.x\) \* blockDim\.x\)|= long\(gridDim\.x\) \* blockDim\.x)\) "
        r"y\[i\] = row\[i\];",
        why="the grid has a thread for every element of a row, or more: a thread has one at most, and the loop ends "
        "behind it",
    ),
    Row(
        file=r"embedding/row/kernel\.cu",
        before=r"i < hidden; i \+= long\(gridDim\.x\) \* blockDim\.x\) y\[i\] = row\[i\];",
        after=r"i < hidden; i \+= \(gridDim\.x\) \* blockDim\.x\) y\[i\] = row\[i\];",
        where=_threads_in_32_bits,
        why="the number of the grid's threads fits 32 bits",
    ),
    Row(
        file=r"position-tables/row/kernel\.cu",
        before=r"^const long length = y_numel\[which\] / tokens;",
        after=r"^const signed char length = y_numel\[which\] / tokens;",
        where=_in_a_byte,
        why="the length of every row fits a signed byte, and what it is multiplied with is wider",
    ),
    Row(
        file=r"rmsnorm/block/kernel\.cu",
        before=r"i < hidden; i \+= WARP \* WARPS\) squares \+= to_float\(x\[i\]\) \* to_float\(x\[i\]\);",
        after=r"i < hidden; i \+= WARP \* WARPS\) squares = to_float\(x\[i\]\) \* to_float\(x\[i\]\);",
        counts=_one_element,
        why="a thread has one element at most, and its square added to zero is the square",
    ),
    Row(
        file=r"silu-mul/flat/kernel\.cu",
        before=r"^for \(long k = i; k < width; \+\+k\) put\(",
        after=r"^for \(long k = i; k < width; k \+= 2\) put\(",
        where=_one_left_at_most,
        why="whole pieces leave one element over or none: the loop ends behind the first",
    ),
    Row(
        file=r"_include/argmax\.cuh",
        before=r"^for \(int step = WARP / 2; step > 0; step /= 2\) \{",
        after=r"^for \(int step = WARP \* 2; step > 0; step /= 2\) \{",
        why="an exchange counts lanes round the warp: at steps of two warps and of one a lane meets its own key, which "
        "is the greater of the two, and the other steps are as they were",
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
    Row(
        file=r".*kernel\.cu",
        before=r"__launch_bounds__\(WARP \* WARPS\)",
        after=r"__launch_bounds__\(WARP \* \(WARPS \+ 1\)\)",
        why="a bound above the threads that are launched leaves the compiler fewer registers, and changes no value",
    ),
    Row(
        before=r"-INFINITY",
        after=r"to_float\(Rounded<\w+>::of\(-INFINITY\)\)",
        file=r".*\.cuh?",
        why="every type has the infinity, and rounding leaves it what it is",
    ),
    Row(
        file=r"_include/vector\.cuh",
        before=r"^Unit found = \{0, 0, 0\};",
        after=r"^Unit found = \{0, 1, 0\};",
        where=_two_rows,
        why="a warp without rows emits none, and the one whose loads it makes in vain is there",
    ),
    Row(
        file=r"_include/vector\.cuh",
        before=r"if \(before && unit < here\) found = ",
        after=r"if \(before \|\| unit < here\) found = ",
        counts=_whole_blocks,
        why="there is one matrix, and it has rows for every warp: both hold always",
    ),
    Row(
        file=r"_include/gemv\.cuh",
        before=r"held\[r\]\[j\] = k < K \?",
        after=r"held\[r\]\[j\] = k <= K \?",
        counts=_whole_loads,
        why="only a turn of loads that nobody multiplies begins at the column behind the last, and the assembler "
        "leaves it out; in one that other lanes multiply the load is made, and faults where nothing is mapped behind "
        "the matrix",
    ),
    Row(
        file=r"_include/gemv\.cuh",
        before=r"if \(\+\+step == STEPS\) break;",
        after=r"if \((\+\+step != STEPS|!\(\+\+step == STEPS\))\) break;",
        counts=_one_step,
        why="there is one step: the second, behind which the loop ends, fetches zeros and multiplies nothing",
    ),
    Row(
        file=r"_include/gemv\.cuh",
        before=r"^const bool mine = lane < ROWS && lane < unit\.left;",
        after=r"^const bool mine = lane < ROWS && lane <= unit\.left;",
        counts=_whole_units,
        why="a warp that has rows has one for each of its lanes that emit, and one that has none emits the first row "
        "of the first matrix again, from the same numbers in the same order: the same value, and no operand lies there",
    ),
    Row(
        file=r"_include/gemv\.cuh",
        before=r"^const float extra = mine \? more\(unit\.matrix, unit\.row \+ lane\) : 0\.0f;",
        after=r"^const float extra = mine \? more\(unit\.matrix, unit\.row \+ lane\) : -?\(?-?[0-9.]+f\)?;",
        why="a lane that has no row emits none",
    ),
    Row(
        file=r"_include/(device|argmax|thin_argmax|attention_heads|attention_lanes|attention_tiles)\.cuh",
        before=r"__(shfl|shfl_xor|any)_sync\(ALL, ",
        after=r"__(shfl|shfl_xor|any)_sync\(\(ALL >> 16\), ",
        why="undefined: every lane of the warp executes the exchange, and a lane that does so must be in its own mask",
    ),
    Row(
        file=r"_include/device\.cuh",
        before=r"^constexpr unsigned ALL = 0xffffffffu;",
        after=r"^constexpr unsigned ALL = 0x(7fffffff|fffffffe)u;",
        region=r"(?!.*argmax).*",
        why="undefined: every lane of a warp executes the exchanges, and a lane that does so must be in its own mask. "
        "Kernels without exchanges do not read it, and none here counts from it, as a choice among logits does",
    ),
    Row(
        file=r"_include/gemv\.cuh",
        before=r"^for \(int r = 0; r < ROWS; \+\+r\) sum\[r\] = 0;",
        after=r"^for \(int r = 0; r >= ROWS; \+\+r\) sum\[r\] = 0;",
        why="undefined: the sums begin with what nobody wrote",
    ),
    *BULK,
    *ATTENTION,
)
