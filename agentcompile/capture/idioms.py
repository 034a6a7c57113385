"""Idioms: smart constructors that raise every spelling of an operator to its normalised name.

Operands are already normalised when a constructor sees them, so a pattern is matched once, at its last operator,
against merged terms. Where the result is rounded is defined by the raised operator (`reference.py`), not by the
spelling.
"""

from __future__ import annotations

from agentcompile.capture.layout import TOKENS, Inexpressible, dense
from agentcompile.capture.terms import Edge, Pool, broadcast, numel, operands, uncast
from agentcompile.ir.graph import DType

WIDER = {("bf16", "fp32"), ("fp16", "fp32"), ("bf16", "fp64"), ("fp16", "fp64"), ("fp32", "fp64"), ("int32", "int64")}


def cast(pool: Pool, x: Edge, to: DType) -> Edge:
    """Convert to another dtype; casts to the same dtype, and to a wider dtype and back, are dropped."""
    if x.dtype == to:
        return x
    if x.term.op == "cast":
        inner = x.term.args[0]
        if (inner.dtype, x.dtype) in WIDER:
            return cast(pool, inner.through(x.layout, x.base), to)
    if x.term.op == "mul" and (raised := _rms_norm(pool, x.term.args, x, to)) is not None:
        return raised
    return pool.unary("cast", x, (("to", to),), to)


def scalar(pool: Pool, op: str, x: Edge, value: float, dtype: DType) -> Edge:
    """Apply `op` (add, mul, pow) with a number, which stays out of the graph's tensors.

    Multiplying by 1 and adding 0 are dropped. Some powers become `square`, `sqrt` or `rsqrt`, and a sum divided by its
    width a mean.
    """
    if dtype == x.dtype and ((op == "mul" and value == 1) or (op == "add" and value == 0)):
        return x
    if op == "pow":
        if value == 2:
            return pool.unary("square", x)
        if value == -0.5:
            return pool.unary("rsqrt", x)
        if value == 0.5:
            return pool.unary("sqrt", x)
    if op == "mul" and x.term.op == "sum_last" and abs(value * int(x.term.args[0].shape[-1]) - 1) < 1e-9:
        return mean_last(pool, x.term.args[0]).reshape(x.shape)
    return pool.unary(f"{op}_scalar", x, (("value", float(value)),), dtype)


def mean_last(pool: Pool, x: Edge) -> Edge:
    """Compute the mean over the last axis, which is kept with extent 1."""
    return pool.op("mean_last", [x], (*x.shape[:-1], 1), x.dtype)


def mul(pool: Pool, a: Edge, b: Edge, dtype: DType) -> Edge:
    """Multiply two operands; this raises `silu`, `rms_norm` and squares."""
    if a == b:
        return pool.unary("square", a, dtype=dtype)
    for x, gate in ((a, b), (b, a)):
        if gate.term.op == "sigmoid" and gate.term.args[0].through(gate.layout, gate.base) == x:
            return pool.unary("silu", x)
    if (raised := _rms_norm(pool, (a, b), None, dtype)) is not None:
        return raised
    return pool.binary("mul", a, b, dtype, commutes=True)


def div(pool: Pool, a: Edge, b: Edge, dtype: DType) -> Edge:
    """Divide two operands; dividing by a square root multiplies by its inverse."""
    root = uncast(b)
    if root.term.op == "sqrt":
        inner = root.term.args[0].through(root.layout, root.base)
        return mul(pool, a, cast(pool, pool.unary("rsqrt", inner), b.dtype), dtype)
    return pool.binary("div", a, b, dtype, commutes=False)


def add(pool: Pool, a: Edge, b: Edge, dtype: DType) -> Edge:
    """Add two operands; this raises a bias into its `linear`, and raises `rope`."""
    for x, bias in ((a, b), (b, a)):
        bare = x.term.op == "linear" and len(x.term.args) == 2 and x.layout.is_order_kept(x.base)
        if bare and _is_weight(bias) and bias.shape == x.shape[-1:]:
            return linear(pool, x.term.args[0], x.term.args[1], bias).reshape(x.shape)
    for rotated, plain in ((a, b), (b, a)):
        if (raised := _rope_full(pool, plain, rotated, dtype)) is not None:
            return raised
    return pool.binary("add", a, b, dtype, commutes=True)


def sub(pool: Pool, a: Edge, b: Edge, dtype: DType) -> Edge:
    """Subtract two operands."""
    return pool.binary("sub", a, b, dtype, commutes=False)


def _is_weight(edge: Edge) -> bool:
    return edge.term.op == "leaf" and edge.term.role == "weight"


def linear(pool: Pool, x: Edge, w: Edge, b: Edge | None) -> Edge:
    """Multiply x [..., in] by w [out, in] transposed and add b [out]; the rows become [1, rows, in]."""
    rows, features = numel(x.shape[:-1]), w.shape[0]
    args = [x.reshape((1, rows, x.shape[-1])), w] + ([b] if b is not None else [])
    return pool.op("linear", args, (1, rows, features), x.dtype).reshape((*x.shape[:-1], features))


def matmul(pool: Pool, a: Edge, b: Edge) -> Edge:
    """Multiply two matrices; a product with a transposed weight becomes `linear`."""
    if len(b.shape) == 2 and _is_weight(b) and len(a.shape) >= 1 and not b.plain:
        turned = b.permute((1, 0))
        if turned.plain:
            return linear(pool, a, turned, None)
    lead = broadcast(a.shape[:-2], b.shape[:-2])
    return pool.op("matmul", [a, b], (*lead, *a.shape[-2:-1], b.shape[-1]), a.dtype)


def embedding(pool: Pool, table: Edge, ids: Edge) -> Edge:
    """Gather rows of table [vocab, hidden] at ids, which become [1, rows]."""
    rows, hidden = numel(ids.shape), table.shape[1]
    out = pool.op("embedding", [ids.reshape((1, rows)), table], (1, rows, hidden), table.dtype)
    return out.reshape((*ids.shape, hidden))


def rms_norm(pool: Pool, x: Edge, weight: Edge, eps: float, offset: float) -> Edge:
    """Normalise over the last axis, with the rows token-major: [1, T, width] or [1, T, groups, width]."""
    width = x.shape[-1]
    attrs = (("eps", eps), ("offset", offset))
    try:
        groups = x.layout.per_dim()
        strides = [max((stride * size for size, stride in group), default=0) for group in groups[:-1]]
        order = sorted(range(len(strides)), key=lambda i: (-strides[i], i))
        turned = x.permute([*order, len(strides)])
    except Inexpressible:
        order, turned = list(range(len(x.shape) - 1)), x
    rows = numel(x.shape[:-1])
    tokens = pool.tokens if rows % pool.tokens == 0 else 1
    shape = (1, tokens, width) if rows == tokens else (1, tokens, rows // tokens, width)
    out = pool.op("rms_norm", [turned.reshape(shape), weight], shape, x.dtype, attrs).reshape(turned.shape)
    back = [order.index(i) for i in range(len(order))]
    return out.permute([*back, len(order)])


def _factors(edge: Edge, depth: int = 3) -> list[Edge]:
    edge = uncast(edge)
    if edge.term.op == "mul" and depth and (args := operands(edge)):
        return [leaf for arg in args for leaf in _factors(arg, depth - 1)]
    return [edge]


def _rms_norm(pool: Pool, args: tuple[Edge, ...], seen: Edge | None, dtype: DType) -> Edge | None:
    """Raise x · rsqrt(mean(x²) + eps) · w in any association and with any casts to `rms_norm`.

    `seen` is the product that is being cast. None when the factors are not of that form.
    """
    if seen is not None and not (args := operands(seen)):
        return None
    factors = [leaf for arg in args for leaf in _factors(arg)]
    if len(factors) != 3:
        return None
    for root in factors:
        if root.term.op != "rsqrt":
            continue
        x, weight = (f for f in factors if f is not root)
        if not _weight_of(weight)[0]:
            x, weight = weight, x
        found, leaf, offset = _weight_of(weight)
        inner = _mean_square(root)
        if not found or leaf is None or inner is None or inner[0] != x or x.dtype != dtype:
            return None
        width = x.shape[-1]
        if leaf.shape[-1] != width or numel(leaf.shape) != width or numel(root.shape) * width != numel(x.shape):
            return None
        return rms_norm(pool, x, leaf.reshape(leaf.shape[-1:]), inner[1], offset)
    return None


def _weight_of(edge: Edge) -> tuple[bool, Edge | None, float]:
    """Return whether an edge is a norm's weight, its leaf, and the number added to it (Gemma stores weight - 1)."""
    if _is_weight(edge):
        return True, edge, 0.0
    if edge.term.op == "add_scalar" and _is_weight(inner := uncast(edge.term.args[0])):
        value = edge.term.attr("value")
        assert isinstance(value, float)
        return True, inner, value
    return False, None, 0.0


def _mean_square(root: Edge) -> tuple[Edge, float] | None:
    """Return the x and eps of rsqrt(mean(x², last axis) + eps); None when `root` is not of that form."""
    total = uncast(root.term.args[0])
    if total.term.op != "add_scalar":
        return None
    eps, mean = total.term.attr("value"), uncast(total.term.args[0])
    if mean.term.op != "mean_last" or not isinstance(eps, float):
        return None
    square = uncast(mean.term.args[0])
    if square.term.op != "square":
        return None
    return uncast(square.term.args[0].through(square.layout, square.base)), eps


def is_table(edge: Edge) -> bool:
    """Return whether the edge reads a position-only value that has one row per token."""
    return edge.term.op == "leaf" and edge.term.role == "table"


def _rope_full(pool: Pool, plain: Edge, rotated: Edge, dtype: DType) -> Edge | None:
    """Raise x · cos + rotate_half(x) · sin to `rope`, with tables as wide as the head; None for any other form."""
    if uncast(plain).term.op != "mul" or uncast(rotated).term.op != "mul":
        return None
    x, cos = _by_table(uncast(plain))
    turned, sin = _by_table(uncast(rotated))
    if x is None or cos is None or turned is None or sin is None:
        return None
    turned = uncast(turned)
    if turned.term.op != "cat" or not turned.plain or len(turned.term.args) != 2 or x.shape != turned.shape:
        return None
    half = x.shape[-1] // 2
    low, high = uncast(turned.term.args[1]), uncast(turned.term.args[0])
    if turned.term.attr("axis") != len(x.shape) - 1 or high.term.op != "neg":
        return None
    high = uncast(high.term.args[0].through(high.layout, high.base))
    x = uncast(x)
    if low != x.slice(-1, 0, half) or high != x.slice(-1, half, 2 * half):
        return None
    return rope(pool, x, cos, sin, dtype)


def _by_table(edge: Edge) -> tuple[Edge | None, Edge | None]:
    if edge.term.op != "mul" or not (args := operands(edge)):
        return None, None
    a, b = args
    if is_table(b) and not is_table(a):
        return a, b
    return (b, a) if is_table(a) and not is_table(b) else (None, None)


def rope(pool: Pool, x: Edge, cos: Edge, sin: Edge, dtype: DType) -> Edge | None:
    """Rotate the halves of x, taken as [1, heads, T, D], with cos and sin read as [1, T, D].

    None when the shapes or the order of the tables do not allow it.
    """
    width, tokens = x.shape[-1], pool.tokens
    if cos.shape[-1] != width or sin.shape[-1] != width or cos.base != (1, tokens, width) or sin.base != cos.base:
        return None
    if not cos.layout.is_order_kept(cos.base) or not sin.layout.is_order_kept(sin.base):
        return None
    others = list(range(len(x.shape) - 1))
    if tokens == TOKENS:
        axis = len(x.shape) - len(cos.shape) + cos.shape.index(TOKENS)
        if x.shape[axis] != TOKENS:
            return None
        others = [i for i in others if i != axis] + [axis]
    order = [*others, len(x.shape) - 1]
    heads = numel(x.shape) // (width * tokens)
    turned = x.permute(order)
    flat = turned.reshape((1, heads, tokens, width))
    tables = [Edge(t.term, t.index, dense(t.base)) for t in (cos, sin)]
    out = pool.op("rope", [flat, *tables], flat.shape, x.dtype, (("style", "half"),))
    back = out.reshape(turned.shape).permute([order.index(i) for i in range(len(order))])
    return cast(pool, back, dtype)


def cat(pool: Pool, parts: list[Edge], axis: int, dtype: DType) -> Edge:
    """Concatenate along an axis; this raises the spelling of `rope` by halves."""
    axis %= len(parts[0].shape)
    parts = [part for part in parts if part.shape[axis]] or parts[:1]
    if len(parts) == 1:
        return cast(pool, parts[0], dtype)
    if len(parts) == 2 and axis == len(parts[0].shape) - 1:
        raised = _rope_halves(pool, parts[0], parts[1], dtype)
        if raised is not None:
            return raised
    total = sum(part.shape[axis] for part in parts)
    shape = tuple(total if i == axis else extent for i, extent in enumerate(parts[0].shape))
    return pool.op("cat", parts, shape, dtype, (("axis", axis),))


def _rope_halves(pool: Pool, first: Edge, second: Edge, dtype: DType) -> Edge | None:
    """Raise cat(x1·cos - x2·sin, x2·cos + x1·sin) to `rope`, with tables half as wide as the head.

    None for any other form.
    """
    first, second = uncast(first), uncast(second)
    if first.term.op != "sub" or second.term.op != "add" or not operands(first) or not operands(second):
        return None
    x1, cos = _by_table(uncast(operands(first)[0]))
    x2, sin = _by_table(uncast(operands(first)[1]))
    if x1 is None or x2 is None or cos is None or sin is None:
        return None
    products = [_by_table(uncast(part)) for part in operands(second)]
    crossed = {(uncast(value), table) for value, table in products if value is not None and table is not None}
    x1, x2 = uncast(x1), uncast(x2)
    if crossed != {(x2, cos), (x1, sin)}:
        return None
    if (x := _whole(x1, x2)) is None:
        return None
    return rope(pool, x, _doubled(pool, cos), _doubled(pool, sin), dtype)


def _whole(low: Edge, high: Edge) -> Edge | None:
    if low.term is not high.term or low.index != high.index or low.shape != high.shape:
        return None
    half = low.shape[-1]
    groups = low.layout.per_dim()
    if len(groups[-1]) != 1 or groups[-1][0][1] != 1:
        return None
    groups[-1] = [(2 * half, 1)]
    whole = Edge(low.term, low.index, low.layout.regroup(groups, (*low.shape[:-1], 2 * half)))
    return whole if whole.slice(-1, 0, half) == low and whole.slice(-1, half, 2 * half) == high else None


def _doubled(pool: Pool, table: Edge) -> Edge:
    if not table.layout.is_order_kept(table.base):
        return table
    _, tokens, width = table.base
    wide = pool.leaf("table", f"{table.term.name}|2", (1, tokens, 2 * width), table.dtype)
    return wide.reshape((*table.shape[:-1], 2 * width))
