"""Rules of CUDA's rows among the equivalents: what holds of a region on so many threads, or of a mutation.

Some mutants are undefined, and their rows say so first: exchanges whose mask leaves out lanes that take part, a removed
barrier between lanes that exchange data in shared memory, sums that begin with memory nobody wrote, a removed fence
between the initialisation of a barrier and copies that complete on it, a copy that a block does not wait for. CUDA
gives these no meaning, so no result of a device can count against them; on the tested devices the bits were right.

One mutant is left out on purpose: removing the fence between the reads of a slot and the copy into it, where slots are
reused. That race is a fault, though no input shows it reliably.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from agentcompile.ir.graph import ITEM_BYTES

from .extents import Asked

_WARP = 32
_MOST_ROWS = 16
"""The most rows that a warp holds; every allowed number of rows is a power of two."""


def _whole_loads(asked: Asked) -> bool:
    """Return whether no iteration of a warp's loads has the first column behind a row among columns of the row.

    Iterations are then whole ones, of the only step that a row has, and nothing multiplies what those behind it load.
    """
    for port in asked.matrices:
        columns, turn = int(port.shape[1]), _WARP * (16 // ITEM_BYTES[port.dtype])
        step = turn * asked.params.get("LOADS", 0)
        if step == 0 or columns % turn or (columns > step and columns % step):
            return False
    return bool(asked.matrices)


def _within_the_cache(asked: Asked) -> bool:
    """Return whether everything that `split-kv` loads with zero fill lies within its head's cache, at every position.

    In whole iterations a lane loads 16 bytes of each of its slots, and more where not all lanes have a part of a slot;
    what lies behind the slots, or behind the parts, is loaded with zero fill.
    """
    if not asked.kernel.endswith("/split-kv"):
        return False
    splits, warps, slots = (asked.params[name] for name in ("SPLITS", "WARPS", "SLOTS"))
    context, width, window = (asked.dims[name] for name in ("context", "head_dim", "window"))
    lanes = next((many for many in (4, 8, 16) if width // 8 <= many), _WARP)
    groups = _WARP // lanes * warps
    turn = groups * slots
    for position in range(context):
        first = position - window + 1 if window and position >= window else 0
        rounds = -(-(position - first) // groups)
        for rank in range(splits):
            begin = first + rank * rounds // splits * groups
            end = min(first + (rank + 1) * rounds // splits * groups, position)
            last = begin + -(-(end - begin) // turn) * turn - 1
            if begin < end and last * width + lanes * 8 > context * width:
                return False
    return True


def _turns(asked: Asked) -> int:
    teams = asked.params.get("WARPS", 1) // asked.params.get("PARTS", 1)
    return -(-sum(asked.rows) // (asked.threads * max(teams, 1)))


def _rows_behind(asked: Asked) -> bool:
    """Return whether, in every phase of the barriers, row (block number + teams) exists for each block that has a row.

    Rows are counted from the first of the phase. The mutant counts from a block's number where the original counts from
    the block's first row.
    """
    teams, rows = asked.params["WARPS"] // asked.params["PARTS"], asked.dims["rows"]
    left = range(rows, 0, -_WARP * asked.threads * teams) if teams else ()
    return bool(left) and all(min(asked.threads, -(-count // teams)) - 1 + teams < count for count in left)


RULES: Mapping[str, Callable[[Asked], int]] = {
    # Every warp that has rows has its full number of rows.
    "whole_warps": lambda asked: bool(asked.rows) and all(count % _MOST_ROWS == 0 for count in asked.rows),
    # Every warp that has rows has as many rows of its matrix as it can hold.
    "whole_units": lambda asked: bool(asked.rows) and all(count % asked.params["ROWS"] == 0 for count in asked.rows),
    # Every matrix has at least two rows.
    "two_rows": lambda asked: bool(asked.rows) and all(count > 1 for count in asked.rows),
    # There is one matrix, and every warp of every block has rows of it.
    "whole_blocks": lambda asked: (
        len(asked.rows) == 1 and asked.rows[0] % (asked.params["ROWS"] * asked.params["WARPS"]) == 0
    ),
    # A warp's loads in flight cover a whole row, in the wider type too.
    "one_step": lambda asked: (
        bool(asked.matrices) and all(int(port.shape[1]) <= _WARP * 4 * asked.params["LOADS"] for port in asked.matrices)
    ),
    "whole_loads": _whole_loads,
    "within_the_cache": _within_the_cache,
    # Only the lanes that started a running softmax of the prologue, with the newest slot, read it.
    "own_sums": lambda asked: "tensor" in asked.kernel.rpartition("/")[2],
    # The kernel does not normalise its input.
    "plain": lambda asked: (
        not any(port.role == "weight" and len(port.shape) == 1 and "norm" in port.family for port in asked.region.ports)
    ),
    # The most rows that a team of warps takes, where `threads` is the number of multiprocessors, with one block each.
    "turns": _turns,
    # A warp requests all of its rows before it computes its first.
    "all_asked_for": lambda asked: (
        _turns(asked) <= asked.params.get("DEPTH", 0) // (2 if "gateup" in asked.region.kind else 1)
    ),
    "rows_behind": _rows_behind,
}
"""Rules and numbers by the name that `equivalents.toml` has for them."""
