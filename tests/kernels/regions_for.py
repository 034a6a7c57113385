"""Regions of any kind at any extents, cut from hand-made graphs: what tests evaluator kernels on."""

from __future__ import annotations

from collections.abc import Callable

from agentcompile.ir.graph import Attr, Dim, DType, Graph, Node, Role, Use, Value
from agentcompile.ir.region import Regime, Region
from agentcompile.regions.partition import partition

EPS = 1e-6


class _Graph:
    """Collects values and nodes of one decode graph."""

    def __init__(self, dtype: DType) -> None:
        self.dtype: DType = dtype
        self.values: list[Value] = []
        self.nodes: list[Node] = []
        self.inputs: list[str] = []

    def input(self, name: str, *shape: Dim, role: Role = "activation", dtype: DType | None = None) -> str:
        self.values.append(Value(id=name, shape=shape, dtype=dtype or self.dtype, role=role, name=name))
        self.inputs.append(name)
        return name

    def weight(self, name: str, *shape: Dim) -> str:
        return self.input(name, *shape, role="weight")

    def op(
        self,
        op: str,
        *inputs: str,
        shape: tuple[Dim, ...],
        dtype: DType | None = None,
        alias: str = "",
        mutates: tuple[int, ...] = (),
        **attrs: Attr,
    ) -> str:
        out = f"v{len(self.values)}"
        self.values.append(Value(id=out, shape=shape, dtype=dtype or self.dtype, role="activation", alias=alias))
        uses = tuple(Use(value=name) for name in inputs)
        self.nodes.append(
            Node(id=f"n{out}", op=op, inputs=uses, outputs=(out,), attrs=tuple(sorted(attrs.items())), mutates=mutates)
        )
        return out

    def done(self, *results: str) -> Graph:
        return Graph(
            phase="decode",
            values=tuple(self.values),
            nodes=tuple(self.nodes),
            inputs=tuple(self.inputs),
            outputs=tuple((f"out.{i}", Use(value=value)) for i, value in enumerate(results)),
        )


def _norm(g: _Graph, x: str, hidden: int, name: str = "norm", offset: float = 0.0) -> str:
    shape = next(value.shape for value in g.values if value.id == x)
    return g.op("rms_norm", x, g.weight(name, hidden), shape=shape, eps=EPS, offset=offset)


def _linears(g: _Graph, x: str, hidden: int, rows: tuple[int, ...], bias: bool) -> list[str]:
    found = []
    for i, count in enumerate(rows):
        extra = [g.weight(f"b{i}", count)] if bias else []
        found.append(g.op("linear", x, g.weight(f"w{i}", count, hidden), *extra, shape=(1, 1, count)))
    return found


def _linear(
    g: _Graph,
    *,
    hidden: int = 64,
    rows: tuple[int, ...] = (48,),
    bias: bool = False,
    norm: bool = False,
    offset: float = 0.0,
    residual: bool = False,
    argmax: bool = False,
    logits: bool = True,
) -> Graph:
    x = g.input("x", 1, 1, hidden)
    x = _norm(g, x, hidden, offset=offset) if norm else x
    ys = _linears(g, x, hidden, rows, bias)
    if residual:
        ys = [g.op("add", ys[0], g.input("r", 1, 1, rows[0]), shape=(1, 1, rows[0]))]
    if argmax:
        token = g.op("argmax", ys[0], shape=(1, 1), dtype="int64")
        ys = [ys[0], token] if logits else [token]
    return g.done(*ys)


def _swiglu(g: _Graph, *, hidden: int = 64, rows: int = 48, matrices: bool = True, norm: bool = False) -> Graph:
    if matrices:
        x = g.input("x", 1, 1, hidden)
        x = _norm(g, x, hidden) if norm else x
        gate, up = _linears(g, x, hidden, (rows, rows), bias=False)
    else:
        gate, up = g.input("g", 1, 1, rows), g.input("u", 1, 1, rows)
    a = g.op("silu", gate, shape=(1, 1, rows))
    return g.done(g.op("mul", a, up, shape=(1, 1, rows)))


def _attention(
    g: _Graph,
    *,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 16,
    context: int = 96,
    window: int = 0,
    qk_norm: bool = False,
) -> Graph:
    q, k = g.input("q", 1, heads, 1, head_dim), g.input("k", 1, kv_heads, 1, head_dim)
    v = g.input("v", 1, kv_heads, 1, head_dim)
    cos, sin = g.input("cos", 1, 1, head_dim), g.input("sin", 1, 1, head_dim)
    positions = g.input("positions", 1, role="position", dtype="int64")
    caches = [g.input(f"{name}.0", 1, kv_heads, context, head_dim, role="state") for name in "kv"]
    if qk_norm:
        q, k = _norm(g, q, head_dim, "q_norm"), _norm(g, k, head_dim, "k_norm")
    q = g.op("rope", q, cos, sin, shape=(1, heads, 1, head_dim), style="half")
    k = g.op("rope", k, cos, sin, shape=(1, kv_heads, 1, head_dim), style="half")
    full = (1, kv_heads, context, head_dim)
    stored = [
        g.op("cache_append", cache, new, positions, shape=full, alias=cache, mutates=(0,))
        for cache, new in zip(caches, (k, v), strict=True)
    ]
    attrs: dict[str, Attr] = {"scale": head_dim**-0.5} | ({"window": window} if window else {})
    return g.done(g.op("attention", q, *stored, positions, shape=(1, heads, 1, head_dim), **attrs))


def _embedding(g: _Graph, *, vocab: int = 97, hidden: int = 64) -> Graph:
    ids = g.input("token", 1, 1, role="token", dtype="int64")
    return g.done(g.op("embedding", ids, g.weight("table", vocab, hidden), shape=(1, 1, hidden)))


def _position_table(g: _Graph, *, context: int = 97, width: int = 64) -> Graph:
    positions = g.input("positions", 1, role="position", dtype="int64")
    table = g.input("table", context, width, role="constant")
    return g.done(g.op("position_table", positions, table, shape=(1, 1, width)))


def _position_tables(g: _Graph, *, context: int = 97, width: int = 64) -> Graph:
    positions = g.input("positions", 1, role="position", dtype="int64")
    tables = [g.input(name, context, width, role="constant") for name in ("cos", "sin")]
    return g.done(*(g.op("position_table", positions, table, shape=(1, 1, width)) for table in tables))


def _rmsnorm(g: _Graph, *, hidden: int = 64, groups: int = 1, offset: float = 0.0) -> Graph:
    x = g.input("x", 1, groups, 1, hidden) if groups > 1 else g.input("x", 1, 1, hidden)
    return g.done(_norm(g, x, hidden, offset=offset))


def _elementwise(op: str, operands: int) -> Callable[..., Graph]:
    def make(g: _Graph, *, width: int = 48) -> Graph:
        names = [g.input(name, 1, 1, width) for name in "ab"[:operands]]
        return g.done(g.op(op, *names, shape=(1, 1, width)))

    return make


_UNARY = ("silu", "gelu", "gelu_tanh", "relu", "sigmoid", "tanh")
_MAKERS: dict[str, tuple[Callable[..., Graph], dict[str, object]]] = {
    "embedding": (_embedding, {}),
    "position-table": (_position_table, {}),
    "position-tables": (_position_tables, {}),
    "rmsnorm": (_rmsnorm, {}),
    "linear": (_linear, {}),
    "linear-merged": (_linear, {"rows": (48, 16, 16)}),
    "rmsnorm-linear": (_linear, {"norm": True, "rows": (48, 16, 16)}),
    "linear-residual": (_linear, {"residual": True}),
    "silu-mul": (_swiglu, {"matrices": False}),
    "gateup-silu-mul": (_swiglu, {}),
    "rmsnorm-gateup-silu-mul": (_swiglu, {"norm": True}),
    "rope-attention-decode": (_attention, {}),
    "qknorm-rope-attention-decode": (_attention, {"qk_norm": True}),
    "linear-argmax": (_linear, {"argmax": True, "rows": (97,)}),
    "rmsnorm-linear-argmax": (_linear, {"argmax": True, "norm": True, "rows": (97,)}),
    **{op.replace("_", "-"): (_elementwise(op, 1), {}) for op in _UNARY},
    **{op: (_elementwise(op, 2), {}) for op in ("add", "sub", "mul", "div")},
}

KINDS: tuple[str, ...] = tuple(_MAKERS)
"""Every kind that `region_for` can make."""


def region_for(kind: str, dtype: DType = "bf16", **extents: object) -> Region:
    """One region of `kind`; `extents` are the makers' keywords (`hidden`, `rows`, `heads`, `context`, `bias`, …)."""
    make, fixed = _MAKERS[kind]
    graph = make(_Graph(dtype), **{**fixed, **extents})
    context = int(str(extents.get("context", 96)))
    cut = partition(graph, Regime(phase="decode", context=(1, context)))
    found = [region for region in cut.regions if region.kind == kind]
    return max(found, key=lambda region: len(region.body.nodes))
