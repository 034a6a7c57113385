"""Handlers that read ATen arithmetic through the idioms; one that returns None keeps the operator by its ATen name."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from agentcompile.capture import attention, idioms
from agentcompile.capture.layout import Inexpressible, Layout, chain
from agentcompile.capture.positional import Pos
from agentcompile.capture.terms import Edge, Pool
from agentcompile.errors import AgentCompileError

if TYPE_CHECKING:
    from agentcompile.capture.importing import Importer


def scatter_view(pool: Pool, old: Edge, layout: Layout, new: Edge) -> Edge:
    """Return `old` with the elements that `layout` reads replaced by `new`, as a PyTorch slice write.

    Raises:
        AgentCompileError: the layout is not a slice of one axis.
    """
    try:
        views = chain(layout, old.shape)
    except Inexpressible:
        views = ()
    if len(views) != 1 or views[0].op != "slice" or not all(isinstance(arg, int) and arg >= 0 for arg in views[0].args):
        raise AgentCompileError(
            "a write to part of a buffer, through a view that is no slice of one axis",
            hint="write whole rows, or out of place",
        )
    text = json.dumps({"args": [{"$": 0}, {"$": 1}, *views[0].args], "kwargs": {}}, sort_keys=True)
    return pool.op("aten.slice_scatter.default", [old, new], old.shape, old.dtype, (("template", text),))


def _cast(imp: Importer, node: Any, x: Any, *_: Any, **__: Any) -> Edge:
    return idioms.cast(imp.pool, imp.edge(x), imp.dtype(node.meta["val"]))


def _dropout(imp: Importer, node: Any, x: Any, p: float, train: bool) -> Edge | None:
    return imp.edge(x) if not train or p == 0 else None


def _unary(op: str) -> Callable[..., Edge | None]:
    def handle(imp: Importer, node: Any, x: Any, **kwargs: Any) -> Edge | None:
        return None if kwargs else imp.pool.unary(op, imp.edge(x))

    return handle


def _gelu(imp: Importer, node: Any, x: Any, approximate: str = "none") -> Edge:
    return imp.pool.unary("gelu_tanh" if approximate == "tanh" else "gelu", imp.edge(x))


def number(imp: Importer, value: Any) -> float | None:
    """Return a Python number, or the content of a constant one-element tensor; None for anything else."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, Pos) and not value.moves and value.node.meta["val"].numel() == 1:
        return float(imp.positional.evaluate(value.node, torch.tensor([0])))
    return None


def _sum_of(imp: Importer, node: Any, a: Any, b: Any, *, alpha: Any = 1, sign: int) -> Edge | None:
    dtype, factor = imp.dtype(node.meta["val"]), sign * float(alpha)
    left, right = number(imp, a), number(imp, b)
    if right is not None:
        return idioms.scalar(imp.pool, "add", imp.edge(a), factor * right, dtype)
    if left is not None and factor == 1:
        return idioms.scalar(imp.pool, "add", imp.edge(b), left, dtype)
    if factor not in (1, -1) or left is not None:
        return None
    make = idioms.add if factor == 1 else idioms.sub
    return make(imp.pool, imp.edge(a), imp.edge(b), dtype)


def _mul(imp: Importer, node: Any, a: Any, b: Any) -> Edge:
    dtype = imp.dtype(node.meta["val"])
    for x, y in ((a, b), (b, a)):
        if (value := number(imp, y)) is not None:
            return idioms.scalar(imp.pool, "mul", imp.edge(x), value, dtype)
    return idioms.mul(imp.pool, imp.edge(a), imp.edge(b), dtype)


def _div(imp: Importer, node: Any, a: Any, b: Any, **kwargs: Any) -> Edge | None:
    dtype = imp.dtype(node.meta["val"])
    if kwargs.get("rounding_mode") or dtype not in ("bf16", "fp16", "fp32", "fp64"):
        return None
    if (value := number(imp, b)) is not None:
        return idioms.scalar(imp.pool, "mul", imp.edge(a), 1.0 / value, dtype) if value else None
    if (value := number(imp, a)) is not None:
        bottom = imp.edge(b)
        if value != 1:
            return None
        if bottom.term.op == "sqrt":
            return imp.pool.unary("rsqrt", bottom.term.args[0].through(bottom.layout, bottom.base))
        return None
    return idioms.div(imp.pool, imp.edge(a), imp.edge(b), dtype)


def _pow(imp: Importer, node: Any, x: Any, exponent: Any) -> Edge | None:
    value = number(imp, exponent)
    if value not in (2.0, 0.5, -0.5) or number(imp, x) is not None:
        return None
    return idioms.scalar(imp.pool, "pow", imp.edge(x), value, imp.dtype(node.meta["val"]))


def _last(axes: Any, rank: int) -> bool:
    axes = [axes] if isinstance(axes, int) else list(axes or [])
    return [axis % rank for axis in axes] == [rank - 1]


def _mean(
    imp: Importer, node: Any, x: Any, axes: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Edge | None:
    edge = imp.edge(x)
    if not _last(axes, len(edge.shape)):
        return None
    edge = idioms.cast(imp.pool, edge, imp.dtype(node.meta["val"]))
    return idioms.mean_last(imp.pool, edge).reshape(imp.shape(node.meta["val"]))


def _sum(
    imp: Importer, node: Any, x: Any, axes: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Edge | None:
    edge = imp.edge(x)
    if not _last(axes, len(edge.shape)) or edge.dtype != imp.dtype(node.meta["val"]):
        return None
    return imp.pool.op("sum_last", [edge], (*edge.shape[:-1], 1), edge.dtype).reshape(imp.shape(node.meta["val"]))


def _linear(imp: Importer, node: Any, x: Any, w: Any, b: Any = None) -> Edge | None:
    weight = imp.edge(w)
    if not weight.plain or weight.term.role != "weight":
        return None
    return idioms.linear(imp.pool, imp.edge(x), weight, imp.edge(b) if b is not None else None)


def _matmul(imp: Importer, node: Any, a: Any, b: Any) -> Edge | None:
    left, right = imp.edge(a), imp.edge(b)
    if len(left.shape) < 2 or len(right.shape) < 2:
        return None
    made = idioms.matmul(imp.pool, left, right)
    return made if made.shape == imp.shape(node.meta["val"]) else None


def _addmm(imp: Importer, node: Any, bias: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Edge | None:
    if beta != 1 or alpha != 1:
        return None
    product = idioms.matmul(imp.pool, imp.edge(a), imp.edge(b))
    return idioms.add(imp.pool, product, imp.edge(bias), product.dtype)


def _embedding(imp: Importer, node: Any, table: Any, ids: Any, *_: Any, **__: Any) -> Edge | None:
    weight = imp.edge(table)
    return idioms.embedding(imp.pool, weight, imp.edge(ids)) if weight.plain and len(weight.shape) == 2 else None


def _index(imp: Importer, node: Any, x: Any, indices: Sequence[Any]) -> Edge | None:
    edge = imp.edge(x)
    if len(indices) != 1 or edge.term.role != "weight" or len(edge.shape) != 2:
        return None
    ids = imp.edge(indices[0])
    return idioms.embedding(imp.pool, edge, ids) if ids.dtype == "int64" else None


def _rms_norm(
    imp: Importer, node: Any, x: Any, shape: Sequence[int], weight: Any = None, eps: float | None = None
) -> Edge | None:
    if weight is None or len(shape) != 1:
        return None
    edge = imp.edge(x)
    if eps is None:
        eps = torch.finfo(node.meta["val"].dtype).eps
    return idioms.rms_norm(imp.pool, edge, imp.edge(weight), float(eps), 0.0)


def _cat(imp: Importer, node: Any, parts: Sequence[Any], axis: int = 0) -> Edge:
    return idioms.cat(imp.pool, [imp.edge(part) for part in parts], axis, imp.dtype(node.meta["val"]))


def _softmax(imp: Importer, node: Any, x: Any, axis: int, *_: Any, **__: Any) -> Edge | None:
    edge = imp.edge(x)
    if axis % len(edge.shape) != len(edge.shape) - 1:
        return None
    edge = idioms.cast(imp.pool, edge, imp.dtype(node.meta["val"]))
    return imp.pool.op("softmax", [edge], edge.shape, edge.dtype)


def _argmax(imp: Importer, node: Any, x: Any, axis: Any = None, keepdim: bool = False) -> Edge | None:
    edge = imp.edge(x)
    if axis is None or axis % len(edge.shape) != len(edge.shape) - 1:
        return None
    return imp.pool.op("argmax", [edge], edge.shape[:-1], "int64").reshape(imp.shape(node.meta["val"]))


def _copy(imp: Importer, node: Any, target: Any, source: Any, non_blocking: bool = False) -> Edge:
    to = imp.edge(target)
    edge = idioms.cast(imp.pool, imp.edge(source), to.dtype)
    return edge if edge.shape == to.shape else edge.expand(to.shape)


def _where(imp: Importer, node: Any, mask: Any, a: Any, b: Any) -> Edge | None:
    if number(imp, b) is not None:
        return _masked(imp, node, a, mask, b, keeps=True)
    return _masked(imp, node, b, mask, a, keeps=False)


def _masked(imp: Importer, node: Any, scores: Any, mask: Any, value: Any, *, keeps: bool) -> Edge | None:
    fill = number(imp, value)
    if fill is None or number(imp, scores) is not None:
        return None
    edge, hidden = imp.edge(scores), imp.edge(mask)
    if edge.shape != imp.shape(node.meta["val"]) or edge.dtype != imp.dtype(node.meta["val"]):
        return None
    return imp.pool.op("masked", [edge, hidden], edge.shape, edge.dtype, (("value", repr(fill)), ("keeps", keeps)))


def _einsum(imp: Importer, node: Any, equation: str, parts: Sequence[Any], **__: Any) -> Edge | None:
    """Turn an einsum of two operands into a (batched) matrix product; None for any other einsum, which is kept."""
    given, _, out = equation.replace(" ", "").partition("->")
    labels = given.split(",")
    if len(labels) != 2 or "." in equation or not out or any(len(set(part)) != len(part) for part in labels):
        return None
    a, b = labels
    x, y = (imp.edge(part) for part in parts)
    if y.term.op != "leaf" and x.term.op == "leaf" and x.term.role == "weight":
        a, b, x, y = b, a, y, x
    both = [c for c in a if c in b]
    batch, summed = [c for c in both if c in out], [c for c in both if c not in out]
    rows, columns = [c for c in a if c not in both], [c for c in b if c not in both]
    if len(summed) != 1 or len(columns) != 1 or (batch and len(rows) != 1) or set(out) != {*batch, *rows, *columns}:
        return None
    left = x.permute([a.index(c) for c in [*batch, *rows, *summed]])
    right = y.permute([b.index(c) for c in [*batch, *summed, *columns]])
    order = [*batch, *rows, *columns]
    made = attention.explicit(imp, left, right) or idioms.matmul(imp.pool, left, right)
    return made.permute([order.index(c) for c in out])


COMPUTE: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("to", "_to_copy", "type_as", "float"), _cast),
    **{op: _unary(op) for op in ("silu", "sigmoid", "tanh", "relu", "neg", "rsqrt", "sqrt", "square")},
    "dropout": _dropout,
    "gelu": _gelu,
    "add": partial(_sum_of, sign=1),
    "sub": partial(_sum_of, sign=-1),
    "mul": _mul,
    "div": _div,
    "reciprocal": lambda imp, node, x: _div(imp, node, 1.0, x),
    "pow": _pow,
    "mean": _mean,
    "sum": _sum,
    "linear": _linear,
    **dict.fromkeys(("matmul", "mm", "bmm"), _matmul),
    "addmm": _addmm,
    "embedding": _embedding,
    "index": _index,
    "rms_norm": _rms_norm,
    "cat": _cat,
    **dict.fromkeys(("softmax", "_softmax"), _softmax),
    "argmax": _argmax,
    "copy": _copy,
    "masked_fill": partial(_masked, keeps=False),
    "where": _where,
    "einsum": _einsum,
}
