"""Ranges that ranks and loops share out, evaluated on numbers alone: who takes what after a bound was mutated.

As in `loops.py`, a mutation is no fault where, at the region's extents and number of threads, all work is still done,
no other work is, and what is done twice writes the same values. What cannot be evaluated counts as not equivalent.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping

from agentcompile.ir.evaluate import EvaluationError
from agentcompile.ir.expr import ExprError
from agentcompile.ir.scope import region_dtype

from .extents import BYTE, TILE, elements, matrices, shares, tiles_are_shared, widths
from .loops import Asked, number, packed, visits

_SHARE = (
    "long units = 0, base = 0;",
    "for (long count : counts) units += (count + UNIT - 1) / UNIT;",
    "const long begin = units * rank / size, end = units * (rank + 1) / size;",
    "const long here = (counts[i] + UNIT - 1) / UNIT;",
    "const long low = std::max(begin, base) - base, high = std::min(end, base + here) - base;",
    "if (low < high) body(int(i), low * UNIT, std::min(high * UNIT, counts[i]));",
    "base += here;",
)
"""The lines of `share_rows` in `_include/gemv.h`, which are mutated one at a time."""
_LINE = 16
"""Floats in a cache line; operands and buffers begin at a line."""
_DEFINED = re.compile(r"(?:const(?:expr)? )?(long|signed char) (.+);")
Rows = list[tuple[int, int, int]]
"""Ranges of rows: the matrix, the first row, and the row after the last."""


def counting(question: Callable[[Asked], bool]) -> Callable[[Asked], bool]:
    """Wrap `question` so that it answers False where an expression has no value."""

    def asked(mutation: Asked) -> bool:
        try:
            return question(mutation)
        except (EvaluationError, ExprError, KeyError):
            return False

    return asked


def _plain(text: str) -> str:
    return re.sub(r"std::(min|max)(?:<long>)?\(", r"\1(", text).replace("counts[i]", "count")


def _define(line: str, names: Mapping[str, int]) -> dict[str, int]:
    """Return `names` with the numbers that a definition adds, evaluated in their order.

    Raises:
        EvaluationError: the line is no definition.
    """
    found = _DEFINED.fullmatch(line)
    if found is None:
        raise EvaluationError(f"no definition: {line}")
    told = dict(names)
    for part in re.split(r", (?=\w+ = )", found[2]):
        name, equals, value = part.partition(" = ")
        if not equals:
            raise EvaluationError(part)
        told[name] = number(_plain(value), told, found[1])
    return told


def _shared(asked: Asked, counts: list[int], unit: int, rank: int) -> Rows:
    lines = [asked.after if asked.before == line else line for line in _SHARE]
    names = {"UNIT": unit, "rank": rank, "size": asked.threads, "i": 0}
    names = _define(lines[0], names)
    summed = re.fullmatch(r"for \(long count : counts\) units (\+?)= (.+);", lines[1])
    if summed is None:
        raise EvaluationError(lines[1])
    for count in counts:
        value = number(summed[2], {**names, "count": count})
        names["units"] = value + (names["units"] if summed[1] else 0)
    names, found = _define(lines[2], names), Rows()
    for i, count in enumerate(counts):
        names = _define(lines[4], _define(lines[3], {**names, "i": i, "count": count}))
        body = re.fullmatch(r"if \((.+)\) body\(int\(i\), (.+), (std::(?:min|max)\(.+\))\);", lines[5])
        if body is None:
            raise EvaluationError(lines[5])
        if number(_plain(body[1]), names):
            found.append((i, number(_plain(body[2]), names), number(_plain(body[3]), names)))
        moved = re.fullmatch(r"base (\+?)= (.+);", lines[6])
        if moved is None:
            raise EvaluationError(lines[6])
        names["base"] = number(moved[2], names) + (names["base"] if moved[1] else 0)
    return found


@counting
def same_rows(asked: Asked) -> bool:
    """Return whether `share_rows` still gives every row of every matrix to a rank, and no rows that do not exist.

    Shares of packed rows begin with a tile; those of other kernels begin anywhere.
    """
    counts = [int(port.shape[0]) for port in matrices(asked.region)]
    gated = asked.region.kind.endswith("gateup-silu-mul")
    counts = counts[:1] if gated else counts
    for unit in (TILE,) if packed(asked) else {TILE, 1}:
        seen = [set[int]() for _ in counts]
        for rank in range(asked.threads):
            for i, begin, end in _shared(asked, counts, unit, rank):
                if begin < end and (begin < 0 or end > counts[i] or (packed(asked) and begin % TILE)):
                    return False
                seen[i].update(range(begin, end))
        if any(len(rows) != count for rows, count in zip(seen, counts, strict=True)):
            return False
    return bool(counts)


def _blocks(asked: Asked) -> Iterator[tuple[int, int]]:
    """Yield the ranges of rows that a kernel's product is called with."""
    for begin, end in shares(asked.region, asked.threads):
        block = asked.params.get("BLOCK", end) if asked.region.kind.endswith("gateup-silu-mul") else end
        for row in range(begin, end, max(block, 1)):
            yield row, min(row + block, end)


@counting
def same_tiles(asked: Asked) -> bool:
    """Return whether the loop over whole tiles, with what follows it, still takes exactly the rows of every share.

    Rows may be taken twice.
    """
    found = re.fullmatch(r"for \(; (.+); row \+= (.+)\) \{", asked.after)
    packed = "TILES" in asked.before
    many = asked.params["TILES"] if packed else 1
    if found is None:
        return False
    for begin, end in _blocks(asked):
        seen, row, turns = set[int](), begin, 0
        names = {"TILE": TILE, "TILES": many, "end": end}
        while number(found[1], {**names, "row": row}):
            seen.update(range(row, row + many * TILE))
            row, turns = row + number(found[2], names), turns + 1
            if turns > 1 << 16:
                return False
        if not packed and row < end - TILE:
            return False
        if row < end and packed and row % TILE:
            return False
        seen.update(range(row, end))
        # A block of sums has room for whole tiles; only the rows of the share are used.
        gated = packed and asked.region.kind.endswith("gateup-silu-mul")
        if not set(range(begin, end)) <= seen <= set(range(begin, -(-end // TILE) * TILE if gated else end)):
            return False
    return True


@counting
def same_rest(asked: Asked) -> bool:
    """Return whether the loop over single packed tiles still takes what the loop over several at once leaves."""
    found = re.fullmatch(r"for \(; (.+); row \+= (.+)\) \{", asked.after)
    if found is None or not packed(asked):
        return False
    side, step = asked.params["TILES"] * TILE, number(found[2], {"TILE": TILE})
    if step <= 0:
        return False
    for begin, end in _blocks(asked):
        row = first = begin + (end - begin) // side * side
        seen = set[int]()
        while number(found[1], {"row": row, "end": end, "TILE": TILE}):
            if row >= end:  # a tile that does not exist
                return False
            seen.update(range(row, min(row + TILE, end)))
            row += step
        if seen != set(range(first, end)):
            return False
    return True


@counting
def same_columns(asked: Asked) -> bool:
    """Return whether the loops over a head's columns still take each column once."""
    found = re.fullmatch(r"for \(; (.+); column \+= (.+)\)", asked.after)
    dims = dict(asked.region.dims)
    width, group = dims["head_dim"], dims["q_heads"] // dims["kv_heads"]
    for lanes in asked.lanes:
        side = max(1, min(width // lanes, 16 // group))
        names = {"D": width, "LANES": lanes, "wide_columns": side}
        column, seen = 0, list[int]()
        for at, plain in enumerate(("column + wide_columns * LANES <= D", "column + LANES <= D", "column < D")):
            taken = (side * lanes, lanes, 1)[at]
            mine = asked.before.startswith(f"for (; {plain};")
            test, step = (found[1], number(found[2], names)) if mine and found is not None else (plain, taken)
            while (not mine or found is not None) and number(test, {**names, "column": column}):
                seen += range(column, column + taken)
                column += step
                if step <= 0 or column > 4 * width:
                    return False
        if sorted(seen) != list(range(width)):
            return False
    return True


@counting
def same_parts(asked: Asked) -> bool:
    """Return whether the splits of a KV cache still hold all slots at every length."""
    dims, splits = dict(asked.region.dims), asked.params["SPLITS"]
    window = dims.get("window", 0)
    for position in range(dims["context"]):
        low = max(0, position - window + 1) if window else 0
        told = _define(asked.after, {"position": position, "low": low, "SPLITS": splits})
        if told["part"] <= 0 or told["part"] * splits < position + 1 - low:
            return False
    return True


@counting
def same_share(asked: Asked) -> bool:
    """Return whether the ranks still take all of a vector, in an elementwise kernel or a lookup of single groups."""
    dims = dict(asked.region.dims)
    lookup = asked.region.kind == "embedding"
    total = dims["hidden"] if lookup else sum(elements(asked.region, asked.threads))
    names = {"numel": total, "width": total, "size": asked.threads, "lines": -(-total // 32)}
    group = 1 if region_dtype(asked.region) == "fp32" else 2
    names["groups"] = -(-total // group)
    seen = set[int]()
    for rank in range(asked.threads):
        told = _define(asked.after, {**names, "rank": rank})
        # A group after the last one is never started.
        begin, end = (told["low"], min(told["high"], names["groups"])) if lookup else (told["begin"], told["end"])
        if begin < end and (begin < 0 or end > (names["groups"] if lookup else total)):
            return False
        seen.update(range(begin, end))
    return len(seen) == (names["groups"] if lookup else total)


@counting
def same_operand(asked: Asked) -> bool:
    """Return whether an operand is still filled: in any order where its order is natural, otherwise in whole steps."""
    lines = ["constexpr long whole = K / (2 * LANES) * (2 * LANES);", "for (long i = 0; i < whole; i += 2 * LANES) {"]
    lines.append("for (long i = whole; i < K; ++i) one::store(out + i, value(one{}, i));")
    said = [asked.after if asked.before.startswith(line) else line for line in lines]
    for (width, dtype), lanes in itertools.product(widths(asked.region), asked.lanes):
        names = {"K": width, "LANES": lanes}
        whole = _define(said[0], names)["whole"]
        steps = list(visits(said[1], {**names, "whole": whole})) if said[1] != ";" else []
        rest = visits(said[2], {**names, "whole": whole})
        seen = {at + n for at in steps for n in range(2 * lanes)} | set(rest)
        natural = dtype == "fp32" or asked.params.get("NATIVE") == 1 or packed(asked)
        plain = list(range(0, width // (2 * lanes) * 2 * lanes, 2 * lanes))
        # What is read past the last element is in the same cache line, and is zeroed next.
        line = -(-width // _LINE) * _LINE if natural else width
        if not set(range(width)) <= seen <= set(range(line)) or not (
            natural or (steps == plain and rest == list(range(whole, width)))
        ):
            return False
        if not natural and whole != width // (2 * lanes) * 2 * lanes:
            return False
    return True


@counting
def same_groups(asked: Asked) -> bool:
    """Return whether the ranks of a norm still take every group; a group may be taken twice."""
    groups, seen = dict(asked.region.dims)["groups"], set[int]()
    for rank in range(asked.threads):
        seen.update(visits(asked.after, {"groups": groups, "rank": rank, "size": asked.threads}))
    return seen == set(range(groups))


@counting
def same_squares(asked: Asked) -> bool:
    """Return whether a mean square still takes every element once."""
    lengths = {port.numel for port in asked.region.ports if port.role == "weight" and len(port.shape) == 1}
    dims = dict(asked.region.dims)
    lengths = {dims["head_dim"]} if "attention" in asked.region.kind else lengths
    for length, lanes in itertools.product(lengths, asked.lanes):
        whole = _define(asked.after, {"K": length, "LANES": lanes})["whole"]
        if not 0 <= whole <= length or whole % (4 * lanes):
            return False
    return bool(lengths)


@counting
def roomy(asked: Asked) -> bool:
    """Return whether an operand's buffer holds the operand and the second element of its last pair."""
    found = re.fullmatch(r"template <long K> constexpr long operand_room = (.+);", asked.after)
    return found is not None and all(
        number(found[1], {"K": width, "LANES": lanes}) >= width + width % 2
        for (width, _), lanes in itertools.product(widths(asked.region), asked.lanes)
    )


def short_blocks(asked: Asked) -> bool:
    """Return whether the number of slots in a block fits a signed byte."""
    return 0 < min(dict(asked.region.dims).get("context", 0), asked.params.get("BLOCK", 0)) <= BYTE


def one_block(asked: Asked) -> bool:
    """Return whether a KV cache is no longer than a block, so that every range of slots is a first block."""
    return 0 < dict(asked.region.dims).get("context", 0) <= asked.params.get("BLOCK", 0)


def one_group(asked: Asked) -> bool:
    """Return whether there is only one group to normalise, number zero."""
    return dict(asked.region.dims).get("groups") == 1


def even_groups(asked: Asked) -> bool:
    """Return whether whole pairs are looked up, so that the bound within a group never ends the loop."""
    return dict(asked.region.dims).get("hidden", 1) % 2 == 0


def rows_in_tiles(asked: Asked) -> bool:
    """Return whether no share of rows ends within a tile."""
    return tiles_are_shared(asked.region, asked.threads)
