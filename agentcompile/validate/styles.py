"""The activations of each style, and fast random numbers: large tensors repeat a tile at memory bandwidth."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from agentcompile.validate.cases import Case
from agentcompile.validate.tolerance import ROUNDOFF

TILE = (1 << 20) + 7
"""The number of elements drawn for a large tensor; it is prime, so that no two rows are equal."""
_LEVEL = 64.0
"""A power of two large enough that a norm's eps does not count: the norm's result is its weight, of either sign."""


def bends(shape: tuple[int, ...], rng: torch.Generator) -> Tensor:
    """Return numbers of either sign next to multiples of ln 2 / 2, where a polynomial for exp is least accurate."""
    steps = torch.randint(1, 10, shape, generator=rng) * (math.log(2.0) / 2.0)
    near = steps + (torch.rand(shape, generator=rng) - 0.5) * 0.02
    return near * (torch.randint(0, 2, shape, generator=rng) * 2 - 1)


def single(shape: tuple[int, ...], rng: torch.Generator) -> Tensor:
    """Return a matrix [rows, hidden] with one weight per row, whose product with signed ones is exact in any order."""
    found = torch.zeros(shape)
    at = torch.randint(0, shape[1], (shape[0], 1), generator=rng)
    return found.scatter_(1, at, bends((shape[0], 1), rng))


def level(x: Tensor, *, normalised: bool) -> Tensor:
    """Return only the signs of `x`; with `normalised`, of a size beside which a norm's eps does not count."""
    return torch.where(x < 0, -1.0, 1.0) * (_LEVEL if normalised else 1.0)


def styled(shape: tuple[int, ...], case: Case, rng: torch.Generator) -> Tensor:
    """Return an activation in the case's style; the last dimension is the features."""
    x = torch.randn(shape, generator=rng)
    flat = x.view(-1, shape[-1]) if shape else x.view(1, 1)
    place = round(case.place * (flat.shape[1] - 1))
    if case.style == "small":
        return x * 1e-3
    if case.style == "tiny":  # still far below one after a norm, whose eps dominates the mean square
        return x * 1e-12
    if case.style == "large":
        return x * 60.0
    if case.style == "huge":
        return x * 1e4
    if case.style == "outliers":
        flat[:, torch.randint(0, flat.shape[1], (max(1, flat.shape[1] // 64),), generator=rng)] *= 200.0
    elif case.style == "impulse":
        only = flat[:, place].abs() + 0.5
        flat.zero_()
        flat[:, place] = only
    elif case.style == "last":
        flat[:, -1] = flat[:, -1].abs() * 100.0 + 50.0
    elif case.style == "constant":
        flat.fill_(float(torch.rand((), generator=rng)) + 0.31)
    elif case.style == "zeros":
        flat.zero_()
    elif case.style == "level":
        flat.copy_(torch.sign(flat) * _LEVEL)
    elif case.style == "exact":
        sparse = torch.rand(flat.shape, generator=rng) < min(1.0, 24.0 / flat.shape[1])
        sparse[:, 0] = sparse[:, -1] = True
        signs = torch.randint(0, 2, flat.shape, generator=rng) * 2 - 1
        flat.copy_(sparse * signs * torch.randint(1, 3, flat.shape, generator=rng))
    return x


def halved(shape: tuple[int, ...], place: float | None, dtype: str, rng: torch.Generator) -> Tensor:
    """Return integers of which a large and a small one often sum to half way between two numbers of `dtype`.

    `place` is the place of the only large one in every row, which a product sums; None scatters them.
    """
    least = int(1.0 / ROUNDOFF[dtype])  # from here to its double, dtype holds every second integer
    large = 2 * torch.randint(least // 2, least, shape, generator=rng)
    small = torch.randint(1, 4, shape, generator=rng)
    if place is None:
        found = torch.where(torch.rand(shape, generator=rng) < 0.5, large, small)
    else:
        found = small * (torch.rand(shape, generator=rng) < min(1.0, 24.0 / shape[-1]))
        at = round(place * (shape[-1] - 1))
        found[..., at] = large[..., at]
    return (found * (torch.randint(0, 2, shape, generator=rng) * 2 - 1)).float()


def normal(shape: tuple[int, ...], scale: float, rng: torch.Generator) -> Tensor:
    """Draw normal numbers; large tensors repeat a tile."""
    count = math.prod(shape)
    drawn = torch.randn(min(count, TILE), generator=rng) * scale
    return _tiled(drawn if count <= TILE else telling(drawn.to(torch.bfloat16)), count).view(shape)


def telling(tensor: Tensor) -> Tensor:
    """Replace zeros and ones: leaving out a parameter that is one of them would not show."""
    return torch.where((tensor == 0) | (tensor == 1), torch.tensor(0.59375, dtype=tensor.dtype), tensor)


def whole(shape: tuple[int, ...], low: int, high: int, rng: torch.Generator) -> Tensor:
    """Draw integers from `low` to `high`, inclusive and without zero, as floats; large tensors repeat a tile."""
    count = math.prod(shape)
    drawn = torch.randint(low, high, (min(count, TILE),), generator=rng)
    return _tiled((drawn + (drawn >= 0)).to(torch.bfloat16), count).view(shape)


def _tiled(tile: Tensor, count: int) -> Tensor:
    if count <= tile.numel():
        return tile
    out = torch.empty(count, dtype=tile.dtype)
    times = count // tile.numel()
    out[: times * tile.numel()].view(times, -1).copy_(tile)
    out[times * tile.numel() :] = tile[: count - times * tile.numel()]
    return out
