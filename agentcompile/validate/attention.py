"""The error of attention: through scores, softmax and weighted sum, for one KV head of one sequence at a time.

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
_BLOCK = 1 << 20  # the number of elements of the [rows, slots, D] distances that are held at a time: they stay in cache
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
        for head in range(k_cache.shape[1]):
            k, v = (_visible(ctx, operands, index, (b, head), visible) for index in (1, 2))
            rows = _queries(operands[0], b, slice(head * group, (head + 1) * group))
            for block in (slice(start, start + step) for start in range(0, len(masks), step)):
                some = rows.map(lambda t, block=block: t[block])  # type: ignore[misc]
                end = slice(0, max(ends[block]))  # slots that no query of the block sees cost as much as others
                keys, values = (one.map(lambda t, end=end: t[end]) for one in (k, v))  # type: ignore[misc]
                parts.append(_rows(some, keys, values, masks[block, end], float(ctx.told["scale"]), ctx))
    return Bounded(*(torch.cat(each).reshape(q.shape) for each in zip(*parts, strict=True)), shared=True)


def _queries(q: Bounded, sequence: int, heads: slice) -> Bounded:
    shape = q.value.shape
    return q.map(lambda t: t.expand(shape)[sequence, heads].flatten(0, 1))


def _slots_of(at: Tensor, context: int, window: int) -> Tensor:
    """Return which slots each query of a sequence sees, of those up to its last position: [T, slots]."""
    slots = torch.arange(min(int(at.max()) + 1, context))
    visible = slots[None, :] <= at[:, None]
    return visible & (slots[None, :] > at[:, None] - window) if window else visible


def _visible(
    ctx: Context, operands: tuple[Bounded, ...], index: int, where: tuple[int, int], visible: Tensor
) -> Bounded:
    """Return a head's slots [slots, D] in cache `index`: old ones exact, appended ones with error and a rounding."""
    name, cache = ctx.node.inputs[index].value, operands[index].value
    append, dtype = ctx.out.appends.get(name), ctx.dtypes[name]
    value = cache[where][: visible.shape[1]].double()
    value[~visible.any(0)] = 0.0  # a hidden slot may hold NaN, and 0·NaN would reach the result
    if append is None:
        return Bounded(value=value)
    new, span = append.new, slice(*append.spans[where[0]])
    fresh = new.wide()[where]
    value[span] = fresh
    step = torch.zeros_like(fresh) if new.value.dtype == cache.dtype else rounding(fresh.abs(), dtype)

    def spread(part: Part, own: Tensor | None) -> Tensor:
        full = torch.zeros_like(value)
        rows = torch.zeros_like(fresh) if part is None else part.expand(new.value.shape)[where]
        full[span] = rows if own is None else rows + own
        return full

    variance = spread(new.variance, step.square() / 3.0)
    return Bounded(value, spread(new.accumulated, None), spread(new.rounded, step), variance)


def _rows(
    q: Bounded, k: Bounded, v: Bounded, visible: Tensor, scale: float, ctx: Context
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Attend with some queries of one group [rows, D] to one head's slots; `visible` is [rows, slots]."""
    wide, size = q.wide(), abs(scale)
    scores = (wide @ k.value.T) * scale
    log_p = torch.log_softmax(scores.masked_fill(~visible, -torch.inf), dim=-1)
    p = log_p.exp()
    y = p @ v.value if bool(v.value.isfinite().all()) else _weighed(p, v.value, visible)
    shift = ctx.coefficient * size * (wide.abs() @ k.value.abs().T)
    if q.accumulated is not None:
        shift = shift + size * (q.accumulated.expand_as(wide) @ k.value.abs().T)
    if k.accumulated is not None:
        shift = shift + size * (wide.abs() @ k.accumulated.T)
    wobble = torch.zeros_like(shift)
    if q.rounded is not None:
        wobble = wobble + size * (q.rounded.expand_as(wide) @ k.value.abs().T)
    if k.rounded is not None:
        wobble = wobble + size * (wide.abs() @ k.rounded.T)
    likely = torch.minimum(wobble, SPREAD * size * _deviation(q, k))
    far = likely.masked_fill(~visible, 0.0).amax(dim=-1, keepdim=True) > LINEAR
    # Errors of both kinds may change the winner together where neither does alone, and a row then moves as one.
    together = (shift + wobble, shift + likely) if bool(far.any()) else ()
    distances = (v.value - y[:, None, :]).abs_().mul_(visible[:, :, None])  # [rows, slots, D]
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
    return (p[:, :, None] * values).masked_fill(~visible[:, :, None], 0.0).sum(dim=1)


def _moved(log_p: Tensor, shifts: Sequence[Tensor], distances: Tensor) -> Iterator[Tensor]:
    """Yield how far scores that are off by up to each of `shifts` can move the output; weights come as logarithms.

    A weight that is 0 in float64 may be most of the sum where errors of scores are larger than their differences.
    `distances` [rows, slots, D] are by far the largest tensor: they are read once for all shifts.
    """
    p, farthest, factors = log_p.exp(), distances.amax(dim=-2), list[Tensor]()
    for shift in shifts:
        largest = shift.masked_fill(p == 0.0, 0.0).amax(dim=-1, keepdim=True)
        factor = p * torch.expm1(shift.clamp(max=SATURATED)) * torch.exp(largest.clamp(max=SATURATED))
        lost = (log_p + shift + largest).clamp(max=0.0).exp()
        factors.append(torch.where(shift + largest > SATURATED, lost, factor))
    for moved in torch.bmm(torch.stack(factors, dim=1), distances).unbind(1):
        yield torch.minimum(moved, farthest)


def _deviation(q: Bounded, k: Bounded) -> Tensor:
    """Return the standard deviation of the products of queries and keys under independent roundings, [rows, slots]."""
    wide, total = q.wide(), torch.zeros(len(q.value), len(k.value), dtype=torch.float64, device=q.value.device)
    if q.variance is not None:
        total = total + q.variance.expand_as(wide) @ k.value.square().T
    if k.variance is not None:
        total = total + wide.square() @ k.variance.T
    return total.sqrt()


def _variance(q: Bounded, k: Bounded, v: Bounded, p: Tensor, y: Tensor, scale: float) -> Tensor:
    """Return the output's variance under independent roundings of q (shared by all slots), new keys and new values."""
    wide = q.wide()
    total = torch.zeros_like(y)
    if q.variance is not None:
        # The covariance of keys and values under p is one [D, D] matrix a query; a single product makes them all.
        weighed = (p.T[:, :, None] * v.value[:, None, :]).flatten(1)  # [slots, rows · D]
        mixed = (k.value.T @ weighed).view(-1, *y.shape).transpose(0, 1)  # [rows, D of keys, D of values]
        slope = mixed - (p @ k.value)[:, :, None] * y[:, None, :]
        total = total + scale**2 * torch.einsum("rd,rde->re", q.variance.expand_as(wide), slope.square())
    if k.variance is not None:
        fresh = k.variance.any(dim=1)
        weights, new = p[:, fresh].square() * scale**2 * (wide.square() @ k.variance[fresh].T), v.value[fresh]
        # The sum of weights · (v − y)², as products of matrices.
        apart = weights @ new.square() - 2.0 * y * (weights @ new) + weights.sum(dim=-1, keepdim=True) * y.square()
        total = total + apart.clamp(min=0.0)
    if v.variance is not None:
        total = total + p.square() @ v.variance
    return total
