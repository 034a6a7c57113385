"""Attention over a static cache: writes become `cache_append`, every spelling of the product becomes `attention`.

Masks and cache slots are recognised by their values at every position (`positional.py`), not by how they are computed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from agentcompile.capture import idioms
from agentcompile.capture.layout import dense
from agentcompile.capture.positional import Handle, Pos
from agentcompile.capture.terms import Edge, Pool, of, operands, uncast

if TYPE_CHECKING:
    from agentcompile.capture.importing import Importer

HIDDEN = -1e4
"""The score below which a fill value hides a slot; half precision's most negative number lies below it."""


def is_cache(edge: Edge) -> bool:
    """Return whether the edge reads a state, as passed in or after appends."""
    return edge.term.op == "cache_append" or (edge.term.op == "leaf" and edge.term.role == "state")


def written(pool: Pool, name: str, final: Edge) -> Edge:
    """Return the final content of a state as an operator that writes it.

    Content that is not made by appends alone is copied into the state by PyTorch.
    """
    if is_cache(final) and final.plain:
        return final
    state = pool.leaf("state", name, final.shape, final.dtype)
    template = (("template", json.dumps({"args": [{"$": 0}, {"$": 1}], "kwargs": {}}, sort_keys=True)),)
    return of(pool.make("aten.copy_.default", [state, final], [(final.shape, final.dtype)], template, writes=(0,)))


def positions(pool: Pool) -> Edge:
    """Return the positions input, int64 [T]."""
    return pool.leaf("position", "positions", (pool.tokens,), "int64")


def _append(imp: Importer, cache: Any, new: Any, index: Any) -> Edge | None:
    target = imp.edge(cache)
    if not isinstance(index, Pos) or not is_cache(target) or not target.plain or len(target.shape) != 4:
        return None
    source = imp.edge(new)
    if len(source.shape) < 4:
        source = source.reshape((1,) * (4 - len(source.shape)) + source.shape)
    _, heads, _, width = target.shape
    if source.shape != (1, heads, imp.pool.tokens, width) or source.dtype != target.dtype:
        return None
    if not imp.positional.is_positions(index.node):
        return None
    args = [target, source, positions(imp.pool)]
    return of(imp.pool.make("cache_append", args, [(target.shape, target.dtype)], writes=(0,)))


def _index_copy(imp: Importer, cache: Any, axis: int, index: Any, new: Any) -> Edge | None:
    return _append(imp, cache, new, index) if axis in (2, -2) else None


def _index_put(imp: Importer, cache: Any, indices: Sequence[Any], new: Any, accumulate: bool = False) -> Edge | None:
    if accumulate or len(indices) != 3 or indices[0] is not None or indices[1] is not None:
        return None
    return _append(imp, cache, new, indices[2])


def _scatter(imp: Importer, cache: Any, axis: int, index: Any, new: Any, **kwargs: Any) -> Edge | None:
    if kwargs or axis not in (2, -2) or not isinstance(index, Pos) or not isinstance(new, (Handle, Edge)):
        return None
    if imp.shape(index.node.meta["val"]) != imp.edge(new).shape:
        return None
    return _append(imp, cache, new, index)


def _repeated(kv: Edge, heads: int) -> Edge | None:
    """Return the cache behind keys or values [1, heads, context, D] that repeat each KV head for its query group.

    None when the edge is anything else.
    """
    if not is_cache(kv):
        return None
    shape = kv.base
    if len(shape) != 4 or heads % shape[1]:
        return None
    plain = dense(shape)
    _, kv_heads, context, width = shape
    group = heads // kv_heads
    wide = plain.reshape((1, kv_heads, 1, context, width)).expand((1, kv_heads, group, context, width))
    if kv.layout in (plain, wide.reshape((1, heads, context, width))):
        return Edge(kv.term, kv.index, plain)
    return None


def window(imp: Importer, mask: Edge, *, keeps: bool) -> int | None:
    """Return 0 for a causal mask, n for a sliding window of n slots, and None for any other mask."""
    if not idioms.is_table(mask) or mask.term.name not in imp.tables:
        return None
    node, axis = imp.tables[mask.term.name]
    return imp.positional.window(node, axis, keeps=keeps)


def attention(imp: Importer, q: Edge, k: Edge, v: Edge, scale: float, span: int) -> Edge | None:
    """Return the normalised `attention` operator when keys and values are whole caches; None otherwise."""
    if len(q.shape) != 4 or q.shape[2] != imp.pool.tokens or q.shape[0] != 1:
        return None
    keys, values = _repeated(k, q.shape[1]), _repeated(v, q.shape[1])
    if keys is None or values is None or keys.shape[3] != q.shape[3] or values.shape != keys.shape:
        return None
    attrs = (("scale", float(f"{scale:.9g}")), ("window", span))
    return imp.pool.op("attention", [q, keys, values, positions(imp.pool)], q.shape, q.dtype, attrs)


def _sdpa(
    imp: Importer,
    q: Any,
    k: Any,
    v: Any,
    mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **options: Any,
) -> Edge | None:
    mask = options.get("attn_mask", mask)
    if mask is None or is_causal or dropout_p or options.get("is_causal") or options.get("dropout_p"):
        return None
    scale = options.get("scale")
    query = imp.edge(q)
    span = window(imp, imp.edge(mask), keeps=True)
    if span is None:
        return None
    return attention(
        imp, query, imp.edge(k), imp.edge(v), scale if scale is not None else query.shape[-1] ** -0.5, span
    )


def _explicit(imp: Importer, weights: Any, v: Any) -> Edge | None:
    return explicit(imp, imp.edge(weights), imp.edge(v))


def explicit(imp: Importer, weights: Edge, v: Edge) -> Edge | None:
    """Raise softmax(q · kᵀ · scale + mask) · v to `attention`, with the scale before or after the product.

    None when `weights` is not of that form.
    """
    probabilities = uncast(weights)
    if probabilities.term.op != "softmax":
        return None
    scores = uncast(probabilities.term.args[0].through(probabilities.layout, probabilities.base))
    found = _masked(imp, scores)
    if found is None:
        return None
    scores, span = found
    scores, scale = _scaled(scores)
    if scores.term.op != "matmul" or not scores.plain:
        return None
    q, turned = scores.term.args
    q, before = _scaled(uncast(q))
    turned, also = _scaled(uncast(turned))
    if len(turned.shape) != 4:
        return None
    made = attention(imp, q, turned.permute((0, 1, 3, 2)), uncast(v), scale * before * also, span)
    return idioms.cast(imp.pool, made, weights.dtype) if made is not None else None


def _masked(imp: Importer, scores: Edge) -> tuple[Edge, int] | None:
    args = operands(scores)
    if scores.term.op == "add" and args:
        for value, mask in (args, args[::-1]):
            span = window(imp, uncast(mask), keeps=True)
            if span is not None:
                return uncast(value), span
    if scores.term.op == "masked" and args and float(str(scores.term.attr("value"))) < HIDDEN:
        span = window(imp, args[1], keeps=bool(scores.term.attr("keeps")))
        if span is not None:
            return uncast(args[0]), span
    return None


def _scaled(edge: Edge) -> tuple[Edge, float]:
    factor = 1.0
    while edge.term.op == "mul_scalar":
        value = edge.term.attr("value")
        assert isinstance(value, float)
        factor *= value
        edge = uncast(edge.term.args[0].through(edge.layout, edge.base))
    return edge, factor


RAISERS: dict[str, Callable[..., Edge | None]] = {
    "index_copy": _index_copy,
    "index_put": _index_put,
    "scatter": _scatter,
    "scaled_dot_product_attention": _sdpa,
    "matmul": _explicit,
    "bmm": _explicit,
}
