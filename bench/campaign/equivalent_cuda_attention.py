"""Reasons why mutants of CUDA decode attention are no faults; undefined ones say so, as in `equivalent_cuda`."""

from __future__ import annotations

from agentcompile.ir.region import Region

from .excuses import Row
from .extents import elements_of_a_head
from .loops import Asked

_WARP = 32
_TILE = 16
"""Slots of the KV cache in one tensor-core product."""


def _whole_chunks(asked: Asked) -> bool:
    """Return whether every block of a cluster merges equally many elements."""
    count, splits = elements_of_a_head(asked.region), asked.params.get("SPLITS", 0)
    return splits > 0 and count > 0 and count % splits == 0


def _whole_teams(asked: Asked) -> bool:
    """Return whether teams of threads, with four elements for each thread, leave no thread of a block over."""
    quads, block = elements_of_a_head(asked.region) // 4, _WARP * asked.params.get("WARPS", 0)
    return 0 < quads <= block and block % quads == 0


def _all_lanes(region: Region, _: int) -> bool:
    """Return whether every lane holds a part of a slot, with equally many lanes for each half of the slot."""
    return dict(region.dims).get("head_dim", 0) in (32, 64, 128, 256)


def _within_the_cache(asked: Asked) -> bool:
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


def _own_sums(asked: Asked) -> bool:
    """Return whether only the lanes that started a running softmax of the prologue, with the newest slot, read it."""
    return "tensor" in asked.kernel.rpartition("/")[2]


def _one_tile(asked: Asked) -> bool:
    """Return whether no warp takes a second tile of slots, at any position."""
    context, splits = dict(asked.region.dims).get("context", 0), asked.params.get("SPLITS", 0)
    tiles = -(-(context - 1) // _TILE)
    return _own_sums(asked) and splits > 0 and -(-tiles // splits) <= asked.params.get("WARPS", 0)


ATTENTION: tuple[Row, ...] = (
    Row(
        file=r"_include/attention\.cuh",
        before=r"return top == -INFINITY \? 0\.0f : top;",
        after=r"return top == -INFINITY \? -?\(?-?[0-9.]+f\)? : top;",
        why="minus infinity less any number is minus infinity, whose power of two is zero",
    ),
    Row(
        file=r"_include/attention_joined\.cuh",
        before=r"const int until = \(rank \+ 1\) \* CHUNK < ELEMENTS \?",
        after=r"const int until = \(rank\) \* CHUNK < ELEMENTS \?",
        counts=_whole_chunks,
        why="every block's part ends within the elements, where both sides are the same",
    ),
    Row(
        file=r"_include/attention_parts\.cuh",
        before=r"load16\(sums \+ long\(n\) \* ELEMENTS \+ quad \* 4\)",
        after=r"load16\(sums \+ \(n\) \* ELEMENTS \+ quad \* 4\)",
        where=lambda region, _: 0 < elements_of_a_head(region) < 1 << 20,
        why="the number of a split times the elements of a head fits 32 bits",
    ),
    Row(
        file=r"_include/attention_parts\.cuh",
        before=r"^if \(begin < TEAMS && quad < QUADS\) ask\(begin\);",
        after=r"^if \(begin < TEAMS \|\| quad < QUADS\) ask\(begin\);",
        counts=_whole_teams,
        why="every thread is in a team and has four elements: both hold always",
    ),
    Row(
        file=r"_include/attention_heads\.cuh",
        before=r"of_k\.load\(norm_k \+ part, used && newest\);",
        after=r"of_k\.load\(norm_k \+ part, used \|\| newest\);",
        where=_all_lanes,
        why="all lanes are used; warps that do not attend to the newest slot load the norm of its key, and leave it",
    ),
    Row(
        file=r"_include/attention_joined\.cuh",
        before=r"const int until = \(rank \+ 1\) \* CHUNK < ELEMENTS \? \(rank \+ 1\) \* CHUNK : ELEMENTS;",
        after=r"until = (!\(\(rank \+ 1\) \* CHUNK < ELEMENTS\)|\(rank \+ 1\) \* CHUNK >= ELEMENTS) "
        r"\? \(rank \+ 1\) \* CHUNK : ELEMENTS;",
        counts=_whole_chunks,
        why="every block's part reaches to the last element: blocks join elements again that others join, from records "
        "that nobody writes any more and in the same order, and each writes the same value",
    ),
    Row(
        file=r"_include/attention_parts\.cuh",
        before=r"^for \(int from = begin; from < SPLITS && begin < TEAMS; ",
        after=r"^for \(int from = begin; from <= SPLITS && begin < TEAMS; ",
        why="splits from SPLITS on, which a turn more takes, are asked for as nothing and weigh nothing: zero times "
        "zero is added, which changes no sum but the sign of a zero",
    ),
    Row(
        file=r"_include/attention_parts\.cuh",
        before=r"^const float w = n < SPLITS \? weight\[n\] : 0\.0f;",
        after=r"^const float w = n < SPLITS \? weight\[n\] : 1\.0f;",
        why="splits from SPLITS on are asked for as nothing: one times zero is added, as zero times zero was",
    ),
    Row(
        file=r"_include/attention_parts\.cuh",
        before=r"^if \(i == 0\) ends\[g \* SPLITS \+ split\] = make_float2\(top, total\);",
        after=r"^if \((i != 0|!\(i == 0\))\) ends\[g \* SPLITS \+ split\] = make_float2\(top, total\);",
        where=lambda region, _: dict(region.dims).get("head_dim", 0) > 1,
        why="every element of a head finds the same maximum and sum of weights, from the same records in the same "
        "order: the threads of all others but the first write the same value",
    ),
    Row(
        file=r"_include/attention_parts\.cuh",
        before=r"^if \(threadIdx\.x == 0\) \*arrived = 0;",
        after=r"^if \((threadIdx\.x != 0|!\(threadIdx\.x == 0\))\) \*arrived = 0;",
        why="all blocks have counted, so nobody reads it before the launch ends: any other thread of the last block "
        "may leave the zero, and a block has 32 or more",
    ),
    Row(
        file=r"_include/async_copies\.cuh",
        before=r"\(there \? 16 : 0\)",
        after=r"\(there \? 16 : 1\)",
        region=r"(qknorm-)?rope-attention-decode",
        counts=_within_the_cache,
        why="where there is nothing, a byte within the cache is read: the lower one of a number of 16 bits, which is "
        "then finite. It meets a query's zeros, or a score that is replaced and a weight of zero, or a sum that nobody "
        "takes",
    ),
    Row(
        file=r"_include/attention_heads\.cuh",
        before=r" : -HALF_LANES - \(i < HALF_REST \? 1 : 0\);",
        after=r" : HALF_LANES - \(i < HALF_REST \? 1 : 0\);",
        where=_all_lanes,
        why="half a slot's lanes onward is as far round as half of them back: all groups of lanes of a warp hold the "
        "same head, and an exchange counts lanes round the warp",
    ),
    Row(
        file=r"_include/attention\.cuh",
        before=r"^float top = -INFINITY, total = 0, sum\[PER_LANE\] = \{\};",
        counts=_own_sums,
        why="the warp that attends to the newest slot begins with it, and no other reads it: sums of tiles are other "
        "ones",
    ),
    Row(
        file=r"_include/attention_tiles\.cuh",
        before=r"^__device__ void step\(\) \{ asked \+= TILE \* WARPS, ",
        after=r"\{ asked \+= TILE \* WARPS, keys .*, values .*; \}",
        counts=_one_tile,
        why="every warp has one tile at most: those behind it are asked for as nothing, wherever they would lie",
    ),
)
