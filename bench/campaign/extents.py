"""What a mutation's region, threads and parameters decide: what is left over, where the ranks' shares begin.

A share of rows is a static range (`templates/_include/gemv.h`), so what holds for one input holds for all.

Some mutants of CUDA are undefined, and their rows say so first: exchanges whose mask leaves out lanes that take part, a
removed barrier between lanes that exchange data in shared memory, sums that begin with memory nobody wrote, a removed
fence between the initialisation of a barrier and copies that complete on it, a copy that a block does not wait for.
CUDA gives these no meaning, so no result of a device can count against them; on the tested devices the bits were right.

One mutant of CUDA is left out on purpose: removing the fence between the reads of a slot and the copy into it, where
slots are reused. That race is a fault, though no input shows it reliably.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from agentcompile.ir.graph import ITEM_BYTES
from agentcompile.ir.region import Port, Region
from agentcompile.ir.scope import region_dtype
from agentcompile.validate.cases import rounds_once

TILE = 16
"""The rows of a tile, which kernels compute together."""
_LINE = 32
"""The elements of a line, the unit in which elementwise kernels share out a vector."""
BYTE = 127
"""The largest number that a signed byte holds."""
_WARP = 32
_MOST_ROWS = 16
"""The most rows that a warp holds; every allowed number of rows is a power of two."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A mutation of a line in a kernel of `region` that runs on `threads` threads."""

    region: Region
    threads: int
    before: str
    after: str
    params: Mapping[str, int] = field(default_factory=dict)
    """The candidate's parameters, with ``LANES``, and ``NATIVE``: 1 when it has bf16 products.

    A parameter that is missing may have any value.
    """
    kernel: str = ""
    """The template's id, such as ``linear/packed``."""

    @property
    def lanes(self) -> tuple[int, ...]:
        """The widths that a vector may have, in floats."""
        return (self.params["LANES"],) if "LANES" in self.params else (8, 16)

    @property
    def unrolls(self) -> tuple[int, ...]:
        """The numbers of accumulators that a sum may have; attention chooses among some by itself."""
        return (self.params["UNROLL"],) if "UNROLL" in self.params else (1, 2, 4, 8)

    @cached_property
    def dims(self) -> dict[str, int]:
        """The region's extents by name; without a name of its own, it has one token and no window."""
        return {"tokens": 1, "window": 0, **dict(self.region.dims)}

    @cached_property
    def matrices(self) -> list[Port]:
        """The ports of the region's weight matrices."""
        return [port for port in self.region.ports if port.role == "weight" and len(port.shape) == 2]

    @property
    def rows(self) -> list[int]:
        """The number of rows of each weight matrix."""
        return [int(port.shape[0]) for port in self.matrices]

    @property
    def outputs(self) -> list[Port]:
        """The ports of the region's outputs."""
        return [port for port in self.region.ports if port.role == "output"]

    @property
    def norms(self) -> list[int]:
        """The lengths of the region's weights that are vectors: of what is normalised."""
        return [port.numel for port in self.region.ports if port.role == "weight" and len(port.shape) == 1]

    @property
    def widths(self) -> list[tuple[int, str]]:
        """The lengths of dot products, with their operands' type: rows of matrices, heads of caches."""
        states = [port for port in self.region.ports if port.role == "state"]
        return [(int(str(port.shape[-1])), port.dtype) for port in (*self.matrices, *states)]

    @property
    def attention(self) -> bool:
        """Whether the region is one of attention."""
        return "attention" in self.region.kind

    @property
    def gated(self) -> bool:
        """Whether the region has two matrices of equal shape, of which one's products gate the other's."""
        return self.region.kind.endswith("gateup-silu-mul")

    @property
    def packed(self) -> bool:
        """Whether matrices are packed: each lane has a row, and all rows are summed in the same order."""
        return "/packed" in self.kernel


def shares(asked: Asked) -> Iterator[tuple[int, int]]:
    """Yield the range of rows that each rank takes of each matrix, for packed kernels and for row-major ones."""
    threads = asked.threads
    for unit in {TILE, TILE if sum(asked.rows) >= 2 * TILE * threads else 1}:
        units = [-(-count // unit) for count in asked.rows]
        for rank in range(threads):
            begin, end, base = sum(units) * rank // threads, sum(units) * (rank + 1) // threads, 0
            for count, here in zip(asked.rows, units, strict=True):
                low, high = max(begin, base) - base, min(end, base + here) - base
                if low < high:
                    yield low * unit, min(high * unit, count)
                base += here


def tiles_are_shared(asked: Asked) -> bool:
    """Return whether row-major kernels share rows out in tiles, as packed kernels always do."""
    return asked.dims.get("rows", 0) >= 2 * TILE * asked.threads


def elements(asked: Asked) -> list[int]:
    """Return how many elements of the region's only output each rank of an elementwise kernel takes."""
    (numel,) = (port.numel for port in asked.outputs)
    lines = -(-numel // _LINE)
    ends = [min(numel, lines * rank // asked.threads * _LINE) for rank in range(asked.threads + 1)]
    return [end - begin for begin, end in itertools.pairwise(ends)]


def no_odd_pair(asked: Asked) -> bool:
    """Return whether there are matrices, and none has half a pair at a row's end; float32 rows never do."""
    return bool(asked.matrices) and all(p.dtype == "fp32" or int(p.shape[1]) % 2 == 0 for p in asked.matrices)


def _few_units(asked: Asked) -> bool:
    unit = TILE if tiles_are_shared(asked) else 1
    return bool(asked.rows) and sum(-(-count // unit) for count in asked.rows) <= BYTE


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
    # A type of the region, in bytes.
    "item_bytes": lambda asked: ITEM_BYTES[region_dtype(asked.region)],
    # The widest row of an output.
    "columns": lambda asked: max(int(port.shape[-1]) for port in asked.outputs),
    # The outputs of attention for one key-value head, over all query heads that share it.
    "head_elements": lambda asked: asked.dims["q_heads"] // asked.dims["kv_heads"] * asked.dims["head_dim"],
    # Every weight matrix is the only one of its family, and there is one.
    "alone": lambda asked: 0 < len(asked.matrices) == len({port.family for port in asked.matrices}),
    # There are matrices, and none has a whole number of tiles of rows.
    "ragged": lambda asked: bool(asked.rows) and all(count % TILE for count in asked.rows),
    # All matrices have a whole number of tiles of rows, and enough rows to be shared out in tiles.
    "tiled": lambda asked: not any(count % TILE for count in asked.rows) and tiles_are_shared(asked),
    "no_odd_pair": no_odd_pair,
    # Every output has a whole number of lines; or a number of lines that fits a signed byte.
    "whole_lines": lambda asked: all(port.numel % _LINE == 0 for port in asked.outputs),
    "few_lines": lambda asked: all(-(-port.numel // _LINE) <= BYTE for port in asked.outputs),
    # No output is a sum or product of inputs alone, whose single rounding could be observed.
    "no_sums": lambda asked: not rounds_once(asked.region),
    # Every share of a matrix begins with its first row; or within its first 128 rows.
    "with_matrices": lambda asked: all(begin == 0 for begin, _ in shares(asked)),
    "among_the_first": lambda asked: all(begin < 128 for begin, _ in shares(asked)),
    # Every share that begins with its matrix has four tiles, the most that are read side by side.
    "of_four_tiles": lambda asked: all(begin > 0 or end >= 4 * TILE for begin, end in shares(asked)),
    # Every share of a matrix is a multiple of that.
    "whole_quads": lambda asked: all((end - begin) % (4 * TILE) == 0 for begin, end in shares(asked)),
    # The widest vectors divide every dot product; or none is shorter than they are.
    "whole_steps": lambda asked: all(width % (16 if dtype == "fp32" else 32) == 0 for width, dtype in asked.widths),
    "a_step": lambda asked: all(width >= (16 if dtype == "fp32" else 32) for width, dtype in asked.widths),
    # Every packed dot product has a multiple of 64 steps, which 8 accumulators divide twice.
    "whole_turns": lambda asked: all(
        (width if dtype == "fp32" else -(-width // 2)) % 64 == 0 for width, dtype in asked.widths
    ),
    # Even the narrowest vectors divide no dot product, so that its operand has padding.
    "room_behind": lambda asked: all(width % 8 for width, _ in asked.widths),
    # All operands of dot products are float32.
    "floats": lambda asked: all(dtype == "fp32" for _, dtype in asked.widths),
    # The whole groups of 4 vectors in what is normalised are none or a multiple of 4, for vectors of 8 floats and of
    # 16: so it is with multiples of 16 vectors, and with fewer than 4.
    "fourths": lambda asked: all(width // (4 * lanes) % 4 == 0 for width in asked.norms for lanes in (8, 16)),
    # A signed byte can count the rows of all matrices together, or their tiles if those are shared.
    "few_units": _few_units,
    # Every output is bf16.
    "narrow": lambda asked: all(port.dtype == "bf16" for port in asked.outputs),
    # The region's norms add no offset to their weights.
    "no_offset": lambda asked: (
        not any(float(str(dict(node.attrs).get("offset", 0.0))) for node in asked.region.body.nodes)
    ),
    # The region's matrix products have no bias.
    "no_bias": lambda asked: not any(len(node.inputs) > 2 for node in asked.region.body.nodes if node.op == "linear"),
    # The index of every element of a share fits a signed byte.
    "small_shares": lambda asked: all(count <= BYTE + 1 for count in elements(asked)),
    "packed": lambda asked: asked.packed,
    # Those of CUDA.
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
