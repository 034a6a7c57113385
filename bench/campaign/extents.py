"""What a region's extents decide about its kernels: whether anything is left over, where the ranks' shares begin.

A share of rows is a static range (`templates/_include/gemv.h`), so what holds for one input holds for all.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from agentcompile.ir.region import Port, Region
from agentcompile.validate.cases import rounds_sums

TILE = 16
"""The rows of a tile, which kernels compute together."""
_LINE = 32
"""The elements of a line, the unit in which elementwise kernels share out a vector."""
BYTE = 127
"""The largest number that a signed byte holds."""


def anywhere(_: Region, __: int) -> bool:
    """Return True: the row of the table holds for every region."""
    return True


def matrices(region: Region) -> list[Port]:
    """Return the ports of a region's weight matrices."""
    return [port for port in region.ports if port.role == "weight" and len(port.shape) == 2]


def alone(region: Region, _: int) -> bool:
    """Return whether every weight matrix is the only one of its family; False for a region without matrices."""
    families = [port.family for port in matrices(region)]
    return bool(families) and len(set(families)) == len(families)


def ragged(region: Region, _: int) -> bool:
    """Return whether no matrix has a whole number of tiles of rows; False for a region without matrices."""
    rows = [int(port.shape[0]) for port in matrices(region)]
    return bool(rows) and all(count % TILE for count in rows)


def tiled(region: Region, threads: int) -> bool:
    """Return whether all matrices have a whole number of tiles of rows, and enough rows to be shared out in tiles."""
    rows = [int(port.shape[0]) for port in matrices(region)]
    return not any(count % TILE for count in rows) and tiles_are_shared(region, threads)


def no_odd_pair(region: Region, _: int) -> bool:
    """Return whether no row of a matrix ends in half a pair; float32 rows, which are read one by one, never do.

    False for a region without matrices.
    """
    found = matrices(region)
    return bool(found) and all(port.dtype == "fp32" or int(port.shape[1]) % 2 == 0 for port in found)


def whole_lines(region: Region, _: int) -> bool:
    """Return whether every output has a whole number of lines."""
    return all(port.numel % _LINE == 0 for port in region.ports if port.role == "output")


def no_sums(region: Region, _: int) -> bool:
    """Return whether no output is a sum of inputs alone, whose single rounding could be observed."""
    return not rounds_sums(region)


def shares(region: Region, threads: int) -> Iterator[tuple[int, int]]:
    """Yield the range of rows that each rank takes of each matrix, for packed kernels and for row-major ones."""
    counts = [int(port.shape[0]) for port in matrices(region)]
    for unit in {TILE, TILE if sum(counts) >= 2 * TILE * threads else 1}:
        units = [-(-count // unit) for count in counts]
        for rank in range(threads):
            begin, end, base = sum(units) * rank // threads, sum(units) * (rank + 1) // threads, 0
            for count, here in zip(counts, units, strict=True):
                low, high = max(begin, base) - base, min(end, base + here) - base
                if low < high:
                    yield low * unit, min(high * unit, count)
                base += here


def with_matrices(region: Region, threads: int) -> bool:
    """Return whether every share of a matrix begins with its first row."""
    return all(begin == 0 for begin, _ in shares(region, threads))


def among_the_first(region: Region, threads: int) -> bool:
    """Return whether every share of a matrix begins within its first 128 rows."""
    return all(begin < 128 for begin, _ in shares(region, threads))


def of_four_tiles(region: Region, threads: int) -> bool:
    """Return whether every share that begins with its matrix has four tiles, the most that are read side by side."""
    return all(begin > 0 or end >= 4 * TILE for begin, end in shares(region, threads))


def widths(region: Region) -> list[tuple[int, str]]:
    """Return the lengths of the dot products, with the type of their operands: rows of matrices, heads of caches."""
    found: list[tuple[int, str]] = [(int(port.shape[1]), port.dtype) for port in matrices(region)]
    return found + [(int(str(port.shape[-1])), port.dtype) for port in region.ports if port.role == "state"]


def whole_steps(region: Region, _: int) -> bool:
    """Return whether the widest vectors divide every dot product."""
    return all(width % (16 if dtype == "fp32" else 32) == 0 for width, dtype in widths(region))


def whole_turns(region: Region, _: int) -> bool:
    """Return whether every packed dot product has a multiple of 64 steps, which 8 accumulators divide twice."""
    return all((width if dtype == "fp32" else -(-width // 2)) % 64 == 0 for width, dtype in widths(region))


def a_step(region: Region, _: int) -> bool:
    """Return whether no dot product is shorter than the widest vector."""
    return all(width >= (16 if dtype == "fp32" else 32) for width, dtype in widths(region))


def room_behind(region: Region, _: int) -> bool:
    """Return whether even the narrowest vectors divide no dot product, so that its operand has padding."""
    return all(width % 8 for width, _ in widths(region))


def floats(region: Region, _: int) -> bool:
    """Return whether all operands of dot products are float32."""
    return all(dtype == "fp32" for _, dtype in widths(region))


def same_type(region: Region, _: int) -> bool:
    """Return whether activations have the same type as the matrices."""
    types = {
        p.dtype for p in region.ports if p.role in ("activation", "weight") and p.dtype in ("bf16", "fp16", "fp32")
    }
    return len(types) == 1


def fourths(region: Region, _: int) -> bool:
    """Return whether the whole groups of 4 vectors in what is normalised are none or a multiple of 4.

    That holds for vectors of 8 floats and of 16: for multiples of 16 vectors, and for fewer than 4 vectors.
    """
    widths = [port.numel for port in region.ports if port.role == "weight" and len(port.shape) == 1]
    return all(width // (4 * lanes) % 4 == 0 for width in widths for lanes in (8, 16))


def whole_cache(region: Region, _: int) -> bool:
    """Return whether the KV cache has whole tiles of slots, and the first visible slot begins a tile."""
    dims = dict(region.dims)
    return dims.get("context", 1) % TILE == 0 and dims.get("window", 0) == 0


def two_ranks(_: Region, threads: int) -> bool:
    """Return whether two threads share the work."""
    return threads == 2


def whole_quads(region: Region, threads: int) -> bool:
    """Return whether every share of a matrix is a multiple of four tiles, the most that are read side by side."""
    return all((end - begin) % (4 * TILE) == 0 for begin, end in shares(region, threads))


def few_units(region: Region, threads: int) -> bool:
    """Return whether a signed byte can count the rows of all matrices together, or their tiles if those are shared."""
    rows = [int(port.shape[0]) for port in matrices(region)]
    unit = TILE if tiles_are_shared(region, threads) else 1
    return bool(rows) and sum(-(-count // unit) for count in rows) <= BYTE


def tiles_are_shared(region: Region, threads: int) -> bool:
    """Return whether row-major kernels share rows out in tiles, as packed kernels always do."""
    return dict(region.dims).get("rows", 0) >= 2 * TILE * threads


def narrow(region: Region, _: int) -> bool:
    """Return whether every output is bf16."""
    return all(port.dtype == "bf16" for port in region.ports if port.role == "output")


def few_lines(region: Region, _: int) -> bool:
    """Return whether the number of lines of every output fits a signed byte."""
    return all(-(-port.numel // _LINE) <= BYTE for port in region.ports if port.role == "output")


def no_offset(region: Region, _: int) -> bool:
    """Return whether the region's norms add no offset to their weights."""
    return not any(float(str(dict(node.attrs).get("offset", 0.0))) for node in region.body.nodes)


def no_bias(region: Region, _: int) -> bool:
    """Return whether the region's matrix products have no bias."""
    return not any(len(node.inputs) > 2 for node in region.body.nodes if node.op == "linear")


def elements(region: Region, threads: int) -> list[int]:
    """Return how many elements of the region's only output each rank of an elementwise kernel takes."""
    (numel,) = (port.numel for port in region.ports if port.role == "output")
    lines = -(-numel // _LINE)
    ends = [min(numel, lines * rank // threads * _LINE) for rank in range(threads + 1)]
    return [end - begin for begin, end in itertools.pairwise(ends)]


def in_a_byte(region: Region, threads: int) -> bool:
    """Return whether the index of every element of a share fits a signed byte."""
    return all(count <= BYTE + 1 for count in elements(region, threads))


def narrow_groups(region: Region, _: int) -> bool:
    """Return whether a head has at least one vector of either width, and at most 16 query heads share a key head."""
    dims = dict(region.dims)
    return dims.get("head_dim", 0) >= 16 and dims.get("q_heads", 0) <= 16 * dims.get("kv_heads", 0)


def few_heads(region: Region, _: int) -> bool:
    """Return whether the number of key-value heads fits a signed byte; False for a region without them."""
    return 0 < dict(region.dims).get("kv_heads", 0) <= BYTE


def elements_of_a_head(region: Region) -> int:
    """Return the number of attention outputs for one key-value head, over all query heads that share it.

    Returns 0 for a region without attention.
    """
    dims = dict(region.dims)
    return dims.get("q_heads", 0) // max(dims.get("kv_heads", 0), 1) * dims.get("head_dim", 0)
