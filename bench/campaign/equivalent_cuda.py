"""Why mutants of CUDA kernels are no faults.

Some are undefined, and their rows say so first: exchanges whose mask leaves out lanes that take part, a barrier gone
between lanes that meet in shared memory, sums that begin with what nobody wrote. CUDA gives these no meaning, so no
result that a device happens to give can be held against them; on the devices tried the bits were right.

Not here: the fence between the reads of a slot and the copy into it, gone where slots are copied into again. That race
is a fault, though no input shows it reliably.
"""

from __future__ import annotations

from agentcompile.ir.region import Region

from .equivalent_cuda_attention import ATTENTION
from .excuses import Row
from .extents import BYTE, matrices
from .loops import Asked

_WARP = 32
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


def _two_rows(region: Region, _: int) -> bool:
    """Every matrix has a second row."""
    return bool(matrices(region)) and all(int(port.shape[0]) > 1 for port in matrices(region))


def _plain(region: Region, _: int) -> bool:
    """Nothing is normalised on the way in."""
    return not any(port.role == "weight" and len(port.shape) == 1 and "norm" in port.family for port in region.ports)


def _turns(asked: Asked) -> int:
    """How often a team of warps takes a row, at most; each multiprocessor has a block."""
    teams = asked.params.get("WARPS", 1) // asked.params.get("PARTS", 1)
    return -(-sum(int(port.shape[0]) for port in matrices(asked.region)) // (asked.threads * max(teams, 1)))


def _few_turns(asked: Asked) -> bool:
    """No team takes so many rows that the number of a row, or of one asked for ahead, needs more than a signed byte."""
    return _turns(asked) + asked.params.get("DEPTH", BYTE) < BYTE


def _all_asked_for(asked: Asked) -> bool:
    """Every row that a warp takes is among those that it asks for before its first."""
    sides = 2 if "gateup" in asked.region.kind else 1
    return _turns(asked) <= asked.params.get("DEPTH", 0) // sides


def _few_bases(asked: Asked) -> bool:
    """Warps take their rows in so few groups of 32 that a signed byte holds where each begins, and where none does."""
    return _turns(asked) <= BYTE // _WARP * _WARP


def _one_step(asked: Asked) -> bool:
    """A warp's loads in flight are all of a row, in the wider type too."""
    found, reach = matrices(asked.region), _WARP * 4 * asked.params.get("LOADS", 0)
    return bool(found) and all(int(port.shape[1]) <= reach for port in found)


def _whole_blocks(asked: Asked) -> bool:
    """Every warp of every block has rows of the one matrix."""
    found, at_once = matrices(asked.region), asked.params.get("ROWS", 0) * asked.params.get("WARPS", 0)
    return at_once > 0 and len(found) == 1 and int(found[0].shape[0]) % at_once == 0


def _one_part_of_plain(asked: Asked) -> bool:
    """A row is one warp's, and nothing is normalised on the way in."""
    return asked.params.get("PARTS") == 1 and _plain(asked.region, asked.threads)


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
        why="what lies behind the last column is multiplied with nothing: the assembler leaves its load out, and one "
        "that it made would fault where nothing is mapped behind the matrix",
    ),
    Row(
        file=r"_include/gemv\.cuh",
        before=r"if \(\+\+step == STEPS\) break;",
        after=r"if \(\+\+step != STEPS\) break;",
        counts=_one_step,
        why="there is one step: the second, behind which the loop ends, fetches zeros and multiplies nothing",
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
    *ATTENTION,
)
