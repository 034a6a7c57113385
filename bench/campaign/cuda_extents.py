"""Predicates of CUDA's rows among the equivalents: what holds of a region on so many threads, or of a mutation.

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

from .extents import BYTE, elements_of_a_head, matrices
from .loops import Asked

_WARP = 32
_BLOCK = 128
"""Threads in a block of the kernels that look up a row."""
_GRID_BLOCK = 256
"""Threads in a block of the kernels whose grid has one thread for every element of a row."""
_MOST_ROWS = 16
"""The most rows that a warp holds; every allowed number of rows is a power of two."""
_TILE = 16
"""Slots of the KV cache in one tensor-core product."""


def one_turn(region: Region, _: int) -> bool:
    """Return whether no row of an output is wider than a block."""
    return all(int(port.shape[-1]) <= _BLOCK for port in region.ports if port.role == "output")


def in_a_byte(region: Region, _: int) -> bool:
    """Return whether the length of every output row fits a signed byte."""
    return all(int(port.shape[-1]) <= BYTE for port in region.ports if port.role == "output")


def threads_in_32_bits(region: Region, _: int) -> bool:
    """Return whether the threads for a row's elements, in whole blocks, number fewer than 2**32."""
    return -(-dict(region.dims).get("hidden", 1 << 32) // _GRID_BLOCK) * _GRID_BLOCK < 1 << 32


def one_left_at_most(region: Region, _: int) -> bool:
    """Return whether pieces of 16 bytes of the narrowest type leave at most one element of the output over."""
    width = dict(region.dims).get("width", 0)
    return width > 0 and width % (16 // ITEM_BYTES[region_dtype(region)]) <= 1


def one_sequence(region: Region, _: int) -> bool:
    """Return whether the region serves one sequence, or one token of it."""
    return dict(region.dims).get("tokens", 1) == 1


def whole_warps(region: Region, _: int) -> bool:
    """Return whether every warp that has rows has its full number of rows."""
    return bool(matrices(region)) and all(int(port.shape[0]) % _MOST_ROWS == 0 for port in matrices(region))


def two_rows(region: Region, _: int) -> bool:
    """Return whether every matrix has at least two rows."""
    return bool(matrices(region)) and all(int(port.shape[0]) > 1 for port in matrices(region))


def one_step(asked: Asked) -> bool:
    """Return whether a warp's loads in flight cover a whole row, in the wider type too."""
    found, reach = matrices(asked.region), _WARP * 4 * asked.params.get("LOADS", 0)
    return bool(found) and all(int(port.shape[1]) <= reach for port in found)


def whole_loads(asked: Asked) -> bool:
    """Return whether no iteration of a warp's loads has the first column behind a row among columns of the row.

    Iterations are then whole ones, of the only step that a row has, and nothing multiplies what those behind it load.
    """
    for port in matrices(asked.region):
        columns, turn = int(port.shape[1]), _WARP * (16 // ITEM_BYTES[port.dtype])
        step = turn * asked.params.get("LOADS", 0)
        if step == 0 or columns % turn or (columns > step and columns % step):
            return False
    return bool(matrices(asked.region))


def one_element(asked: Asked) -> bool:
    """Return whether a block has at least one thread for every element of a group."""
    return 0 < dict(asked.region.dims).get("hidden", 0) <= _WARP * asked.params.get("WARPS", 0)


def whole_units(asked: Asked) -> bool:
    """Return whether every warp that has rows has as many rows of its matrix as it can hold."""
    found, at_once = matrices(asked.region), asked.params.get("ROWS", 0)
    return bool(found) and at_once > 0 and all(int(port.shape[0]) % at_once == 0 for port in found)


def whole_blocks(asked: Asked) -> bool:
    """Return whether there is one matrix, and every warp of every block has rows of it."""
    found, at_once = matrices(asked.region), asked.params.get("ROWS", 0) * asked.params.get("WARPS", 0)
    return at_once > 0 and len(found) == 1 and int(found[0].shape[0]) % at_once == 0


def whole_chunks(asked: Asked) -> bool:
    """Return whether every block of a cluster merges equally many elements."""
    count, splits = elements_of_a_head(asked.region), asked.params.get("SPLITS", 0)
    return splits > 0 and count > 0 and count % splits == 0


def whole_teams(asked: Asked) -> bool:
    """Return whether teams of threads, with four elements for each thread, leave no thread of a block over."""
    quads, block = elements_of_a_head(asked.region) // 4, _WARP * asked.params.get("WARPS", 0)
    return 0 < quads <= block and block % quads == 0


def all_lanes(region: Region, _: int) -> bool:
    """Return whether every lane holds a part of a slot, with equally many lanes for each half of the slot."""
    return dict(region.dims).get("head_dim", 0) in (32, 64, 128, 256)


def within_the_cache(asked: Asked) -> bool:
    """Return whether everything that `split-kv` loads with zero fill lies within its head's cache, at every position.

    In whole iterations a lane loads 16 bytes of each of its slots, and more where not all lanes have a part of a slot;
    what lies behind the slots, or behind the parts, is loaded with zero fill.
    """
    dims, wanted = dict(asked.region.dims), ("SPLITS", "WARPS", "SLOTS")
    if not asked.kernel.endswith("/split-kv") or any(name not in asked.params for name in wanted):
        return False
    splits, warps, slots = (asked.params[name] for name in wanted)
    context, width, window = dims["context"], dims["head_dim"], dims.get("window", 0)
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


def own_sums(asked: Asked) -> bool:
    """Return whether only the lanes that started a running softmax of the prologue, with the newest slot, read it."""
    return "tensor" in asked.kernel.rpartition("/")[2]


def one_tile(asked: Asked) -> bool:
    """Return whether no warp takes a second tile of slots, at any position."""
    context, splits = dict(asked.region.dims).get("context", 0), asked.params.get("SPLITS", 0)
    tiles = -(-(context - 1) // _TILE)
    return own_sums(asked) and splits > 0 and -(-tiles // splits) <= asked.params.get("WARPS", 0)


def plain(region: Region, _: int) -> bool:
    """Return whether the kernel does not normalise its input."""
    return not any(port.role == "weight" and len(port.shape) == 1 and "norm" in port.family for port in region.ports)


def turns(asked: Asked) -> int:
    """Return the most rows that a team of warps takes, where `asked.threads` is the number of multiprocessors.

    Each multiprocessor has one block.
    """
    teams = asked.params.get("WARPS", 1) // asked.params.get("PARTS", 1)
    return -(-sum(int(port.shape[0]) for port in matrices(asked.region)) // (asked.threads * max(teams, 1)))


def few_turns(asked: Asked) -> bool:
    """Return whether the numbers of all rows that a team takes or requests ahead fit a signed byte."""
    return turns(asked) + asked.params.get("DEPTH", BYTE) < BYTE


def all_asked_for(asked: Asked) -> bool:
    """Return whether a warp requests all of its rows before it computes its first."""
    sides = 2 if "gateup" in asked.region.kind else 1
    return turns(asked) <= asked.params.get("DEPTH", 0) // sides


def few_bases(asked: Asked) -> bool:
    """Return whether a signed byte counts through a warp's groups of 32 rows, up to the number that ends the loop."""
    return turns(asked) <= BYTE // _WARP * _WARP


def rows_behind(asked: Asked) -> bool:
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


def one_part_of_plain(asked: Asked) -> bool:
    """Return whether a single warp computes each row and the input is not normalised."""
    return asked.params.get("PARTS") == 1 and plain(asked.region, asked.threads)


def heads_in_32_bits(region: Region, _: int) -> bool:
    """Return whether the number of a split times the elements of a head fits 32 bits."""
    return 0 < elements_of_a_head(region) < 1 << 20


def several_elements(region: Region, _: int) -> bool:
    """Return whether a head has more elements than one."""
    return dict(region.dims).get("head_dim", 0) > 1
