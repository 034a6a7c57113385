"""Fast random numbers of any shape: a large tensor repeats a tile, which costs only memory bandwidth."""

from __future__ import annotations

import math

import torch
from torch import Tensor

TILE = (1 << 20) + 7
"""The number of elements drawn for a large tensor; it is prime, so that no two rows are equal."""


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
