"""Which places acceptance visits beside its cases: positions of a cache, rows of a table.

A kernel splits its work at sizes that nobody here knows, so the places are all that fit the budget: every small one,
every residue of 64 at two scales, both sides of the bounds at which work is usually split, and random ones, fresh for
every seed.
"""

from __future__ import annotations

import random

from agentcompile.ir.digest import digest

_SMALL = 66
"""Up to here every length is tried: one more than the widest step of a vector unit or a tile, and both its sides."""
_PERIOD = 64
_SCALE = 1024
"""About the first of the two scales; the second is the end."""
_PARTS = (2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 48, 64)
"""Into how many parts work is usually split."""


def _rng(seed: int, *names: str) -> random.Random:
    return random.Random(int(digest("places/1", seed, list(names))[:15], 16))


def _bounds(extent: int) -> set[int]:
    """Both sides of the powers of two and of equal parts, exact or of whole sixteens, as counts up to `extent`."""
    marks = {1 << n for n in range(extent.bit_length())}
    for parts in _PARTS:
        share = -(-extent // parts)
        marks |= {share, extent - share, share * (parts // 2), -(-share // 16) * 16, share // 16 * 16}
    return {n for mark in marks for n in (mark - 1, mark, mark + 1)}


def lengths(context: int, most: int, seed: int) -> tuple[int, ...]:
    """Ascending lengths 1 … context, all of them if they are no more than `most`; else the small ones, a period about
    the first scale and the last one, the bounds of parts, and random ones."""
    if context <= most:
        return tuple(range(1, context + 1))
    rng, low = _rng(seed, "lengths"), min(_SCALE, context // 2)
    wanted = list(range(1, _SMALL + 1))
    wanted += [*range(context - _PERIOD, context + 1), *range(low, low + _PERIOD), *sorted(_bounds(context))]
    return _fitting(wanted, 1, context, most, rng)


def rows(extent: int, most: int, seed: int) -> tuple[int, ...]:
    """Rows of a table, all if they are no more than `most`; else both ends, every residue of a period at a random
    place, in the last period and in the upper half, the bounds of parts, and random ones."""
    if extent <= most:
        return tuple(range(extent))
    rng = _rng(seed, "rows")
    wanted = [0, extent - 1, 1, extent - 2, *range(max(0, extent - _PERIOD), extent)]
    wanted += [residue + _PERIOD * rng.randrange(max(1, (extent - residue) // _PERIOD)) for residue in range(_PERIOD)]
    half = extent // 2
    wanted += [half + (residue + _PERIOD * rng.randrange(max(1, half // _PERIOD))) % half for residue in range(_PERIOD)]
    return _fitting([*wanted, *sorted(_bounds(extent))], 0, extent - 1, most, rng)


def _fitting(wanted: list[int], low: int, high: int, most: int, rng: random.Random) -> tuple[int, ...]:
    """The first `most` of what is wanted, of what lies within bounds; the rest of them random."""
    chosen = list(dict.fromkeys(n for n in wanted if low <= n <= high))[: max(1, most - most // 4)]
    left = sorted(set(range(low, high + 1)) - set(chosen)) if high < 1 << 20 else None
    count = most - len(chosen)
    fresh = rng.sample(left, min(count, len(left))) if left is not None else [rng.randint(low, high) for _ in range(count)]
    return tuple(sorted({*chosen, *fresh}))


def starts(context: int, tokens: int, most: int, seed: int) -> tuple[tuple[int, ...], ...]:
    """First positions of the launches of some walks over a cache, ascending: of a decode step one walk over `lengths`,
    of a chunk several that begin at different slots, the last of which ends with the cache."""
    if tokens == 1:
        return (tuple(n - 1 for n in lengths(context, most, seed)),)
    last = context - tokens
    if last < 0:
        return ()
    rng = _rng(seed, "chunks")
    offsets = [0, 1, tokens - 1, rng.randrange(tokens), last % tokens]
    return tuple(tuple(range(offset, last + 1, tokens)) for offset in dict.fromkeys(offsets) if offset <= last)
