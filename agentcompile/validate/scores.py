"""Caches whose scores are chosen numbers: how far and how exactly a kernel's exponential is right.

One feature of the keys alone is not zero, so that the scores of one query of every group, its lead, are what is wanted.
A ladder has scores from the largest down to where nothing is left of a weight. Balanced values cancel: of three slots
the weighted values add up to zero, and stay there when all scores are scaled, as a rounded query scales them. What is
left is the error of the exponential itself, which a result far from zero would hide in its own rounding.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_DEEPEST = 216.0
"""The end of the ladder: float32 has no weight below e^-104, and two exponents make no power below 2^-300."""


def chosen(
    keys: Tensor,
    values: Tensor,
    query: Tensor,
    *,
    scale: float,
    lengths: Sequence[int],
    place: float | None,
    rng: torch.Generator,
) -> None:
    """Write the old slots of caches [B, kv_heads, context, D] for queries [B, heads, D] in float64.

    `place`, with a head's own share added, shifts a ladder by that part of a step, and from 0.5 on shuffles it; None is
    for balanced values.
    """
    kv_heads, width = keys.shape[1], keys.shape[3]
    group = query.shape[1] // kv_heads
    for b, length in enumerate(lengths):
        old = length - 1
        for head in range(kv_heads if old >= 3 else 0):
            lead = query[b, head * group + head % group]
            at = int(lead.abs().argmax())
            unit = float(lead[at]) * scale
            if unit == 0.0:
                continue
            wanted = (
                _ladder(old, place + head / kv_heads, rng) if place is not None else -torch.rand(old, generator=rng)
            )
            keys[b, head, :old] = 0.0
            keys[b, head, :old, at] = (wanted.double() / unit).to(keys.dtype)
            if place is None:
                scores = keys[b, head, :old, at].double() * unit
                values[b, head, :old] = _balanced(scores, width, rng).to(values.dtype)


def _ladder(count: int, shift: float, rng: torch.Generator) -> Tensor:
    """Scores from zero down, the first of them zero whatever the shift."""
    steps = torch.arange(count) + shift % 1.0
    steps[0] = 0.0
    return -_DEEPEST / count * (steps[torch.randperm(count, generator=rng)] if shift >= 0.5 else steps)


def _balanced(scores: Tensor, width: int, rng: torch.Generator) -> Tensor:
    """Values [slots, width], three a column, with sums of e^s·v and of e^s·s·v that are zero."""
    three = torch.rand(width, len(scores), generator=rng).argsort(1)[:, :3]
    s = scores[three]
    parts = s.roll(-1, 1) - s.roll(-2, 1)
    parts = parts / parts.abs().amax(1, keepdim=True).clamp(min=1e-6)
    return torch.zeros(len(scores), width, dtype=torch.float64).scatter_(0, three.T, (parts / s.exp()).T)
