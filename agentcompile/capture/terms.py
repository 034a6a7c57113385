"""Terms: the normalised program while it is built. Values are immutable, shared, and read through layouts.

A `Term` is one operator on `Edge`s. A `Pool` makes equal terms one object, so common subexpressions merge, and two
spellings that simplify to the same terms are the same program.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from agentcompile.capture.layout import Inexpressible, Layout, Shape, chain, dense
from agentcompile.ir.graph import Attr, DType

Attrs = tuple[tuple[str, Attr], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Term:
    """One operator application, or a leaf (op `leaf`, with `role` and `name`). Terms are compared by identity."""

    op: str
    args: tuple[Edge, ...]
    attrs: Attrs
    outs: tuple[tuple[Shape, DType], ...]
    role: str = "activation"
    name: str = ""
    """For a leaf, the tensor's name; for a `table` leaf, the key of the position-only program."""
    writes: tuple[int, ...] = ()
    """The arguments whose buffer the operator writes; output 0 then lives in the buffer of argument `writes[0]`."""
    module: str = ""
    source: str = ""
    depth: int = 0
    mark: str = ""
    """A digest of the structure below without names; it orders the operands of commutative operators."""

    def attr(self, name: str) -> Attr:
        """Return the attribute `name`.

        Raises:
            KeyError: the term has no such attribute.
        """
        return dict(self.attrs)[name]


@dataclass(frozen=True, slots=True)
class Edge:
    """Output `index` of a term, read through a layout."""

    term: Term
    index: int
    layout: Layout

    @property
    def shape(self) -> Shape:
        """The shape that the reader sees."""
        return self.layout.shape

    @property
    def base(self) -> Shape:
        """The shape of the dense buffer underneath."""
        return self.term.outs[self.index][0]

    @property
    def dtype(self) -> DType:
        """The dtype of the elements."""
        return self.term.outs[self.index][1]

    @property
    def plain(self) -> bool:
        """Whether the edge is the dense buffer itself."""
        return self.layout == dense(self.base)

    def reshape(self, shape: Sequence[int]) -> Edge:
        """Return a view in another shape."""
        return Edge(self.term, self.index, self.layout.reshape(shape))

    def permute(self, axes: Sequence[int]) -> Edge:
        """Return a view with reordered dimensions."""
        return Edge(self.term, self.index, self.layout.permute(axes))

    def expand(self, shape: Sequence[int]) -> Edge:
        """Return a broadcast view."""
        return Edge(self.term, self.index, self.layout.expand(shape))

    def slice(self, axis: int, start: int, stop: int, step: int = 1) -> Edge:
        """Return a view of part of an axis."""
        return Edge(self.term, self.index, self.layout.slice(axis % len(self.shape), start, stop, step))

    def select(self, axis: int, index: int) -> Edge:
        """Return a view of one index of an axis, without the axis."""
        return Edge(self.term, self.index, self.layout.select(axis % len(self.shape), index))

    def through(self, layout: Layout, base: Shape) -> Edge:
        """Apply a layout over `base` to this edge, whose elements are those of that base."""
        if layout.is_order_kept(base):
            return self.reshape(layout.shape)
        if self.layout.is_order_kept(self.base):
            return Edge(self.term, self.index, layout)
        return _replay(self.reshape(base), layout, base)


def _replay(edge: Edge, layout: Layout, base: Shape) -> Edge:
    """Apply a layout step by step; no bound is symbolic, because extents are still integers here."""
    from agentcompile.capture.layout import TOKENS

    def number(arg: int | str) -> int:
        return TOKENS if arg == "T" else int(arg)

    for view in chain(layout, base):
        args = [number(arg) for arg in view.args]
        if view.op == "reshape":
            edge = edge.reshape(args)
        elif view.op == "permute":
            edge = edge.permute(args)
        elif view.op == "expand":
            edge = edge.expand(args)
        else:
            axis, start, stop = args
            extent = edge.shape[axis]
            edge = edge.slice(axis, start % extent if start < 0 else start, stop % extent if stop < 0 else stop)
    return edge


def inverse(edge: Edge, layout: Layout, base: Shape) -> Edge:
    """Undo a bijective layout over `base`: turn an edge shaped like the view into one shaped like the base."""
    order = sorted(range(len(layout.atoms)), key=lambda i: -layout.atoms[i][1])
    return edge.reshape([size for size, _ in layout.atoms]).permute(order).reshape(base)


def of(term: Term, index: int = 0) -> Edge:
    """Return the plain edge to a term's output."""
    return Edge(term, index, dense(term.outs[index][0]))


@dataclass(slots=True)
class Pool:
    """Makes terms, with equal terms as one object. `tokens` is the extent of the token axis (1, or `TOKENS`)."""

    tokens: int
    module: str = ""
    source: str = ""
    """The source line of the terms that are made next; `module` is their module path."""
    _terms: dict[tuple[object, ...], Term] = field(default_factory=dict)

    def make(
        self,
        op: str,
        args: Sequence[Edge],
        outs: Sequence[tuple[Shape, DType]],
        attrs: Attrs = (),
        *,
        role: str = "activation",
        name: str = "",
        writes: tuple[int, ...] = (),
    ) -> Term:
        """Return the term with these parts; equal terms are made once."""
        args, attrs = tuple(args), tuple(sorted(attrs))
        key = (op, tuple((id(e.term), e.index, e.layout) for e in args), attrs, tuple(outs), role, name, writes)
        if (found := self._terms.get(key)) is not None:
            return found
        depth = 1 + max((edge.term.depth for edge in args), default=0)
        below = [(e.term.mark, e.index, e.layout.offset, e.layout.atoms, e.layout.shape) for e in args]
        mark = hashlib.sha256(repr((op, below, attrs, tuple(outs), role)).encode()).hexdigest()
        term = Term(op, args, attrs, tuple(outs), role, name, writes, self.module, self.source, depth, mark)
        self._terms[key] = term
        return term

    def leaf(self, role: str, name: str, shape: Shape, dtype: DType) -> Edge:
        """Return an input of the graph."""
        return of(self.make("leaf", (), [(shape, dtype)], role=role, name=name))

    def op(self, op: str, args: Sequence[Edge], shape: Shape, dtype: DType, attrs: Attrs = ()) -> Edge:
        """Return the plain edge to a single-output operator."""
        return of(self.make(op, args, [(shape, dtype)], attrs))

    def unary(self, op: str, x: Edge, attrs: Attrs = (), dtype: DType | None = None) -> Edge:
        """Apply an elementwise operator of one operand; reshapes and permutes of the operand move to the result."""
        dtype = dtype or x.dtype
        if x.layout.is_bijective(x.base):
            base = Edge(x.term, x.index, dense(x.base))
            return Edge(self.make(op, [base], [(x.base, dtype)], attrs), 0, x.layout)
        return self.op(op, [x], x.shape, dtype, attrs)

    def binary(self, op: str, a: Edge, b: Edge, dtype: DType, *, commutes: bool) -> Edge:
        """Apply an elementwise operator of two operands; the deeper one comes first where the order does not matter."""
        if commutes and (b.term.depth, b.term.mark) > (a.term.depth, a.term.mark):
            a, b = b, a
        if a.shape == b.shape and a.layout.is_bijective(a.base):
            try:
                moved = inverse(b, a.layout, a.base)
            except Inexpressible:
                return self.op(op, [a, b], a.shape, dtype)
            inner = self.make(op, [Edge(a.term, a.index, dense(a.base)), moved], [(a.base, dtype)])
            return Edge(inner, 0, a.layout)
        return self.op(op, [a, b], broadcast(a.shape, b.shape), dtype)


def broadcast(a: Shape, b: Shape) -> Shape:
    """Return the common shape of two operands."""
    width = max(len(a), len(b))
    pairs = zip((1,) * (width - len(a)) + a, (1,) * (width - len(b)) + b, strict=True)
    return tuple(y if x == 1 else x for x, y in pairs)


def uncast(edge: Edge) -> Edge:
    """Look through casts and return the value that was cast."""
    while edge.term.op == "cast":
        edge = edge.term.args[0].through(edge.layout, edge.base)
    return edge


def operands(edge: Edge) -> tuple[Edge, ...]:
    """Return the operands of an elementwise term as this edge sees them; empty when the views do not carry over."""
    if edge.plain:
        return edge.term.args
    if all(arg.shape == edge.base for arg in edge.term.args):
        return tuple(arg.through(edge.layout, edge.base) for arg in edge.term.args)
    return ()


def numel(shape: Shape) -> int:
    """Return the number of elements of a shape."""
    return math.prod(shape)
