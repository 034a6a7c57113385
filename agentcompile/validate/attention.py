"""The error of attention: through scores, softmax and weighted sum, for some KV heads of one sequence at a time.

A shift δ_j of score j moves the output by Σ p_j (e^{δ_j} − 1)(v_j − y) / Σ p_j e^{δ_j}, because Σ p_j (v_j − y) = 0. So
the error of a score counts by the distance of its value from the result, and never for more than the farthest value.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from agentcompile.validate.bound import Bounded, Context, Part
from agentcompile.validate.tolerance import ROW_SPREAD, SPREAD, rounding

SATURATED = 30.0
"""The score error beyond which nothing is known; the bound is then the spread of the values."""
LINEAR = 0.25
"""The score error up to which a first-order variance holds. Beyond it another slot may win, which no slope tells."""
LOST = 2.0**-22
"""The weight below which a plain float32 sum may lose a slot whole, behind one that has most of the weight."""
_BLOCK = 1 << 20  # the elements of the [heads, rows, slots, D] distances that are held at a time: they stay in cache
_BLOCK_OF_GPU = 1 << 25  # the same on a GPU, where a small block takes as long to launch as to compute: 256 MB


def attention(ctx: Context, operands: tuple[Bounded, ...]) -> Bounded:
    """Compute softmax(scale·q·kᵀ + causal)·v with its error.

    q is [B, heads, T, D], the caches are [B, kv_heads, context, D]; heads are grouped (GQA).
    """
    q, k_cache = operands[0].value, operands[1].value
    group, width = q.shape[1] // k_cache.shape[1], q.shape[3]
    parts = []
    for b, at in enumerate(operands[3].value.reshape(q.shape[0], -1).long()):
        visible = _slots_of(at, k_cache.shape[2], int(ctx.told.get("window", 0)))
        most = _BLOCK_OF_GPU if q.is_cuda else _BLOCK
        masks, step = visible.repeat(group, 1), max(1, most // (visible.shape[1] * width))
        ends = (at + 1).clamp(max=visible.shape[1]).tolist() * group
        together = max(1, step // len(masks))  # the KV heads whose queries all fit into one block
        for heads in (slice(first, first + together) for first in range(0, k_cache.shape[1], together)):
            k, v = (_visible(ctx, operands, index, (b, heads), visible) for index in (1, 2))
            rows = _queries(operands[0], b, heads, group)
            for block in (slice(start, start + step) for start in range(0, len(masks), step)):
                some = rows.map(lambda t, block=block: t[:, block])  # type: ignore[misc]
                end = slice(0, max(ends[block]))  # slots that no query of the block sees cost as much as others
                keys, values = (one.map(lambda t, end=end: t[:, end]) for one in (k, v))  # type: ignore[misc]
                found = _rows(some, keys, values, masks[block, end], float(ctx.told["scale"]), ctx)
                parts.append([part.flatten(0, 1) for part in found])
    return Bounded(*(torch.cat(each).reshape(q.shape) for each in zip(*parts, strict=True)), shared=True)


def _queries(q: Bounded, sequence: int, heads: slice, group: int) -> Bounded:
    """Return the queries of some KV heads of a sequence: [KV heads, group · T, D]."""
    shape = q.value.shape
    own = slice(heads.start * group, heads.stop * group)
    return q.map(lambda t: t.expand(shape)[sequence, own].reshape(-1, group * shape[2], shape[3]))


def _slots_of(at: Tensor, context: int, window: int) -> Tensor:
    """Return which slots each query of a sequence sees, of those up to its last position: [T, slots]."""
    slots = torch.arange(min(int(at.max()) + 1, context))
    visible = slots[None, :] <= at[:, None]
    return visible & (slots[None, :] > at[:, None] - window) if window else visible


def _visible(
    ctx: Context, operands: tuple[Bounded, ...], index: int, where: tuple[int, slice], visible: Tensor
) -> Bounded:
    """Return heads' slots [heads, slots, D] in cache `index`: old ones exact, new ones with error and a rounding."""
    name, cache = ctx.node.inputs[index].value, operands[index].value
    append, dtype = ctx.out.appends.get(name), ctx.dtypes[name]
    value = cache[where][:, : visible.shape[1]].double()
    value[:, ~visible.any(0)] = 0.0  # a hidden slot may hold NaN, and 0·NaN would reach the result
    if append is None:
        return Bounded(value=value)
    new, span = append.new, slice(*append.spans[where[0]])
    fresh = new.wide()[where]
    value[:, span] = fresh
    step = torch.zeros_like(fresh) if new.value.dtype == cache.dtype else rounding(fresh.abs(), dtype)

    def spread(part: Part, own: Tensor | None) -> Tensor:
        full = torch.zeros_like(value)
        rows = torch.zeros_like(fresh) if part is None else part.expand(new.value.shape)[where]
        full[:, span] = rows if own is None else rows + own
        return full

    variance = spread(new.variance, step.square() / 3.0)
    return Bounded(value, spread(new.accumulated, None), spread(new.rounded, step), variance)


def _rows(
    q: Bounded, k: Bounded, v: Bounded, visible: Tensor, scale: float, ctx: Context
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Attend with some queries [heads, rows, D] of each head's group to its slots [heads, slots, D].

    `visible` is [rows, slots].
    """
    wide, size = q.wide(), abs(scale)
    scores = (wide @ k.value.mT) * scale
    log_p = torch.log_softmax(scores.masked_fill(~visible, -torch.inf), dim=-1)
    p = log_p.exp()
    y = p @ v.value if bool(v.value.isfinite().all()) else _weighed(p, v.value, visible)
    shift = ctx.coefficient * size * (wide.abs() @ k.value.abs().mT)
    if q.accumulated is not None:
        shift = shift + size * (q.accumulated.expand_as(wide) @ k.value.abs().mT)
    if k.accumulated is not None:
        shift = shift + size * (wide.abs() @ k.accumulated.mT)
    wobble = torch.zeros_like(shift)
    if q.rounded is not None:
        wobble = wobble + size * (q.rounded.expand_as(wide) @ k.value.abs().mT)
    if k.rounded is not None:
        wobble = wobble + size * (wide.abs() @ k.rounded.mT)
    likely = torch.minimum(wobble, SPREAD * size * _deviation(q, k))
    far = likely.masked_fill(~visible, 0.0).amax(dim=-1, keepdim=True) > LINEAR
    # Errors of both kinds may change the winner together where neither does alone, and a row then moves as one.
    together = (shift + wobble, shift + likely) if bool(far.any()) else ()
    distances = (v.value[:, None] - y[:, :, None]).abs_().mul_(visible[:, :, None])  # [heads, rows, slots, D]
    accumulated, rounded, *more = _moved(log_p, (shift, wobble, *together), distances)
    variance = _variance(q, k, v, p, y, scale)
    if more:
        rounded = rounded + more[0] * far
        variance = variance + (more[1] * far / ROW_SPREAD).square()
    accumulated = accumulated + ctx.coefficient * (p @ v.value.abs())
    if ctx.coefficient > 0.0 and bool((lost := p * (p < LOST)).any()):
        accumulated = accumulated + (lost @ v.value).abs() + lost.sum(dim=-1, keepdim=True) * y.abs()
    if v.accumulated is not None:
        accumulated = accumulated + p @ v.accumulated
    if v.rounded is not None:
        rounded = rounded + p @ v.rounded
    if ctx.inside:  # fused attention rounds the probabilities before it multiplies them with the values
        step = rounding(p, ctx.inside)
        rounded = rounded + step @ v.value.abs()
        # Slots of one score round alike, and the sum that divides is not rounded: all of y may be off by one step.
        variance = variance + (step.square() @ v.value.square() + (step @ v.value).square()) / 3.0
    return y, accumulated, rounded, variance


def _weighed(p: Tensor, values: Tensor, visible: Tensor) -> Tensor:
    """Return p·v over visible slots alone; the NaN of a slot that a query does not see is not in its result."""
    return (p[..., None] * values[:, None]).masked_fill(~visible[:, :, None], 0.0).sum(dim=-2)


def _moved(log_p: Tensor, shifts: Sequence[Tensor], distances: Tensor) -> Iterator[Tensor]:
    """Yield how far scores that are off by up to each of `shifts` can move the output; weights come as logarithms.

    A weight that is 0 in float64 may be most of the sum where errors of scores are larger than their differences.
    `distances` [heads, rows, slots, D] are by far the largest tensor: they are read once for all shifts.
    """
    p, farthest, factors = log_p.exp(), distances.amax(dim=-2), list[Tensor]()
    for shift in shifts:
        largest = shift.masked_fill(p == 0.0, 0.0).amax(dim=-1, keepdim=True)
        factor = p * torch.expm1(shift.clamp(max=SATURATED)) * torch.exp(largest.clamp(max=SATURATED))
        lost = (log_p + shift + largest).clamp(max=0.0).exp()
        factors.append(torch.where(shift + largest > SATURATED, lost, factor))
    for moved in (torch.stack(factors, dim=-2) @ distances).unbind(-2):
        yield torch.minimum(moved, farthest)


def _deviation(q: Bounded, k: Bounded) -> Tensor:
    """Return the standard deviation of the products of queries and keys under independent roundings.

    It is [heads, rows, slots].
    """
    wide = q.wide()
    total = torch.zeros(*wide.shape[:2], k.value.shape[1], dtype=torch.float64, device=wide.device)
    if q.variance is not None:
        total = total + q.variance.expand_as(wide) @ k.value.square().mT
    if k.variance is not None:
        total = total + wide.square() @ k.variance.mT
    return total.sqrt()


def _variance(q: Bounded, k: Bounded, v: Bounded, p: Tensor, y: Tensor, scale: float) -> Tensor:
    """Return the output's variance under independent roundings of q (shared by all slots), new keys and new values."""
    wide = q.wide()
    total = torch.zeros_like(y)
    if q.variance is not None:
        # The covariance of keys and values under p is one [D, D] matrix a query; a single product makes them all.
        weighed = (p.mT[..., None] * v.value[:, :, None]).flatten(2)  # [heads, slots, rows · D]
        mixed = (k.value.mT @ weighed).view(len(y), -1, *y.shape[1:])  # [heads, D of keys, rows, D of values]
        slope = mixed.transpose(1, 2) - (p @ k.value)[..., None] * y[:, :, None]
        total = total + scale**2 * torch.einsum("hrd,hrde->hre", q.variance.expand_as(wide), slope.square())
    if k.variance is not None:
        fresh = k.variance.any(dim=2).any(dim=0)
        weights = p[..., fresh].square() * scale**2 * (wide.square() @ k.variance[:, fresh].mT)
        new = v.value[:, fresh]
        # The sum of weights · (v − y)², as products of matrices.
        apart = weights @ new.square() - 2.0 * y * (weights @ new) + weights.sum(dim=-1, keepdim=True) * y.square()
        total = total + apart.clamp(min=0.0)
    if v.variance is not None:
        total = total + p.square() @ v.variance
    return total
