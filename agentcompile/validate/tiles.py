"""Random numbers of any shape, quickly: a large tensor repeats a tile, which costs memory bandwidth alone."""

from __future__ import annotations

import math

import torch
from torch import Tensor

TILE = (1 << 20) + 7
"""Elements drawn for a large tensor; the tile is prime, so that no two rows are equal."""


def normal(shape: tuple[int, ...], scale: float, rng: torch.Generator) -> Tensor:
    """Normal numbers; large tensors repeat a tile."""
    count = math.prod(shape)
    drawn = torch.randn(min(count, TILE), generator=rng) * scale
    return _tiled(drawn if count <= TILE else telling(drawn.to(torch.bfloat16)), count).view(shape)


def telling(tensor: Tensor) -> Tensor:
    """No zeros and no ones: leaving out a parameter that is one of them would not show."""
    return torch.where((tensor == 0) | (tensor == 1), torch.tensor(0.59375, dtype=tensor.dtype), tensor)


def whole(shape: tuple[int, ...], low: int, high: int, rng: torch.Generator) -> Tensor:
    """Integers from low to high, both included and zero left out, as floats; large tensors repeat a tile."""
    count = math.prod(shape)
    drawn = torch.randint(low, high, (min(count, TILE),), generator=rng)
    return _tiled((drawn + (drawn >= 0)).to(torch.bfloat16), count).view(shape)


def _tiled(tile: Tensor, count: int) -> Tensor:
    """`tile` over and over: this costs memory bandwidth only."""
    if count <= tile.numel():
        return tile
    out = torch.empty(count, dtype=tile.dtype)
    times = count // tile.numel()
    out[: times * tile.numel()].view(times, -1).copy_(tile)
    out[times * tile.numel() :] = tile[: count - times * tile.numel()]
    return out
