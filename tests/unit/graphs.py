"""Hand-made graphs for tests that need no torch: decoders as capture normalises them, and a builder for odd ones."""

from __future__ import annotations

from dataclasses import dataclass, field

from agentcompile.ir.graph import Attr, Dim, DType, Graph, Node, Phase, Role, Use, Value, View


def seen(value: str, *shape: Dim) -> Use:
    """An edge that reads `value` reshaped."""
    return Use(value=value, views=(View(op="reshape", args=shape),))


def permuted(value: str, shape: tuple[Dim, ...], axes: tuple[int, ...]) -> Use:
    """An edge that reads `value` reshaped, then permuted."""
    return Use(value=value, views=(View(op="reshape", args=shape), View(op="permute", args=axes)))


class Builder:
    """Collects values and nodes; every method returns the id of the value it adds."""

    def __init__(self, phase: Phase = "decode", dtype: DType = "bf16") -> None:
        self.phase: Phase = phase
        self.dtype: DType = dtype
        self.values: list[Value] = []
        self.nodes: list[Node] = []
        self.inputs: list[str] = []
        self.module = ""

    def input(self, name: str, shape: tuple[Dim, ...], role: Role = "weight", dtype: DType | None = None) -> str:
        """Add a graph input called `name`; its id differs from its name on purpose."""
        id = f"in_{name.replace('.', '_')}"
        if id not in self.inputs:
            self.values.append(Value(id=id, shape=shape, dtype=dtype or self.dtype, role=role, name=name))
            self.inputs.append(id)
        return id

    def op(
        self,
        op: str,
        *inputs: str | Use,
        shape: tuple[Dim, ...],
        dtype: DType | None = None,
        alias: str = "",
        mutates: tuple[int, ...] = (),
        **attrs: Attr,
    ) -> str:
        """Add a node with one output of this shape."""
        out = f"v{len(self.values)}"
        self.values.append(Value(id=out, shape=shape, dtype=dtype or self.dtype, role="activation", alias=alias))
        uses = tuple(use if isinstance(use, Use) else Use(value=use) for use in inputs)
        self.nodes.append(
            Node(
                id=f"{op}_{len(self.nodes)}",
                op=op,
                inputs=uses,
                outputs=(out,),
                attrs=tuple(sorted(attrs.items())),
                mutates=mutates,
                module=self.module,
            )
        )
        return out

    def graph(self, **outputs: str) -> Graph:
        """The finished graph with these named outputs."""
        return Graph(
            phase=self.phase,
            values=tuple(self.values),
            nodes=tuple(self.nodes),
            inputs=tuple(self.inputs),
            outputs=tuple((name, Use(value=value)) for name, value in outputs.items()),
        )


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A decoder's extents; small and unequal, so that a mix-up shows."""

    layers: int = 2
    vocab: int = 96
    hidden: int = 32
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 8
    width: int = 48
    context: int = 64
    qk_norm: bool = True
    tied: bool = True
    dtype: DType = "bf16"
    swapped: bool = field(default=False)
    """Spell the sums and products the other way round."""


def decoder(shape: Shape | None = None, phase: Phase = "decode") -> Graph:
    """A decoder as capture normalises it: Qwen3 with `qk_norm`, Llama without."""
    shape = shape or Shape()
    build = Builder(phase, shape.dtype)
    tokens: Dim = 1 if phase == "decode" else "T"
    token = build.input("token", (1, tokens), "token", "int64")
    positions = build.input("positions", (tokens,), "position", "int64")
    table = build.input("embed.weight", (shape.vocab, shape.hidden))
    x = build.op("embedding", token, table, shape=(1, tokens, shape.hidden))
    tables = [build.input(f"rope.{name}", (shape.context, shape.head_dim), "constant") for name in ("cos", "sin")]
    cos, sin = (build.op("position_table", positions, t, shape=(1, tokens, shape.head_dim)) for t in tables)
    for layer in range(shape.layers):
        x = _attention(build, shape, layer, x, cos, sin, positions, tokens)
        x = _mlp(build, shape, layer, x, tokens)
    build.module = "lm_head"
    norm = build.input("norm.weight", (shape.hidden,))
    n = build.op("rms_norm", x, norm, shape=(1, tokens, shape.hidden), eps=1e-6, offset=0.0)
    head = table if shape.tied else build.input("lm_head.weight", (shape.vocab, shape.hidden))
    last = n if phase == "decode" else Use(value=n, views=(View(op="slice", args=(1, -1, "T")),))
    logits = build.op("linear", last, head, shape=(1, 1, shape.vocab))
    if phase == "prefill":
        return build.graph(logits=logits)
    chosen = build.op("argmax", logits, shape=(1, 1), dtype="int64")
    return build.graph(logits=logits, token=chosen)


def _heads(shape: Shape, value: str, heads: int, tokens: Dim) -> Use:
    if tokens == 1:
        return seen(value, 1, heads, 1, shape.head_dim)
    return permuted(value, (1, tokens, heads, shape.head_dim), (0, 2, 1, 3))


def _attention(
    build: Builder, shape: Shape, layer: int, x: str, cos: str, sin: str, positions: str, tokens: Dim
) -> str:
    build.module = f"layers.{layer}.self_attn"
    d = shape.head_dim

    def weight(name: str, *extents: int) -> str:
        return build.input(f"layers.{layer}.{name}.weight", extents)

    def norm(value: str, heads: int, name: str) -> Use:
        use = seen(value, 1, tokens, heads, d)
        if not shape.qk_norm:
            return _heads(shape, value, heads, tokens)
        normed = build.op("rms_norm", use, weight(name, d), shape=(1, tokens, heads, d), eps=1e-6, offset=0.0)
        return _heads(shape, normed, heads, tokens)

    n = build.op(
        "rms_norm", x, weight("input_norm", shape.hidden), shape=(1, tokens, shape.hidden), eps=1e-6, offset=0.0
    )
    rows, kv_rows = shape.heads * d, shape.kv_heads * d
    q = norm(
        build.op("linear", n, weight("q_proj", rows, shape.hidden), shape=(1, tokens, rows)), shape.heads, "q_norm"
    )
    k = norm(
        build.op("linear", n, weight("k_proj", kv_rows, shape.hidden), shape=(1, tokens, kv_rows)),
        shape.kv_heads,
        "k_norm",
    )
    v = _heads(
        shape,
        build.op("linear", n, weight("v_proj", kv_rows, shape.hidden), shape=(1, tokens, kv_rows)),
        shape.kv_heads,
        tokens,
    )
    q = Use(value=build.op("rope", q, cos, sin, shape=(1, shape.heads, tokens, d), style="half"))
    k = Use(value=build.op("rope", k, cos, sin, shape=(1, shape.kv_heads, tokens, d), style="half"))
    caches = []
    for name, new in (("k", k), ("v", v)):
        extents = (1, shape.kv_heads, shape.context, d)
        state = build.input(f"{name}.{layer}", extents, "state")
        caches.append(build.op("cache_append", state, new, positions, shape=extents, alias=state, mutates=(0,)))
    y = build.op("attention", q, *caches, positions, shape=(1, shape.heads, tokens, d), scale=d**-0.5, window=0)
    flat = (
        seen(y, 1, 1, rows)
        if tokens == 1
        else Use(value=y, views=(View(op="permute", args=(0, 2, 1, 3)), View(op="reshape", args=(1, tokens, rows))))
    )
    p = build.op("linear", flat, weight("o_proj", shape.hidden, rows), shape=(1, tokens, shape.hidden))
    operands = (p, x) if shape.swapped else (x, p)
    return build.op("add", *operands, shape=(1, tokens, shape.hidden))


def _mlp(build: Builder, shape: Shape, layer: int, x: str, tokens: Dim) -> str:
    build.module = f"layers.{layer}.mlp"

    def weight(name: str, *extents: int) -> str:
        return build.input(f"layers.{layer}.{name}.weight", extents)

    wide, narrow = (1, tokens, shape.width), (1, tokens, shape.hidden)
    n = build.op("rms_norm", x, weight("post_norm", shape.hidden), shape=narrow, eps=1e-6, offset=0.0)
    g = build.op("linear", n, weight("gate_proj", shape.width, shape.hidden), shape=wide)
    a = build.op("silu", g, shape=wide)
    u = build.op("linear", n, weight("up_proj", shape.width, shape.hidden), shape=wide)
    h = build.op("mul", *((u, a) if shape.swapped else (a, u)), shape=wide)
    p = build.op("linear", h, weight("down_proj", shape.hidden, shape.width), shape=narrow)
    return build.op("add", *((p, x) if shape.swapped else (x, p)), shape=narrow)


def qwen3(layers: int = 2, **changes: object) -> Graph:
    """A tiny Qwen3 decode step: GQA, norms of q and k, tied embeddings."""
    return decoder(Shape(layers=layers, **changes))  # type: ignore[arg-type]


def llama(layers: int = 2, **changes: object) -> Graph:
    """A tiny Llama decode step: GQA, an untied head."""
    return decoder(Shape(**{"layers": layers, "qk_norm": False, "tied": False, **changes}))  # type: ignore[arg-type]
