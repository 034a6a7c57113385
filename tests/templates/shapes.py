"""One region of any kind at any extents, cut from a graph of its operators alone, as the compiler would cut it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from agentcompile.capture.batched import batched
from agentcompile.capture.chunked import at_tokens
from agentcompile.ir.graph import Dim, DType, Use, View
from agentcompile.ir.region import Regime, Region
from agentcompile.regions.partition import partition
from tests.unit.graphs import Builder, permuted, seen

CHUNK = 5
"""Tokens of a region that only a prefill has, unless they are given."""


@dataclass(frozen=True, kw_only=True)
class Extents:
    """What a region is made at; a kind reads those that it has."""

    hidden: int = 64
    rows: tuple[int, ...] = (48,)
    bias: bool = False
    q_heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    context: int = 80
    window: int = 0
    offset: float = 0.0
    dtype: DType = "bf16"
    batch: int = 1
    tokens: int = 0
    """Of a prefill's chunk; 0 makes a region of a decode step, where the kind has one."""

    @property
    def count(self) -> Dim:
        """Tokens of a sequence."""
        return "T" if self.tokens else 1


def region(kind: str, at: Extents, *, within: str = "") -> Region:
    """The region of `kind` at these extents, or the one inside the operators of another kind."""
    if at.tokens or kind in CHUNK_KINDS or kind in _ANY_CHUNK_MAKERS:
        return _of_chunk(kind, replace(at, tokens=at.tokens or CHUNK), within or kind)
    build = Builder("decode", at.dtype)
    outputs = _MAKERS[kind](build, at)
    graph = batched(build.graph(**outputs), at.batch)
    regime = Regime(phase="decode", batch=at.batch, context=(1, at.context))
    return next(region for region in partition(graph, regime).regions if region.kind == kind)


def any_chunk(kind: str, at: Extents) -> Region:
    """The region of `kind` of a prefill whose number of tokens is open, measured at `at.tokens` of them."""
    at = replace(at, tokens=at.tokens or CHUNK)
    build = Builder("prefill", at.dtype)
    graph = build.graph(**{**_MAKERS, **_CHUNK_MAKERS, **_ANY_CHUNK_MAKERS}[kind](build, at))
    regime = Regime(phase="prefill", context=(1, at.context))
    return next(region for region in partition(graph, regime, tokens=at.tokens).regions if region.kind == kind)


def _of_chunk(kind: str, at: Extents, within: str) -> Region:
    build = Builder("prefill", at.dtype)
    outputs = {**_MAKERS, **_CHUNK_MAKERS, **_ANY_CHUNK_MAKERS}[within](build, at)
    regime = Regime(phase="prefill", context=(1, at.context))
    found = partition(at_tokens(build.graph(**outputs), at.tokens), regime, tokens=at.tokens)
    return next(region for region in found.regions if region.kind == kind)


def _x(build: Builder, at: Extents) -> str:
    return build.input("x", (1, at.count, at.hidden), "activation")


def _norm(build: Builder, at: Extents, x: str) -> str:
    norm = build.input("norm", (at.hidden,))
    return build.op("rms_norm", x, norm, shape=(1, at.count, at.hidden), eps=1e-6, offset=at.offset)


def _linear(build: Builder, at: Extents, x: str, name: str, rows: int) -> str:
    inputs = [x, build.input(name, (rows, at.hidden))]
    if at.bias:
        inputs.append(build.input(f"{name}_bias", (rows,)))
    return build.op("linear", *inputs, shape=(1, at.count, rows))


def _linears(build: Builder, at: Extents, x: str) -> dict[str, str]:
    return {f"y{i}": _linear(build, at, x, f"w{i}", rows) for i, rows in enumerate(at.rows)}


def _residual(build: Builder, at: Extents) -> dict[str, str]:
    rows = at.rows[0]
    p = _linear(build, at, _x(build, at), "w", rows)
    return {"y": build.op("add", p, build.input("r", (1, at.count, rows), "activation"), shape=(1, at.count, rows))}


def _swiglu(build: Builder, at: Extents, x: str) -> dict[str, str]:
    shape = (1, at.count, at.rows[0])
    g, u = (_linear(build, at, x, name, at.rows[0]) for name in ("gate", "up"))
    return {"y": build.op("mul", build.op("silu", g, shape=shape), u, shape=shape)}


def _add(build: Builder, at: Extents) -> dict[str, str]:
    shape = (1, at.count, at.rows[0])
    return {"y": build.op("add", *(build.input(name, shape, "activation") for name in ("a", "b")), shape=shape)}


def _silu_mul(build: Builder, at: Extents) -> dict[str, str]:
    shape = (1, at.count, at.rows[0])
    g, u = (build.input(name, shape, "activation") for name in ("g", "u"))
    return {"y": build.op("mul", build.op("silu", g, shape=shape), u, shape=shape)}


def _choice(build: Builder, at: Extents, x: str) -> dict[str, str]:
    logits = _linear(build, at, x, "w", at.rows[0])
    return {"logits": logits, "token": build.op("argmax", logits, shape=(1, at.count), dtype="int64")}


def _embedding(build: Builder, at: Extents) -> dict[str, str]:
    ids = build.input("ids", (1, at.count), "token", "int64")
    table = build.input("table", (at.rows[0], at.hidden))
    return {"y": build.op("embedding", ids, table, shape=(1, at.count, at.hidden))}


def _position_table(build: Builder, at: Extents) -> dict[str, str]:
    positions = build.input("positions", (at.count,), "position", "int64")
    table = build.input("table", (at.context, at.hidden), "constant")
    return {"y": build.op("position_table", positions, table, shape=(1, at.count, at.hidden))}


def _position_tables(build: Builder, at: Extents) -> dict[str, str]:
    positions = build.input("positions", (at.count,), "position", "int64")
    made = {}
    for i, width in enumerate((at.hidden, at.hidden)):
        table = build.input(f"table.{i}", (at.context, width), "constant")
        made[f"y.{i}"] = build.op("position_table", positions, table, shape=(1, at.count, width))
    return made


def _attention(norms: bool) -> Callable[[Builder, Extents], dict[str, str]]:
    def make(build: Builder, at: Extents) -> dict[str, str]:
        d, positions = at.head_dim, build.input("positions", (1,), "position", "int64")
        cos, sin = (build.input(name, (1, 1, d), "activation") for name in ("cos", "sin"))
        turned = []
        for name, heads in (("q", at.q_heads), ("k", at.kv_heads)):
            value = build.input(name, (1, 1, heads * d), "activation")
            use = seen(value, 1, heads, 1, d)
            if norms:
                normed = build.op(
                    "rms_norm",
                    seen(value, 1, 1, heads, d),
                    build.input(f"{name}_norm", (d,)),
                    shape=(1, 1, heads, d),
                    eps=1e-6,
                    offset=at.offset,
                )
                use = seen(normed, 1, heads, 1, d)
            turned.append(build.op("rope", use, cos, sin, shape=(1, heads, 1, d), style="half"))
        v = seen(build.input("v", (1, 1, at.kv_heads * d), "activation"), 1, at.kv_heads, 1, d)
        caches = []
        for name, new in (("k.0", turned[1]), ("v.0", v)):
            extents = (1, at.kv_heads, at.context, d)
            state = build.input(name, extents, "state")
            caches.append(build.op("cache_append", state, new, positions, shape=extents, alias=state, mutates=(0,)))
        shape = (1, at.q_heads, 1, d)
        return {"y": build.op("attention", turned[0], *caches, positions, shape=shape, scale=d**-0.5, window=at.window)}

    return make


def _heads(at: Extents, value: str, heads: int, shaped: bool = False) -> Use:
    """A value of a chunk [1, T, heads · D] as capture shows it to rope and caches: [1, heads, T, D]."""
    if heads == 1:
        return seen(value, 1, 1, "T", at.head_dim)
    use = permuted(value, (1, "T", heads, at.head_dim), (0, 2, 1, 3))
    return replace(use, views=use.views[1:]) if shaped else use


def _appended(norms: bool) -> Callable[[Builder, Extents], dict[str, str]]:
    def make(build: Builder, at: Extents) -> dict[str, str]:
        d, positions = at.head_dim, build.input("positions", ("T",), "position", "int64")
        cos, sin = (build.input(name, (1, "T", d), "activation") for name in ("cos", "sin"))
        turned = []
        for name, heads in (("q", at.q_heads), ("k", at.kv_heads)):
            value = build.input(name, (1, "T", heads * d), "activation")
            if norms:
                norm, shape = build.input(f"{name}_norm", (d,)), (1, "T", heads, d)
                value = build.op("rms_norm", seen(value, *shape), norm, shape=shape, eps=1e-6, offset=at.offset)
            use = _heads(at, value, heads, shaped=norms)
            turned.append(build.op("rope", use, cos, sin, shape=(1, heads, "T", d), style="half"))
        v = _heads(at, build.input("v", (1, "T", at.kv_heads * d), "activation"), at.kv_heads)
        caches = []
        for name, new in (("k.0", turned[1]), ("v.0", v)):
            extents = (1, at.kv_heads, at.context, d)
            state = build.input(name, extents, "state")
            caches.append(build.op("cache_append", state, new, positions, shape=extents, alias=state, mutates=(0,)))
        shape = (1, at.q_heads, "T", d)
        return {"y": build.op("attention", turned[0], *caches, positions, shape=shape, scale=d**-0.5, window=at.window)}

    return make


def _add_norm(build: Builder, at: Extents) -> dict[str, str]:
    shape = (1, at.count, at.hidden)
    s = build.op("add", *(build.input(name, shape, "activation") for name in ("a", "b")), shape=shape)
    return {"s": s, "y": _norm(build, at, s)}


def _last(build: Builder, at: Extents) -> dict[str, str]:
    last = Use(value=_x(build, at), views=(View(op="slice", args=(1, -1, "T")),))
    norm, shape = build.input("norm", (at.hidden,)), (1, 1, at.hidden)
    n = build.op("rms_norm", last, norm, shape=shape, eps=1e-6, offset=at.offset)
    return {"y": _linear(build, replace(at, tokens=0), n, "w", at.rows[0])}


def _heads_residual(build: Builder, at: Extents) -> dict[str, str]:
    rows, width = at.rows[0], at.q_heads * at.head_dim
    x = build.input("x", (1, at.q_heads, "T", at.head_dim), "activation")
    views = (View(op="permute", args=(0, 2, 1, 3)), View(op="reshape", args=(1, "T", width)))
    inputs = [build.input("w", (rows, width))] + [build.input("w_bias", (rows,))] * at.bias
    p = build.op("linear", Use(value=x, views=views), *inputs, shape=(1, "T", rows))
    return {"y": build.op("add", p, build.input("r", (1, "T", rows), "activation"), shape=(1, "T", rows))}


_MAKERS: dict[str, Callable[[Builder, Extents], dict[str, str]]] = {
    "embedding": _embedding,
    "position-table": _position_table,
    "position-tables": _position_tables,
    "add": _add,
    "rmsnorm": lambda b, at: {"y": _norm(b, at, _x(b, at))},
    "linear": lambda b, at: _linears(b, at, _x(b, at)),
    "linear-merged": lambda b, at: _linears(b, at, _x(b, at)),
    "rmsnorm-linear": lambda b, at: _linears(b, at, _norm(b, at, _x(b, at))),
    "linear-residual": _residual,
    "silu-mul": _silu_mul,
    "gateup-silu-mul": lambda b, at: _swiglu(b, at, _x(b, at)),
    "rmsnorm-gateup-silu-mul": lambda b, at: _swiglu(b, at, _norm(b, at, _x(b, at))),
    "rope-attention-decode": _attention(False),
    "qknorm-rope-attention-decode": _attention(True),
    "linear-argmax": lambda b, at: _choice(b, at, _x(b, at)),
    "rmsnorm-linear-argmax": lambda b, at: _choice(b, at, _norm(b, at, _x(b, at))),
}

_CHUNK_MAKERS: dict[str, Callable[[Builder, Extents], dict[str, str]]] = {
    "add-rmsnorm": _add_norm,
    "rope-append": _appended(False),
    "qknorm-rope-append": _appended(True),
}

_ANY_CHUNK_MAKERS: dict[str, Callable[[Builder, Extents], dict[str, str]]] = {
    "rope-attention-prefill": _appended(False),
    "qknorm-rope-attention-prefill": _appended(True),
    "last-rmsnorm-linear": _last,
    "heads-linear-residual": _heads_residual,
}
"""Those of a prefill whose kernels serve chunks of any length on a CPU."""

KINDS: tuple[str, ...] = tuple(_MAKERS)
"""Every kind of a decode step that `region` can make."""
CHUNK_KINDS: tuple[str, ...] = tuple(_CHUNK_MAKERS)
"""Every kind that only a prefill has."""
