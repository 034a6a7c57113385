"""The table of region kinds; adding a kind is adding a row. Order is policy: later and larger rows come last.

Every operator that no single-line row names is a kind of its own, made by `single_kind`, so every graph has a cover.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

from agentcompile.ir.graph import Node, Phase
from agentcompile.ir.kind import KindFacts, PortFacts
from agentcompile.ir.region import Access, PortRole
from agentcompile.regions.pattern import Arg, Line, MatchStep, Pattern, Size, parse_pattern, parse_sizes
from agentcompile.regions.views import BufferView, parse_views


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A name and the pattern of operators it covers; templates and kernels read its `dims` and `constants`."""

    name: str
    pattern: tuple[str, ...]
    dims: str = ""
    constants: str = ""
    exposes: tuple[str, ...] = ()
    """Names that are read inside and may also be read outside; where they are, they become output ports."""
    hot: bool = False
    """Whether most of a decoder's step is spent here. Such kinds are searched first and get the larger share of a
    budget.
    """
    phases: tuple[Phase, ...] = ("decode", "prefill")
    beside: tuple[str, ...] = ()
    """Lines that must match around the pattern but belong to another region: they say which operators go together."""
    views: tuple[str, ...] = ()
    """The views through which operators read values that are not dense buffers. A match that reads through any other
    view is not a region.
    """

    @functools.cached_property
    def parsed(self) -> Pattern:
        """The pattern's lines and match plan."""
        return parse_pattern(self.name, self.pattern, self.beside)

    @functools.cached_property
    def sizes(self) -> tuple[Size, ...]:
        """The named extents."""
        return parse_sizes(self.name, self.dims, self.parsed)

    @functools.cached_property
    def scalars(self) -> tuple[Size, ...]:
        """The named scalars."""
        return parse_sizes(self.name, self.constants, self.parsed)

    @functools.cached_property
    def stated(self) -> tuple[BufferView, ...]:
        """The stated views."""
        return parse_views(self.name, self.views, self.parsed, self.sizes)


_APPENDS = ("kc = cache_append(k_cache, kr, positions)", "vc = cache_append(v_cache, v, positions)")
_ATTENTION = (*_APPENDS, "y = attention(qr, kc, vc, positions)")
_ROTATED = ("qr = rope(q, cos, sin; style=half)", "kr = rope(k, cos, sin; style=half)", *_ATTENTION)
_NORMED_ROTATED = (
    "qn = rms_norm(q, q_norm)",
    "kn = rms_norm(k, k_norm)",
    "qr = rope(qn, cos, sin; style=half)",
    "kr = rope(kn, cos, sin; style=half)",
    *_ATTENTION,
)
_WIDTH = "k_cache[3],v_cache[3]"
_HEADS = f"q_heads=qr[1] kv_heads=k_cache[1] head_dim={_WIDTH} context=k_cache[2] window=y.window"
_NORMED = f"{_WIDTH},q_norm[0],k_norm[0]"
"""The head width where queries and keys are normalised per head; other models normalise all heads at once."""
_CHUNK_HEADS = f"q_heads=y[1] kv_heads=k_cache[1] head_dim={_WIDTH} context=k_cache[2]"
_Q, _K = "[1, tokens, q_heads, head_dim]", "[1, tokens, kv_heads, head_dim]"
"""The heads of a chunk as matrix products leave them: the heads of one token are adjacent."""
_TURNED = "by 0 2 1 3"
_TOKENS_FIRST = (f"q = {_Q} {_TURNED}", f"k = {_K} {_TURNED}", f"v = {_K} {_TURNED}")
_NORMED_TOKENS_FIRST = (
    f"q = {_Q}", f"k = {_K}", f"qn = {_Q} {_TURNED}", f"kn = {_K} {_TURNED}", f"v = {_K} {_TURNED}"
)  # fmt: skip
_SWIGLU = ("a = silu(g)", "y = mul(a, u)")

REGION_KINDS: tuple[Kind, ...] = (
    Kind(name="embedding", pattern=("y = embedding(ids, table)",), dims="vocab=table[0] hidden=table[1]"),
    Kind(
        name="position-table", pattern=("y = position_table(positions, table)",), dims="context=table[0] width=table[1]"
    ),
    Kind(
        name="position-tables",
        pattern=("y* = position_table(positions, table*)",),
        dims="context=table[0] width=sum(table[1])",
    ),
    Kind(
        name="rmsnorm",
        pattern=("y = rms_norm(x, norm)",),
        dims="hidden=norm[0] groups=numel(x)/hidden",
        constants="eps=y.eps offset=y.offset",
    ),
    Kind(name="linear", pattern=("y = linear(x, w, b?)",), dims="hidden=w[1] rows=w[0]", hot=True),
    Kind(name="linear-merged", pattern=("y* = linear(x, w*, b*?)",), dims="hidden=w[1] rows=sum(w[0])", hot=True),
    Kind(
        name="rmsnorm-linear",
        pattern=("n = rms_norm(x, norm)", "y+ = linear(n, w+, b+?)"),
        dims="hidden=w[1],norm[0] rows=sum(w[0])",
        constants="eps=n.eps offset=n.offset",
        hot=True,
    ),
    Kind(
        name="linear-residual",
        pattern=("p = linear(x, w, b?)", "y = add(p, r)"),
        dims="hidden=w[1] rows=w[0]",
        hot=True,
    ),
    Kind(
        # A chunk's attention leaves the tokens of a head adjacent, and the product behind it reads those of a token.
        name="heads-linear-residual",
        pattern=("p = linear(x, w, b?)", "y = add(p, r)"),
        dims="hidden=w[1] rows=w[0] heads=x[1] head_dim=x[3]",
        views=("x = [1, heads, tokens, head_dim] by 0 2 1 3 joined",),
        hot=True,
        phases=("prefill",),
    ),
    Kind(
        # In a decode step the add belongs to the product before it, and the norm to the products after it.
        name="add-rmsnorm",
        pattern=("s = add(a, b)", "y = rms_norm(s, norm)"),
        dims="hidden=norm[0] groups=numel(y)/hidden",
        constants="eps=y.eps offset=y.offset",
        exposes=("s",),
        phases=("prefill",),
    ),
    Kind(name="silu-mul", pattern=_SWIGLU, dims="width=numel(g)"),
    Kind(
        name="gateup-silu-mul",
        pattern=("g = linear(x, wg)", "u = linear(x, wu)", *_SWIGLU),
        dims="hidden=wg[1] rows=wg[0]",
        hot=True,
    ),
    Kind(
        name="rmsnorm-gateup-silu-mul",
        pattern=("n = rms_norm(x, norm)", "g = linear(n, wg)", "u = linear(n, wu)", *_SWIGLU),
        dims="hidden=wg[1],norm[0] rows=wg[0]",
        constants="eps=n.eps offset=n.offset",
        hot=True,
    ),
    Kind(
        name="rope-attention-decode",
        pattern=_ROTATED,
        dims=_HEADS,
        constants="scale=y.scale",
        hot=True,
        phases=("decode",),
    ),
    Kind(
        name="qknorm-rope-attention-decode",
        pattern=_NORMED_ROTATED,
        dims=_HEADS.replace(_WIDTH, _NORMED),
        constants="scale=y.scale eps=qn.eps,kn.eps offset=qn.offset,kn.offset",
        hot=True,
        phases=("decode",),
    ),
    Kind(
        name="rope-attention-prefill",
        pattern=_ROTATED,
        dims=_HEADS,
        constants="scale=y.scale",
        views=_TOKENS_FIRST,
        hot=True,
        phases=("prefill",),
    ),
    Kind(
        name="qknorm-rope-attention-prefill",
        pattern=_NORMED_ROTATED,
        dims=_HEADS.replace(_WIDTH, _NORMED),
        constants="scale=y.scale eps=qn.eps,kn.eps offset=qn.offset,kn.offset",
        views=_NORMED_TOKENS_FIRST,
        hot=True,
        phases=("prefill",),
    ),
    Kind(
        name="rope-append",
        pattern=("y = rope(q, cos, sin; style=half)", "kr = rope(k, cos, sin; style=half)", *_APPENDS),
        beside=("attended = attention(y, kc, vc, positions)",),
        dims=_CHUNK_HEADS,
        views=_TOKENS_FIRST,
        phases=("prefill",),
    ),
    Kind(
        name="qknorm-rope-append",
        pattern=(
            "qn = rms_norm(q, q_norm)",
            "kn = rms_norm(k, k_norm)",
            "y = rope(qn, cos, sin; style=half)",
            "kr = rope(kn, cos, sin; style=half)",
            *_APPENDS,
        ),
        beside=("attended = attention(y, kc, vc, positions)",),
        dims=_CHUNK_HEADS.replace(_WIDTH, _NORMED),
        constants="eps=qn.eps,kn.eps offset=qn.offset,kn.offset",
        views=_NORMED_TOKENS_FIRST,
        phases=("prefill",),
    ),
    Kind(
        name="last-rmsnorm-linear",
        pattern=("n = rms_norm(x, norm)", "y = linear(n, w, b?)"),
        dims="hidden=w[1],norm[0] rows=w[0]",
        constants="eps=n.eps offset=n.offset",
        views=("x = [1, tokens, hidden] last",),
        hot=True,
        phases=("prefill",),
    ),
    Kind(
        name="linear-argmax",
        pattern=("logits = linear(x, w, b?)", "token = argmax(logits)"),
        dims="hidden=w[1] rows=w[0]",
        exposes=("logits",),
        hot=True,
    ),
    Kind(
        name="rmsnorm-linear-argmax",
        pattern=("n = rms_norm(x, norm)", "logits = linear(n, w, b?)", "token = argmax(logits)"),
        dims="hidden=w[1],norm[0] rows=w[0]",
        constants="eps=n.eps offset=n.offset",
        exposes=("logits",),
        hot=True,
    ),
)

SIGNATURES: dict[str, tuple[str, ...]] = {
    "embedding": ("ids", "table"),
    "position_table": ("positions", "table"),
    "rms_norm": ("x", "norm"),
    "linear": ("x", "w", "b"),
    "rope": ("x", "cos", "sin"),
    "cache_append": ("cache", "new", "positions"),
    "attention": ("q", "k_cache", "v_cache", "positions"),
    **dict.fromkeys(("silu", "gelu_tanh", "gelu", "relu", "sigmoid", "tanh"), ("x",)),
    **dict.fromkeys(("add", "sub", "mul", "div"), ("a", "b")),
    "argmax": ("x",),
    "cast": ("x",),
}
"""The normalised operators, each with the names of its inputs' ports in a region of that one operator."""


WEIGHT_INPUTS: Mapping[str, tuple[int, ...]] = {
    "embedding": (1,), "position_table": (1,), "rms_norm": (1,), "linear": (1, 2),
}  # fmt: skip
"""The inputs that hold weights or constant tables, by operator."""
STATE_INPUTS: Mapping[str, tuple[int, ...]] = {"cache_append": (0,), "attention": (1, 2)}
"""The inputs that hold states, by operator."""
APPENDS = "cache_append"
"""The operator that writes its first input; its result lives in that input and is not a port."""


SINGLE_DIMS = (Size(name="numel", form="numel", of=("y",)),)
"""The extents of a one-operator kind with one result: the number of elements of that result."""


def kind_order(name: str) -> int:
    """Return the row of kind `name` in `REGION_KINDS`; -1 for an operator that is a kind of its own."""
    return next((i for i, kind in enumerate(REGION_KINDS) if kind.name == name), -1)


def hot_kinds() -> frozenset[str]:
    """Return the names of the kinds in which most of a decoder's step is spent."""
    return frozenset(kind.name for kind in REGION_KINDS if kind.hot)


@functools.lru_cache(maxsize=1024)
def _single(op: str, inputs: int) -> Pattern:
    names = SIGNATURES.get(op, ())
    if len(names) < inputs:
        names = tuple(f"x.{i}" for i in range(inputs))
    line = Line(out="y", family="", op=op, args=tuple(Arg(name=name) for name in names[:inputs]))
    return Pattern(lines=(line,), plan=(MatchStep(line=0, move="scan"),))


def single_kind(node: Node) -> tuple[str, Pattern]:
    """Return the kind that an operator forms by itself, as its name and its pattern.

    The name of ``rms_norm`` is ``rms-norm``; the inputs of an unknown operator are called x.0, x.1 and so on.
    """
    return node.op.replace("_", "-").replace(".", "-"), _single(node.op, len(node.inputs))


def facts() -> Mapping[str, KindFacts]:
    """Return the interface of every kind that templates may serve: the table's rows, then other single operators."""
    found = {row.name: _facts(row.name, row.parsed, row.sizes, row.scalars, row.exposes) for row in REGION_KINDS}
    rows = {row.parsed.lines[0].op for row in REGION_KINDS if _is_single(row.parsed)}
    for op, names in SIGNATURES.items():
        if op not in rows:
            name = op.replace("_", "-")
            found[name] = _facts(name, _single(op, len(names)), SINGLE_DIMS, (), ())
    return found


def _is_single(pattern: Pattern) -> bool:
    return len(pattern.lines) == 1 and not pattern.lines[0].family


def _facts(
    name: str, pattern: Pattern, dims: tuple[Size, ...], constants: tuple[Size, ...], exposes: tuple[str, ...]
) -> KindFacts:
    ports: dict[str, PortFacts] = {}
    for line in pattern.lines:
        for k, arg in enumerate(line.args):
            if arg.name not in pattern.defined:
                ports.setdefault(arg.name, _port(line, k, arg))
    in_place = {line.out for line in pattern.lines if line.op == APPENDS}
    for line in pattern.lines:
        if line.out in pattern.results | set(exposes) and line.out not in in_place:
            many, optional = bool(line.family), line.out in exposes
            ports[line.out] = PortFacts(family=line.out, role="output", access="write", many=many, optional=optional)
    return KindFacts(
        name=name,
        ports=tuple(ports.values()),
        dims=("tokens", *(size.name for size in dims)),
        constants=tuple(size.name for size in constants),
        interior=tuple(line.out for line in pattern.lines if line.out not in pattern.results | in_place),
        weights=tuple(f"{line.out}.weights" for line in pattern.lines if line.op == "attention"),
    )


def _port(line: Line, k: int, arg: Arg) -> PortFacts:
    role: PortRole = "activation"
    if k in WEIGHT_INPUTS.get(line.op, ()):
        role = "weight"
    elif k in STATE_INPUTS.get(line.op, ()):
        role = "state"
    access: Access = "append" if line.op == APPENDS and k == 0 else "read"
    return PortFacts(family=arg.name, role=role, access=access, many=bool(arg.family), optional=arg.optional)
