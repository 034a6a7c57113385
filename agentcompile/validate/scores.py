"""Caches with chosen scores, which test how far and how exactly a kernel's exponential is right.

Only one feature of the keys is not zero, so that the scores of one query of every group, its lead, have the wanted
values. A ladder has scores from the largest down to where no weight is left. Balanced values cancel: the weighted
values of three slots add up to zero, and still do when all scores are scaled, as a rounded query scales them. What is
left is the error of the exponential itself, which a result far from zero would hide in its own rounding. Edges are
balanced values of slots on either side of the point where an exponential takes the next power of two; there its error
is largest, with opposite signs on the two sides. On ridges the error is the same on both sides: there one slot of three
lies at such a point, or one whole power further, and the other two lie where a polynomial is accurate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

_DEEPEST = 216.0
"""The end of the ladder: float32 has no weight below e^-104, and two exponents make no power below 2^-300."""
_HALF = math.log(2.0) / 2.0  # the distance of the first edge below the largest score
_NEAR = (0.002, 0.004)
"""The distance of slots from the edge: a query that is rounded to bf16 moves the largest score by at most 0.0014."""
_LONGEST = 48.0
"""The most that the lengths of key and query multiply to, in dot products; rounding moves a query by 1/512."""
_FEWEST = {"ladder": 3, "balanced": 3, "edges": 5, "ridges": 5}  # the number of old slots that each kind needs


def chosen(
    keys: Tensor,
    values: Tensor,
    query: Tensor,
    *,
    scale: float,
    lengths: Sequence[int],
    how: str,
    place: float,
    rng: torch.Generator,
) -> None:
    """Write the old slots of caches [B, kv_heads, context, D] for queries [B, heads, D] in float64.

    `how` is ``ladder``, ``balanced``, ``edges`` or ``ridges``. `place`, plus the head's own share, shifts a ladder by
    that part of a step, and from 0.5 on shuffles it.
    """
    kv_heads, width = keys.shape[1], keys.shape[3]
    group = query.shape[1] // kv_heads
    for b, length in enumerate(lengths):
        old = length - 1
        for head in range(kv_heads if old >= _FEWEST[how] else 0):
            lead = query[b, head * group + head % group]
            at = int(lead.abs().argmax())
            unit = float(lead[at]) * scale
            if unit == 0.0:
                continue
            if how == "ladder":
                wanted = _ladder(old, place + head / kv_heads, rng).double()
            elif how == "balanced":
                wanted = -torch.rand(old, generator=rng).double()
            elif how == "ridges":
                wanted = _ridges(old, rng)
            else:
                top = float(torch.tensor(_HALF / unit, dtype=torch.float64).to(keys.dtype)) * unit
                wanted = _edges(old, top, rng)
            keys[b, head, :old] = 0.0
            keys[b, head, :old, at] = (wanted / unit).to(keys.dtype)
            if how != "ladder":
                scores = keys[b, head, :old, at].double() * unit
                make = {"balanced": _balanced, "edges": _opposed, "ridges": _ridged}[how]
                values[b, head, :old] = make(scores, width, rng).to(values.dtype)


def unturned(y: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return in float64 the x that `rope` turns into y [..., D]; cos and sin are broadcast to it.

    The halves turn by different angles, so this is no inverse rotation. It solves y₁ = x₁·cos₁ − x₂·sin₁ and y₂ =
    x₂·cos₂ + x₁·sin₂, whose determinant is the cosine of the difference of the angles.
    """
    (y1, y2), (cos1, cos2), (sin1, sin2) = (tensor.double().chunk(2, dim=-1) for tensor in (y, cos, sin))
    determinant = cos1 * cos2 + sin1 * sin2
    return torch.cat(((cos2 * y1 + sin1 * y2) / determinant, (cos1 * y2 - sin2 * y1) / determinant), dim=-1)


def met_alike(queries: Tensor, kv_heads: int, product: float) -> Tensor:
    """Return the shortest keys [B, kv_heads, D] whose product with each query [B, heads, D] of the group is `product`.

    Where queries point in opposite directions or outnumber their elements, there may be no such key, or only one so
    long that a rounded query moves the product by a tenth. The key is then zero.
    """
    grouped = queries.view(queries.shape[0], kv_heads, -1, queries.shape[-1])  # [B, kv_heads, group, D]
    wanted = torch.full((*grouped.shape[:3], 1), product, dtype=queries.dtype)
    keys = torch.linalg.pinv(grouped, rtol=1e-3) @ wanted
    met = (grouped @ keys).amin(dim=(2, 3), keepdim=True) >= product / 2
    longest = grouped.norm(dim=-1, keepdim=True).amax(dim=2, keepdim=True) * keys.norm(dim=2, keepdim=True)
    return torch.where(met & (longest <= _LONGEST * product), keys, 0.0).squeeze(-1)


def _ladder(count: int, shift: float, rng: torch.Generator) -> Tensor:
    """Return scores from zero down; the first one is zero whatever the shift."""
    steps = torch.arange(count) + shift % 1.0
    steps[0] = 0.0
    return -_DEEPEST / count * (steps[torch.randperm(count, generator=rng)] if shift >= 0.5 else steps)


def _balanced(scores: Tensor, width: int, rng: torch.Generator) -> Tensor:
    """Return values [slots, width], three in each column, for which the sums of e^s·v and of e^s·s·v are zero."""
    return _of_three(scores, torch.rand(width, len(scores), generator=rng).argsort(1)[:, :3])


def _of_three(scores: Tensor, three: Tensor) -> Tensor:
    """Return values as `_balanced` does, at the given slots [width, 3] of every column."""
    width, s = len(three), scores[three]
    parts = s.roll(-1, 1) - s.roll(-2, 1)
    parts = parts / parts.abs().amax(1, keepdim=True).clamp(min=1e-6)
    return torch.zeros(len(scores), width, dtype=torch.float64).scatter_(0, three.T, (parts / s.exp()).T)


def _ridges(count: int, rng: torch.Generator) -> Tensor:
    """Return scores [slots]: zero, then in turn a half and a whole power of two below it, near it, and two below."""
    near = 0.02 * (torch.rand(count, generator=rng).double() - 0.5)
    turn = torch.arange(count) % 4
    wanted = near - torch.tensor((1.0, 2.0, 0.1, 4.0), dtype=torch.float64)[turn] * _HALF
    wanted[0] = 0.0
    return wanted


def _ridged(scores: Tensor, width: int, rng: torch.Generator) -> Tensor:
    """Return values [slots, width], three a column: a half or whole power below the largest score, near it, far off."""
    picks = [_drawn_slots(len(scores), which, width, rng) for which in ((0, 1), (2,), (3,))]
    return _of_three(scores, torch.stack(picks, dim=1))


def _drawn_slots(count: int, kinds: Sequence[int], width: int, rng: torch.Generator) -> Tensor:
    """Draw one slot [width] for each column from those of some of the four kinds, which take turns; never the first."""
    there = torch.isin(torch.arange(count) % 4, torch.tensor(kinds)).nonzero().view(-1)
    there = there[there > 0]
    return there[torch.randint(0, len(there), (width,), generator=rng)]


def _edges(count: int, top: float, rng: torch.Generator) -> Tensor:
    """Return scores [slots]: `top`, then in turn just below the edge, just above it, and two sizes far below."""
    low, high = _NEAR
    near = low + (high - low) * torch.rand(count, generator=rng).double()
    far = 0.4 + 0.2 * torch.rand(count, generator=rng).double()
    turn = torch.arange(count) % 4
    scores = torch.stack((top - _HALF - near, top - _HALF + near, -far, -2.0 * far))
    wanted = scores.gather(0, turn[None])[0]
    wanted[0] = top
    return wanted


def _opposed(scores: Tensor, width: int, rng: torch.Generator) -> Tensor:
    """Return values [slots, width], two opposite and two small a column: sums of e^s·v and e^s·s·v are zero."""
    slots = [_drawn_slots(len(scores), (which,), width, rng) for which in range(4)]
    # A size that every dtype holds exactly, so that opposite values stay exactly opposite.
    size = torch.randn(width, generator=rng).to(torch.bfloat16).double()
    below, above, far, farther = (scores[some] for some in slots)
    missing = size * (above.exp() - below.exp()), size * (above.exp() * above - below.exp() * below)
    first = (missing[0] * farther - missing[1]) / (farther - far)
    second = (missing[1] - missing[0] * far) / (farther - far)
    made = torch.stack((size, -size, first / far.exp(), second / farther.exp()))
    return torch.zeros(len(scores), width, dtype=torch.float64).scatter_(0, torch.stack(slots), made)
