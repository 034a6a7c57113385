"""Numbers as trained models have them, which no normal draw looks like: every channel, every row has a size of its own.

Activations have heavy tails, a mean, zeros, one sign; weights, gains and tables are from thousandths to hundreds, and
what lies in a cache is, too. A kernel that clamps, that leaves out what is small beside the largest, that holds a
weight in fewer bits, or that is less exact where inputs do not look like a test's, is wrong here.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

UNEVEN = 7
"""The draw of parameters whose channels and rows have sizes of their own."""
_HEAVY = 32
"""One channel in so many is far larger than its neighbours."""
_KEY_CHANNELS = 3


def _sizes(count: int, low: float, high: float, rng: torch.Generator) -> Tensor:
    """Powers of ten between `low` and `high`, evenly."""
    return torch.pow(10.0, low + (high - low) * torch.rand(count, generator=rng))


def _tailed(x: Tensor, rng: torch.Generator) -> Tensor:
    return x * torch.exp(torch.randn(x.shape, generator=rng))


def _shifted(x: Tensor, _: torch.Generator) -> Tensor:
    return x + 0.7


def _half_zero(x: Tensor, rng: torch.Generator) -> Tensor:
    return torch.where(torch.rand(x.shape, generator=rng) < 0.5, 0.0, x)


def _positive(x: Tensor, rng: torch.Generator) -> Tensor:
    return _tailed(x, rng).abs()


def _tiny(x: Tensor, rng: torch.Generator) -> Tensor:
    return _tailed(x, rng) * 1e-5


def _massive(x: Tensor, rng: torch.Generator) -> Tensor:
    """A few channels of thousands, all else near one."""
    x = x.clone()
    count = max(1, x.shape[-1] // 128)
    x[..., torch.randperm(x.shape[-1], generator=rng)[:count]] *= 3000.0
    return x


LOOKS: tuple[Callable[[Tensor, torch.Generator], Tensor], ...] = (
    _tailed,
    _shifted,
    _half_zero,
    _positive,
    _tiny,
    _massive,
)
"""What an activation looks like; a case's place says which."""
PLACES = tuple(at / (len(LOOKS) - 1) for at in range(len(LOOKS)))


def worn(shape: tuple[int, ...], place: float, rng: torch.Generator, *, scored: bool) -> Tensor:
    """An activation. Of one that is `scored`, a query's or a key's, the size stays, so that no score hides others."""
    look = LOOKS[round(place * (len(LOOKS) - 1))]
    x = torch.randn(shape, generator=rng)
    if scored and look in (_tailed, _massive, _positive):
        return x * 0.5
    return look(x, rng)


def uneven(drawn: Tensor, rng: torch.Generator, *, norm: bool, scored: bool, matrix: bool) -> Tensor:
    """Drawn parameters with sizes of their own: a gain's channels, a matrix's rows and some of its columns, a table's
    columns; a gain of queries or keys stays near one."""
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
    """A cache [B, kv_heads, context, D]: of keys a few channels are large, of values each has its own size."""
    cache, width = torch.randn(shape, generator=rng), shape[-1]
    for head in range(shape[1]):
        if value:
            cache[:, head] *= _sizes(width, -3.0, 2.5, rng)
        else:
            channels = torch.randperm(width, generator=rng)[:_KEY_CHANNELS]
            cache[:, head, :, channels] *= 10.0 + 20.0 * torch.rand(len(channels), generator=rng)
    return cache
