"""Ranges that ranks and loops share out, evaluated on numbers alone: who takes what after a bound was mutated.

As in `loops.py`, a mutation is no fault where, at the region's extents and number of threads, all work is still done,
no other work is, and what is done twice writes the same values. What cannot be evaluated counts as not equivalent.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from agentcompile.ir.scope import region_dtype

from .extents import TILE, Asked, elements, shares
from .loops import matched, number, visits

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
_DEFINED = r"(?:const(?:expr)? )?(long|signed char) (.+);"
Rows = list[tuple[int, int, int]]
"""Ranges of rows: the matrix, the first row, and the row after the last."""


def _plain(text: str) -> str:
    return re.sub(r"std::(min|max)(?:<long>)?\(", r"\1(", text).replace("counts[i]", "count")


def _define(line: str, names: Mapping[str, int]) -> dict[str, int]:
    """Return `names` with the numbers that a definition adds, evaluated in their order."""
    (type, values), told = matched(_DEFINED, line), dict(names)
    for part in re.split(r", (?=\w+ = )", values):
        name, _, value = part.partition(" = ")
        told[name] = number(_plain(value), told, type)
    return told


def _shared(asked: Asked, counts: list[int], unit: int, rank: int) -> Rows:
    lines = [asked.after if asked.before == line else line for line in _SHARE]
    names = _define(lines[0], {"UNIT": unit, "rank": rank, "size": asked.threads, "i": 0})
    plus, value = matched(r"for \(long count : counts\) units (\+?)= (.+);", lines[1])
    for count in counts:
        names["units"] = number(value, {**names, "count": count}) + (names["units"] if plus else 0)
    names, found = _define(lines[2], names), Rows()
    for i, count in enumerate(counts):
        names = _define(lines[4], _define(lines[3], {**names, "i": i, "count": count}))
        body = matched(r"if \((.+)\) body\(int\(i\), (.+), (std::(?:min|max)\(.+\))\);", lines[5])
        calls, begin, end = (_plain(part) for part in body)
        if number(calls, names):
            found.append((i, number(begin, names), number(end, names)))
        plus, value = matched(r"base (\+?)= (.+);", lines[6])
        names["base"] = number(value, names) + (names["base"] if plus else 0)
    return found


def same_rows(asked: Asked) -> bool:
    """Return whether `share_rows` still gives every row of every matrix to a rank, and no rows that do not exist.

    Shares of packed rows begin with a tile; those of other kernels begin anywhere.
    """
    counts = asked.rows[:1] if asked.gated else asked.rows
    for unit in (TILE,) if asked.packed else {TILE, 1}:
        seen = [set[int]() for _ in counts]
        for rank in range(asked.threads):
            for i, begin, end in _shared(asked, counts, unit, rank):
                if begin < end and (begin < 0 or end > counts[i] or (asked.packed and begin % TILE)):
                    return False
                seen[i].update(range(begin, end))
        if any(len(rows) != count for rows, count in zip(seen, counts, strict=True)):
            return False
    return bool(counts)


def _blocks(asked: Asked) -> Iterator[tuple[int, int]]:
    """Yield the ranges of rows that a kernel's product is called with."""
    for begin, end in shares(asked):
        block = asked.params.get("BLOCK", end) if asked.gated else end
        for row in range(begin, end, max(block, 1)):
            yield row, min(row + block, end)


def same_tiles(asked: Asked) -> bool:
    """Return whether the loop over whole tiles, with what follows it, still takes exactly the rows of every share.

    Rows may be taken twice.
    """
    test, moved = matched(r"for \(; (.+); row \+= (.+)\) \{", asked.after)
    packed = "TILES" in asked.before
    many = asked.params["TILES"] if packed else 1
    for begin, end in _blocks(asked):
        seen, row, turns = set[int](), begin, 0
        names = {"TILE": TILE, "TILES": many, "end": end}
        while number(test, {**names, "row": row}):
            seen.update(range(row, row + many * TILE))
            row, turns = row + number(moved, names), turns + 1
            if turns > 1 << 16:
                return False
        if not packed and row < end - TILE:
            return False
        if row < end and packed and row % TILE:
            return False
        seen.update(range(row, end))
        # A block of sums has room for whole tiles; only the rows of the share are used.
        room = -(-end // TILE) * TILE if packed and asked.gated else end
        if not set(range(begin, end)) <= seen <= set(range(begin, room)):
            return False
    return True


def same_rest(asked: Asked) -> bool:
    """Return whether the loop over single packed tiles still takes what the loop over several at once leaves."""
    test, moved = matched(r"for \(; (.+); row \+= (.+)\) \{", asked.after)
    if not asked.packed:
        return False
    side, step = asked.params["TILES"] * TILE, number(moved, {"TILE": TILE})
    if step <= 0:
        return False
    for begin, end in _blocks(asked):
        row = first = begin + (end - begin) // side * side
        seen = set[int]()
        while number(test, {"row": row, "end": end, "TILE": TILE}):
            if row >= end:  # a tile that does not exist
                return False
            seen.update(range(row, min(row + TILE, end)))
            row += step
        if seen != set(range(first, end)):
            return False
    return True


def same_columns(asked: Asked) -> bool:
    """Return whether the loops over a head's columns still take each column once."""
    found = re.fullmatch(r"for \(; (.+); column \+= (.+)\)", asked.after)
    width, group = asked.dims["head_dim"], asked.dims["q_heads"] // asked.dims["kv_heads"]
    for lanes in asked.lanes:
        side = max(1, min(width // lanes, 16 // group))
        names = {"D": width, "LANES": lanes, "wide_columns": side}
        column, seen = 0, list[int]()
        for plain, taken in (
            ("column + wide_columns * LANES <= D", side * lanes),
            ("column + LANES <= D", lanes),
            ("column < D", 1),
        ):
            test, step = plain, taken
            if asked.before.startswith(f"for (; {plain};"):
                if found is None:  # the loop is gone
                    continue
                test, step = found[1], number(found[2], names)
            while number(test, {**names, "column": column}):
                seen += range(column, column + taken)
                column += step
                if step <= 0 or column > 4 * width:
                    return False
        if sorted(seen) != list(range(width)):
            return False
    return True


def same_parts(asked: Asked) -> bool:
    """Return whether the splits of a KV cache still hold all slots at every length."""
    splits, window = asked.params["SPLITS"], asked.dims["window"]
    for position in range(asked.dims["context"]):
        low = max(0, position - window + 1) if window else 0
        told = _define(asked.after, {"position": position, "low": low, "SPLITS": splits})
        if told["part"] <= 0 or told["part"] * splits < position + 1 - low:
            return False
    return True


def same_share(asked: Asked) -> bool:
    """Return whether the ranks still take all of a vector, in an elementwise kernel or a lookup of single groups."""
    lookup = asked.region.kind == "embedding"
    total = asked.dims["hidden"] if lookup else sum(elements(asked))
    groups = -(-total // (1 if region_dtype(asked.region) == "fp32" else 2))
    names = {"numel": total, "width": total, "size": asked.threads, "lines": -(-total // 32), "groups": groups}
    seen = set[int]()
    for rank in range(asked.threads):
        told = _define(asked.after, {**names, "rank": rank})
        # A group after the last one is never started.
        begin, end = (told["low"], min(told["high"], groups)) if lookup else (told["begin"], told["end"])
        if begin < end and (begin < 0 or end > (groups if lookup else total)):
            return False
        seen.update(range(begin, end))
    return len(seen) == (groups if lookup else total)


def same_operand(asked: Asked) -> bool:
    """Return whether an operand is still filled: in any order where its order is natural, otherwise in whole steps."""
    lines = ["constexpr long whole = K / (2 * LANES) * (2 * LANES);", "for (long i = 0; i < whole; i += 2 * LANES) {"]
    lines.append("for (long i = whole; i < K; ++i) one::store(out + i, value(one{}, i));")
    said = [asked.after if asked.before.startswith(line) else line for line in lines]
    for (width, dtype), lanes in itertools.product(asked.widths, asked.lanes):
        names = {"K": width, "LANES": lanes}
        whole = _define(said[0], names)["whole"]
        steps = visits(said[1], {**names, "whole": whole}) if said[1] != ";" else []
        rest = visits(said[2], {**names, "whole": whole})
        seen = {at + n for at in steps for n in range(2 * lanes)} | set(rest)
        natural = dtype == "fp32" or asked.params.get("NATIVE") == 1 or asked.packed
        plain = width // (2 * lanes) * 2 * lanes
        # What is read past the last element is in the same cache line, and is zeroed next.
        line = -(-width // _LINE) * _LINE if natural else width
        if not set(range(width)) <= seen <= set(range(line)):
            return False
        ordered = steps == list(range(0, plain, 2 * lanes)) and rest == list(range(whole, width)) and whole == plain
        if not natural and not ordered:
            return False
    return True


def same_groups(asked: Asked) -> bool:
    """Return whether the ranks of a norm still take every group; a group may be taken twice."""
    groups, seen = asked.dims["groups"], set[int]()
    for rank in range(asked.threads):
        seen.update(visits(asked.after, {"groups": groups, "rank": rank, "size": asked.threads}))
    return seen == set(range(groups))


def _squared(asked: Asked) -> Sequence[int]:
    """Return the lengths of the vectors of which mean squares are taken."""
    return [asked.dims["head_dim"]] if asked.attention else asked.norms


def same_squares(asked: Asked) -> bool:
    """Return whether a mean square still takes every element once."""
    lengths = _squared(asked)
    for length, lanes in itertools.product(lengths, asked.lanes):
        whole = _define(asked.after, {"K": length, "LANES": lanes})["whole"]
        if not 0 <= whole <= length or whole % (4 * lanes):
            return False
    return bool(lengths)


def no_tail(asked: Asked) -> bool:
    """Return whether whole groups of four vectors hold all elements of a mean square: what goes one by one is zero."""
    lengths = _squared(asked)
    return bool(lengths) and all(n % (4 * lanes) == 0 for n, lanes in itertools.product(lengths, asked.lanes))


def roomy(asked: Asked) -> bool:
    """Return whether an operand's buffer holds the operand and the second element of its last pair."""
    (room,) = matched(r"template <long K> constexpr long operand_room = (.+);", asked.after)
    return all(
        number(room, {"K": width, "LANES": lanes}) >= width + width % 2
        for (width, _), lanes in itertools.product(asked.widths, asked.lanes)
    )


_ALL = (same_rows, same_tiles, same_rest, same_columns, same_parts, same_share, same_operand, same_groups, same_squares)
RULES: Mapping[str, Callable[[Asked], int]] = {rule.__name__: rule for rule in (*_ALL, no_tail, roomy)}
"""Rules by the name that `equivalents.toml` has for them."""
