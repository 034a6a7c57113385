"""Numbers as in trained models, unlike any normal draw: every channel and every row has its own size.

Activations have heavy tails, a mean, zeros or one sign; weights, gains, tables and cache entries range from thousandths
to hundreds. These inputs reveal a kernel that clamps, drops what is small beside the largest, holds a weight in fewer
bits, or is less exact where inputs do not look like a test's.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

UNEVEN = 7
"""The draw of parameters whose channels and rows have their own sizes."""
_HEAVY = 32  # one channel in this many is far larger than its neighbours
_KEY_CHANNELS = 3


def _sizes(count: int, low: float, high: float, rng: torch.Generator) -> Tensor:
    """Return powers of ten between `low` and `high`, evenly distributed in the exponent."""
    return torch.pow(10.0, low + (high - low) * torch.rand(count, generator=rng))


def _tailed(x: Tensor, rng: torch.Generator) -> Tensor:
    return x * torch.exp(torch.randn(x.shape, generator=rng))


def _massive(x: Tensor, rng: torch.Generator) -> Tensor:
    """Scale a few channels to thousands and leave the others near one."""
    x = x.clone()
    count = max(1, x.shape[-1] // 128)
    x[..., torch.randperm(x.shape[-1], generator=rng)[:count]] *= 3000.0
    return x


LOOKS: tuple[Callable[[Tensor, torch.Generator], Tensor], ...] = (
    _tailed,
    lambda x, _: x + 0.7,
    lambda x, rng: torch.where(torch.rand(x.shape, generator=rng) < 0.5, 0.0, x),
    lambda x, rng: _tailed(x, rng).abs(),
    lambda x, rng: _tailed(x, rng) * 1e-5,
    _massive,
)
"""The distributions of an activation; a case's place selects one."""
_TALL = (0, 3, 5)  # those with numbers so large that a score of them would hide others
PLACES = tuple(at / (len(LOOKS) - 1) for at in range(len(LOOKS)))


def worn(shape: tuple[int, ...], place: float, rng: torch.Generator, *, scored: bool) -> Tensor:
    """Return an activation; a query or key (`scored`) keeps its size, so that no score hides others."""
    look = round(place * (len(LOOKS) - 1))
    x = torch.randn(shape, generator=rng)
    return x * 0.5 if scored and look in _TALL else LOOKS[look](x, rng)


def uneven(drawn: Tensor, rng: torch.Generator, *, norm: bool, scored: bool, matrix: bool) -> Tensor:
    """Return the drawn parameters with their own sizes per channel.

    They apply to a gain's channels, a matrix's rows and some of its columns, or a table's columns. A gain of queries or
    keys stays near one.
    """
    width = drawn.shape[-1]
    if norm:
        return drawn * (_sizes(width, -0.5, 0.5, rng) if scored else _sizes(width, -2.0, 1.5, rng)).to(drawn.dtype)
    if not matrix:
        return drawn * _sizes(width, -3.0, 2.0, rng).to(drawn.dtype)
    columns = torch.where(torch.rand(width, generator=rng) < 1.0 / _HEAVY, 30.0, 1.0)
    columns[torch.randint(0, width, (1,), generator=rng)] = 30.0
    rows = _sizes(drawn.shape[0], -3.0, 1.5, rng)[:, None]
    return (drawn * columns.to(drawn.dtype)) * rows.to(drawn.dtype)


def past(shape: tuple[int, ...], rng: torch.Generator, *, value: bool) -> Tensor:
    """Return a cache [B, kv_heads, context, D]: a few key channels are large, every value channel has its own size."""
    cache, width = torch.randn(shape, generator=rng), shape[-1]
    for head in range(shape[1]):
        if value:
            cache[:, head] *= _sizes(width, -3.0, 2.5, rng)
        else:
            channels = torch.randperm(width, generator=rng)[:_KEY_CHANNELS]
            cache[:, head, :, channels] *= 10.0 + 20.0 * torch.rand(len(channels), generator=rng)
    return cache
