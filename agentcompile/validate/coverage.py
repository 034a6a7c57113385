"""The places that acceptance visits besides its cases: positions of a cache, rows of a table.

A kernel splits its work at sizes that are not known here, so acceptance visits as many places as fit the budget: every
small one, every residue of 64 at two scales, both sides of the bounds at which work is usually split, and random ones,
fresh for every seed.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

from agentcompile.ir.digest import digest

SMALL = 66
"""Every length up to this one is tested: both sides of the widest step (64) of a vector unit or a tile are included."""
CHUNK_LENGTHS = 320
"""The number of lengths of a chunk that are tested: all of those of usual chunks."""
_PERIOD = 64
_SCALE = 1024  # the first of the two scales; the second is the end of the cache
_ALWAYS = 4
"""The multiple of a walk's budget up to which both scales are visited; behind it the second one is nearer."""
_BESIDE = 8  # the number of bounds, of random lengths and of lengths at the end that a walk visits whatever they cost
_PARTS = (2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 48, 64)  # the numbers of parts into which work is usually split


def _rng(seed: int, *names: str) -> random.Random:
    return random.Random(int(digest("places/1", seed, list(names))[:15], 16))


def _powers(extent: int) -> set[int]:
    """Return the powers of two up to the extent, with both their neighbours."""
    return {n for power in range(extent.bit_length()) for n in ((1 << power) - 1, 1 << power, (1 << power) + 1)}


def _bounds(extent: int) -> set[int]:
    """Return both sides of powers of two and of equal parts, exact or in whole sixteens, as counts up to the extent."""
    marks = set[int]()
    for parts in _PARTS:
        share = -(-extent // parts)
        marks |= {share, extent - share, share * (parts // 2), -(-share // 16) * 16, share // 16 * 16}
    return _powers(extent) | {n for mark in marks for n in (mark - 1, mark, mark + 1)}


def lengths(context: int, most: int, seed: int) -> tuple[int, ...]:
    """Return ascending lengths in 1 … `context`, all of them if there are at most `most`.

    Otherwise the small ones, a period near the first scale and the last one, the bounds of parts, and random ones.
    """
    if context <= most:
        return tuple(range(1, context + 1))
    rng, low = _rng(seed, "lengths"), min(_SCALE, context // 2)
    wanted = list(range(1, SMALL + 1))
    wanted += [*range(context - _PERIOD, context + 1), *range(low, low + _PERIOD), *_spread(_bounds(context), rng)]
    return _fitting(wanted, 1, context, most, rng)


def visited(context: int, most: int, budget: float, seed: int) -> tuple[int, ...]:
    """Return ascending lengths in 1 … `context` of a walk over a cache, whose launches cost what their lengths do.

    All of them where they are at most `most` and their sum is within `budget`. Otherwise the small ones, both sides of
    powers of two, every residue of a period at the first scale and at the end of the cache; then bounds of parts while
    the sum is within a multiple of the budget, and random ones while it is within the budget; a few of both always.
    Where the period at the end is beyond that multiple, a nearer one stands for it, and few lengths are at the end.
    """
    if context <= most and context * (context + 1) / 2 <= budget:
        return tuple(range(1, context + 1))
    rng, low = _rng(seed, "visited"), min(_SCALE, context // 2)
    chosen = {n for n in (*range(1, SMALL + 1), *range(low, low + _PERIOD), *_powers(context)) if 1 <= n <= context}
    chosen |= _last(context, low, _ALWAYS * budget - sum(chosen), rng)
    for others, limit in ((_bounds(context), _ALWAYS * budget), (range(1, context + 1), budget)):
        places = [n for n in _spread(others, rng) if 1 <= n <= context and n not in chosen]
        room, spent = most - len(chosen), sum(chosen)
        for at, n in enumerate(places):
            if at >= _BESIDE and (at >= room or spent >= limit):
                break
            chosen.add(n)
            spent += n
    return tuple(sorted(chosen))


def _last(context: int, low: int, left: float, rng: random.Random) -> set[int]:
    """Return every residue of a period at the end of a cache; a nearer one and a few of it, where it costs too much."""
    end = range(max(1, context - _PERIOD), context + 1)
    if sum(end) <= left or low < _SCALE:
        return set(end)
    near = max(2 * low, min(context, int(left / (2 * _PERIOD))) - _PERIOD)
    few = max(_BESIDE, int(left / 2 / context))
    return {*range(near, near + _PERIOD), context, *rng.sample(end[:-1], min(few, len(end)) - 1)}


def _spread(places: Iterable[int], rng: random.Random) -> list[int]:
    """Return the places in random order: so that what there is no room for is not always the same."""
    found = sorted(places)
    rng.shuffle(found)
    return found


def rows(extent: int, most: int, seed: int) -> tuple[int, ...]:
    """Return rows of a table, all of them if there are at most `most`.

    Otherwise both ends, every residue of a period (at a random place, in the last period, and in the upper half), the
    bounds of parts, and random ones.
    """
    if extent <= most:
        return tuple(range(extent))
    rng = _rng(seed, "rows")
    wanted = [0, extent - 1, 1, extent - 2, *range(max(0, extent - _PERIOD), extent)]
    wanted += [residue + _PERIOD * rng.randrange(max(1, (extent - residue) // _PERIOD)) for residue in range(_PERIOD)]
    half = extent // 2
    wanted += [half + (residue + _PERIOD * rng.randrange(max(1, half // _PERIOD))) % half for residue in range(_PERIOD)]
    return _fitting([*wanted, *_spread(_bounds(extent), rng)], 0, extent - 1, most, rng)


def _fitting(wanted: list[int], low: int, high: int, most: int, rng: random.Random) -> tuple[int, ...]:
    """Return the first places of `wanted` that are within bounds, at most three quarters of `most`, and random ones."""
    chosen = list(dict.fromkeys(n for n in wanted if low <= n <= high))[: max(1, most - most // 4)]
    left = sorted(set(range(low, high + 1)) - set(chosen)) if high < 1 << 20 else None
    count = most - len(chosen)
    fresh = (
        rng.sample(left, min(count, len(left))) if left is not None else [rng.randint(low, high) for _ in range(count)]
    )
    return tuple(sorted({*chosen, *fresh}))


def starts(context: int, tokens: int, most: int, budget: float, seed: int) -> tuple[tuple[int, ...], ...]:
    """Return the first positions of the launches of some walks over a cache, ascending.

    A decode step has one walk over the lengths that are `visited` within `budget`. A chunk has several walks that begin
    at different slots; the last one ends with the cache.
    """
    if tokens == 1:
        return (tuple(n - 1 for n in visited(context, most, budget, seed)),)
    last = context - tokens
    if last < 0:
        return ()
    rng = _rng(seed, "chunks")
    offsets = [0, 1, tokens - 1, rng.randrange(tokens), last % tokens]
    return tuple(tuple(range(offset, last + 1, tokens)) for offset in dict.fromkeys(offsets) if offset <= last)


def chunks(slots: int, longest: int, seed: int) -> tuple[tuple[int, int], ...]:
    """Return chunks as (first position, tokens), of every length that is tested up to `longest`, in random order.

    They begin anywhere in a cache of `slots`: at random positions, behind few slots, beside multiples of a period, and
    at the first. They end anywhere too: beside multiples of a period, and with the cache. Those of the small lengths
    are the first.
    """
    rng, found = _rng(seed, "lengths and starts"), list[tuple[int, int]]()
    for at, tokens in enumerate(lengths(longest, CHUNK_LENGTHS, seed)):
        last = slots - tokens
        side = rng.randint(-1, 1)
        beside = _PERIOD * rng.randint(0, last // _PERIOD) + side
        whole = -(-tokens // _PERIOD)
        ended = _PERIOD * rng.randint(whole, max(whole, slots // _PERIOD)) + side - tokens
        behind_few = rng.randint(1, SMALL)
        begin = (rng.randint(0, last), beside, ended, behind_few, last if at % 10 == 4 else 0)[at % 5]
        found.append((min(max(begin, 0), last), tokens))
    rng.shuffle(found)
    return tuple(sorted(found, key=lambda chunk: chunk[1] > SMALL))
