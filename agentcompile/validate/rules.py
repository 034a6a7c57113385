"""The rules for how error passes through each operator, under the names of `agentcompile.ops.reference`.

A rule returns the float64 value and its error before the value is stored: |J| times the error of every operand, plus c
times the sum of the absolute contributions to each element.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from agentcompile.backends import backend_of
from agentcompile.ir.graph import Graph, Use
from agentcompile.ops.reference import run
from agentcompile.validate.attention import attention
from agentcompile.validate.bound import Append, Bounded, Context, Part, Rule, add, rounded_by, scaled
from agentcompile.validate.tolerance import ROUNDOFF, rounding

_SPARSE = 16  # zero columns are left out when at most one column in this many is not zero


def linear(ctx: Context, operands: tuple[Bounded, ...]) -> Bounded:
    """Compute y = x·wᵀ + b with its error, a few rows of w at a time; x [..., hidden], w [rows, hidden]."""
    x, w = _alive(operands[0], operands[1].value)
    shape = (*x.value.shape[:-1], w.shape[0])
    wide = x.wide().reshape(-1, w.shape[1])
    count = wide.shape[0]
    once = ctx.keen and bool(((w != 0).sum(1) <= 1).all())  # a sum of one product is rounded once
    coefficient = ROUNDOFF["fp32"] if once else ctx.coefficient
    worst = add(coefficient * wide.abs(), _flat(x.accumulated, wide))
    plain = wide.new_empty(count, w.shape[0])
    drift = torch.empty_like(plain)
    rounded = torch.empty_like(plain) if x.rounded is not None else None
    variance = torch.empty_like(plain) if x.variance is not None else None
    absolute = torch.cat([rows for rows in (worst, _flat(x.rounded, wide)) if rows is not None])
    spread = _flat(x.variance, wide)
    step = max(1, backend_of(w.device.type).reference.widened // max(w.shape[1], 1))
    for start in range(0, w.shape[0], step):
        part = w[start : start + step].double()
        stop = start + part.shape[0]
        plain[:, start:stop] = wide @ part.T
        if variance is not None and spread is not None:
            variance[:, start:stop] = spread @ part.square().T
        both = absolute @ part.abs_().T
        drift[:, start:stop] = both[:count]
        if rounded is not None:
            rounded[:, start:stop] = both[count:]
    if len(operands) > 2:
        bias = operands[2].wide()
        plain += bias
        drift += ctx.coefficient * bias.abs()
    return Bounded(plain, drift, rounded, variance).map(lambda tensor: tensor.reshape(shape))


def _alive(x: Bounded, w: Tensor) -> tuple[Bounded, Tensor]:
    """Drop the columns of x and w [rows, hidden] where x is zero without error, when few are left; w is finite."""
    parts = [part for part in (x.value, *x.parts) if part is not None]
    alive = torch.stack([(part != 0).reshape(-1, w.shape[1]).any(0) for part in parts]).any(0).nonzero().view(-1)
    if len(alive) * _SPARSE > w.shape[1]:
        return x, w
    kept = alive if len(alive) else torch.zeros(1, dtype=torch.int64)
    return x.map(lambda t: t[..., kept]), w[:, kept]


def _flat(part: Part, like: Tensor) -> Part:
    return None if part is None else part.reshape(like.shape)


def rms_norm(ctx: Context, operands: tuple[Bounded, ...]) -> Bounded:
    """Compute y = x·s·(offset + w) with its error, where s = 1/√(mean x² + eps) over the last dimension."""
    x, weight = operands[0], operands[1].wide()
    attrs = dict(ctx.node.attrs)
    gain = weight + float(attrs.get("offset", 0.0))  # type: ignore[arg-type]
    wide = x.wide()
    scale = (wide.square().mean(-1, keepdim=True) + float(attrs["eps"])).rsqrt()  # type: ignore[arg-type]
    value = wide * scale * gain
    direct: Tensor = (scale * gain).abs()
    through: Tensor = (wide * scale.pow(3) * gain).abs()

    def worst(part: Part) -> Part:
        if part is None:
            return None
        shared: Tensor = (wide.abs() * part).mean(-1, keepdim=True)
        return direct * part + through * shared

    def independent(part: Part) -> Part:
        if part is None:
            return None
        shared: Tensor = (wide.square() * part).mean(-1, keepdim=True) / wide.shape[-1]
        return direct.square() * part + through.square() * shared

    own = (1.0 if ctx.keen else 2.0) * ctx.coefficient * value.abs()  # equal squares have an exact sum
    result = Bounded(value, add(worst(x.accumulated), own), worst(x.rounded), independent(x.variance))
    # PyTorch models round x·s to their dtype before the weight is multiplied in.
    return rounded_by(result, rounding(value.abs(), ctx.inside)) if ctx.inside else result


def rope(ctx: Context, operands: tuple[Bounded, ...]) -> Bounded:
    """Compute y = x·cos + rotate(x)·sin with its error; x [B, heads, T, D], cos [B, T, D].

    `rotate` swaps the halves and negates the first.
    """
    x, cos, sin = operands[0], operands[1].wide().unsqueeze(1), operands[2].wide().unsqueeze(1)
    wide = x.wide()
    half = wide.shape[-1] // 2

    def swap(t: Tensor) -> Tensor:
        return torch.cat((t[..., half:], t[..., :half]), dim=-1)

    sign = torch.ones(wide.shape[-1], dtype=torch.float64)
    sign[:half] = -1.0
    turned = swap(wide) * sign
    contributions = (wide * cos).abs() + (turned * sin).abs()

    def worst(part: Part) -> Part:
        return None if part is None else part * cos.abs() + swap(part) * sin.abs()

    accumulated = add(worst(x.accumulated), ctx.coefficient * contributions)
    variance = None if x.variance is None else x.variance * cos.square() + swap(x.variance) * sin.square()
    result = Bounded(wide * cos + turned * sin, accumulated, worst(x.rounded), variance)
    # PyTorch models round both products before they are added.
    return rounded_by(result, rounding(contributions, ctx.inside)) if ctx.inside else result


def unary(function: Callable[[Tensor], Tensor], contributions: Callable[[Tensor, Tensor], Tensor]) -> Rule:
    """Make the rule of an elementwise function; the slope is a difference quotient over the actual incoming error."""

    def rule(ctx: Context, operands: tuple[Bounded, ...]) -> Bounded:
        x = operands[0]
        wide = x.wide()
        value = function(wide)
        own = ctx.coefficient * contributions(wide, value)
        error = x.error()
        step = torch.maximum(error.expand_as(wide), 1e-5 * (wide.abs() + 1e-3))
        up, down = (function(wide + step) - value).abs(), (function(wide - step) - value).abs()
        slope = torch.maximum(up, down) / step
        accumulated = add(scaled(x.accumulated, slope), own)
        return Bounded(value, accumulated, scaled(x.rounded, slope), scaled(x.variance, slope.square()))

    return rule


def _exponential(x: Tensor, y: Tensor) -> Tensor:
    """Return the contributions of exp, whose argument is rounded too, so the relative error grows with the argument."""
    return y.abs() * (1.0 + x.abs().clamp(max=100.0) / 8.0)


def _plain(_: Tensor, y: Tensor) -> Tensor:
    return y.abs()


def _magnitude(x: Tensor, y: Tensor) -> Tensor:
    """Return the contributions of 1 + tanh and 1 + erf, which cancel for negative x: the terms are as large as x."""
    return x.abs().maximum(y.abs())


def _broadcast(a: Bounded, b: Bounded) -> tuple[Tensor, Tensor]:
    x, y = torch.broadcast_tensors(a.wide(), b.wide())  # type: ignore[no-untyped-call]
    return x, y


def _both(a: Bounded, b: Bounded, da: Tensor, db: Tensor, value: Tensor, own: Part) -> Bounded:
    accumulated = add(scaled(a.accumulated, da), scaled(b.accumulated, db), own)
    variance = add(scaled(a.variance, da.square()), scaled(b.variance, db.square()))
    return Bounded(value, accumulated, add(scaled(a.rounded, da), scaled(b.rounded, db)), variance)


def _sum(sign: float) -> Rule:
    def rule(ctx: Context, operands: tuple[Bounded, ...]) -> Bounded:
        a, b = operands
        x, y = _broadcast(a, b)
        one = torch.ones_like(x)
        return _both(a, b, one, one, x + sign * y, ctx.coefficient * (x.abs() + y.abs()))

    return rule


def mul(ctx: Context, operands: tuple[Bounded, ...]) -> Bounded:
    """Compute a·b with its error, including the product of both errors, which is not small beside a zero."""
    a, b = operands
    x, y = _broadcast(a, b)
    value = x * y
    own = ctx.coefficient * value.abs() + a.error() * b.error()
    return _both(a, b, y.abs(), x.abs(), value, own)


def div(ctx: Context, operands: tuple[Bounded, ...]) -> Bounded:
    """Compute a/b with its error to first order."""
    a, b = operands
    x, y = _broadcast(a, b)
    value = x / y
    return _both(a, b, 1.0 / y.abs(), (value / y).abs(), value, ctx.coefficient * value.abs())


def embedding(_: Context, operands: tuple[Bounded, ...]) -> Bounded:
    """Gather rows of a table, which are copied without error."""
    ids, table = operands
    return Bounded(value=table.value[ids.value])


def position_table(ctx: Context, operands: tuple[Bounded, ...]) -> Bounded:
    """Gather rows of a constant table at the positions: [1, T, width], in a batch [B, 1, width]."""
    positions, table = (operand.value for operand in operands)
    return Bounded(value=table[positions.reshape(-1)].view(ctx.told["batch"], -1, table.shape[1]))


def cache_append(ctx: Context, operands: tuple[Bounded, ...]) -> Bounded:
    """Write `new` [B, kv_heads, T, D] into the cache: in a batch one slot per sequence, otherwise T adjacent slots.

    The store rounds to the cache's dtype, which is part of its interface. The value keeps the cache's own dtype (a long
    context in float64 takes gigabytes). The errors of the new slots are kept in `Propagation.appends`, where attention
    reads them.
    """
    cache, new, positions = operands
    name = ctx.node.outputs[0]
    slots = positions.value.reshape(-1).tolist()
    firsts = slots if new.value.shape[0] > 1 else slots[:1]
    spans = tuple((first, first + new.value.shape[2]) for first in firsts)
    ctx.out.appends[name] = Append(port=ctx.owner.get(name, name), new=new, spans=spans)
    return cache


def argmax(ctx: Context, operands: tuple[Bounded, ...]) -> Bounded:
    """Return the index of the largest logit; the logits are kept for the argmax check."""
    ctx.out.logits[ctx.node.outputs[0]] = operands[0]
    return Bounded(value=operands[0].value.argmax(-1))


def cast(_: Context, operands: tuple[Bounded, ...]) -> Bounded:
    """Return the operand unchanged: a narrowing that a kernel performs is one of its declared `rounds`."""
    return operands[0]


def numeric(ctx: Context, graph: Graph) -> tuple[Bounded, ...]:
    """Compute any other operator in PyTorch, with twice the effect of random input perturbations as its error."""
    ctx.out.notes.append(f"{ctx.node.op} has no rule: its bound comes from perturbed inputs")
    names = tuple(dict.fromkeys(use.value for use in ctx.node.inputs))
    outputs = tuple((name, Use(value=name)) for name in ctx.node.outputs)
    alone = replace(graph, nodes=(ctx.node,), inputs=names, outputs=outputs)
    given = {name: ctx.out.values[name] for name in names}
    exact = run(alone, {name: value.value for name, value in given.items()}, precision="float64")
    spread = {name: torch.zeros_like(tensor, dtype=torch.float64) for name, tensor in exact.items()}
    rng = torch.Generator(torch.get_default_device()).manual_seed(0)
    for _ in range(4):
        moved = {name: _moved(value, ctx.coefficient, rng) for name, value in given.items()}
        for name, reached in run(alone, moved, precision="float64").items():
            spread[name] = torch.maximum(spread[name], (reached.double() - exact[name].double()).abs())
    results = []
    for name, value in exact.items():
        own = ROUNDOFF.get(ctx.dtypes[name], 0.0) * value.double().abs()
        error = 2.0 * spread[name] + own if value.is_floating_point() else None
        results.append(Bounded(value=value.clone(), accumulated=error))
    return tuple(results)


def _moved(value: Bounded, coefficient: float, rng: torch.Generator) -> Tensor:
    if not value.value.is_floating_point():
        return value.value
    wide = value.wide()
    sign = torch.randint(0, 2, wide.shape, generator=rng, dtype=torch.float64) * 2 - 1
    return wide + sign * (value.error() + coefficient * wide.abs())


RULES: dict[str, Rule] = {
    "embedding": embedding,
    "position_table": position_table,
    "rms_norm": rms_norm,
    "linear": linear,
    "rope": rope,
    "cache_append": cache_append,
    "attention": attention,
    "silu": unary(F.silu, _exponential),
    "gelu_tanh": unary(lambda x: F.gelu(x, approximate="tanh"), _magnitude),
    "gelu": unary(F.gelu, _magnitude),
    "relu": unary(F.relu, _plain),
    "sigmoid": unary(torch.sigmoid, _exponential),
    "tanh": unary(torch.tanh, _plain),
    "add": _sum(1.0),
    "sub": _sum(-1.0),
    "mul": mul,
    "div": div,
    "argmax": argmax,
    "cast": cast,
}
