"""Float64 attention of many single queries over one cache, each at its own position: the reference of a walk.

The first-order errors are those of `attention`, with |v_j − y| bounded by |v_j| + |y|, so that everything is a matrix
product. That bound is loose where scores are uncertain, but a walk's queries are zero or peaked, where they are not.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from agentcompile.validate.attention import SATURATED
from agentcompile.validate.bound import Bounded, Part
from agentcompile.validate.tolerance import rounding

_BLOCK = 1 << 18  # the number of scores that are held at a time
_BLOCK_OF_GPU = 1 << 23  # the same on a GPU, where small blocks take as long to launch as to compute


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """The attributes of attention and the accuracy of its arithmetic."""

    scale: float
    window: int
    coefficient: float
    inside: str
    """The dtype to which probabilities are rounded; empty for a kernel that keeps float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Young:
    """The errors [slots, D] of entries that a launch appends; those of the last `reach` slots count for a query."""

    keys: Tensor
    values: Tensor
    reach: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """One KV head: the slots [slots, D] in float64, and the entry [M, D] of each query's token, with its errors.

    Where a launch appends several, `young` are the errors of those before a query's own.
    """

    keys: Tensor
    values: Tensor
    own_key: Bounded
    own_value: Bounded
    young: Young | None = None


def attended(q: Bounded, past: Past, at: Tensor, told: Told) -> Bounded:
    """Attend with queries [M, G, D] of one group to the slots up to their positions `at` [M], in any order."""
    order, most = at.argsort(), _BLOCK_OF_GPU if q.value.is_cuda else _BLOCK
    parts = []
    # In ascending order, so that blocks of short queries do not pay for long ones.
    for some in torch.split(order, max(1, most // ((int(at.max()) + 1) * q.value.shape[1]))):
        parts.append(_block(q.map(lambda t, some=some: t[some]), past, some, at[some], told))  # type: ignore[misc]
    back = order.argsort()
    value, accumulated, rounded = (torch.cat(each)[back] for each in zip(*parts, strict=True))
    # Only worst cases count: a variance this large never lowers the bound.
    return Bounded(value, accumulated, rounded, rounded.square())


def _block(q: Bounded, past: Past, some: Tensor, at: Tensor, told: Told) -> tuple[Tensor, Tensor, Tensor]:
    slots = int(at.max()) + 1
    keys, values, own = past.keys[:slots], past.values[:slots], at[:, None, None]
    own_key, own_value = (one.map(lambda t: t[some, None]) for one in (past.own_key, past.own_value))
    wide, size = q.wide(), abs(told.scale)
    places = torch.arange(slots)
    seen = places <= at[:, None]
    if told.window:
        seen = seen & (places > at[:, None] - told.window)
    hidden = ~seen[:, None, :]

    def put(table: Tensor, mine: Tensor) -> Tensor:
        """Return `table` [M, G, slots] with the newest slot's column taken from the entry being appended."""
        return table.scatter(2, own.expand(*table.shape[:2], 1), mine.expand(*table.shape[:2], 1))

    def dot(a: Tensor, table: Tensor, mine: Tensor) -> Tensor:
        return put(a @ table.T, (a * mine).sum(-1, keepdim=True))

    p = torch.softmax((dot(wide, keys, own_key.wide()) * told.scale).masked_fill(hidden, -torch.inf), dim=-1)
    mine = p.gather(2, own.expand(*p.shape[:2], 1))

    def weighed(weights: Tensor, table: Tensor, fresh: Tensor) -> Tensor:
        its = weights.gather(2, own.expand(*p.shape[:2], 1))
        return weights @ table + its * (fresh - table[at][:, None])

    y = weighed(p, values, own_value.wide())
    sizes, size_own, absolute = keys.abs(), own_key.wide().abs(), wide.abs()
    shift = told.coefficient * size * dot(absolute, sizes, size_own)
    wobble = torch.zeros_like(shift)
    if q.accumulated is not None:
        shift = shift + size * dot(q.accumulated, sizes, size_own)
    if q.rounded is not None:
        wobble = wobble + size * dot(q.rounded, sizes, size_own)
    shift, wobble = (
        put(table, table.gather(2, own.expand(*p.shape[:2], 1)) + size * _inner(absolute, part))
        for table, part in ((shift, own_key.accumulated), (wobble, own_key.rounded))
    )
    young = _young(past.young, at, slots)
    if young is not None:
        wobble = wobble + size * (absolute @ young[0].T) * young[2]
    largest = torch.maximum(values.abs().cummax(0).values[at], own_value.wide().abs()[:, 0])[:, None] + y.abs()

    def moved(off: Tensor) -> Tensor:
        top = off.masked_fill(p == 0.0, 0.0).amax(dim=-1, keepdim=True)
        weights = p * torch.expm1(off.clamp(max=SATURATED)) * torch.exp(top.clamp(max=SATURATED))
        far = weighed(weights, values.abs(), own_value.wide().abs()) + weights.sum(-1, keepdim=True) * y.abs()
        return torch.minimum(far, largest)

    accumulated = moved(shift) + told.coefficient * weighed(p, values.abs(), own_value.wide().abs())
    accumulated = accumulated + mine * _or_zero(own_value.accumulated)
    rounded = moved(wobble) + mine * _or_zero(own_value.rounded)
    if young is not None:
        rounded = rounded + (p * young[2]) @ young[1]
    if told.inside:
        rounded = rounded + weighed(rounding(p, told.inside), values.abs(), own_value.wide().abs())
    return y, accumulated, rounded


def _young(young: Young | None, at: Tensor, slots: int) -> tuple[Tensor, Tensor, Tensor] | None:
    """Return the errors of keys and values [slots, D], and for which queries each slot has them, [M, 1, slots]."""
    if young is None:
        return None
    places = torch.arange(slots)
    near = (places < at[:, None]) & (places > at[:, None] - young.reach)
    return young.keys[:slots], young.values[:slots], near[:, None].double()


def _inner(a: Tensor, part: Part) -> Tensor | float:
    return 0.0 if part is None else (a * part).sum(-1, keepdim=True)


def _or_zero(part: Part) -> Tensor | float:
    return 0.0 if part is None else part
