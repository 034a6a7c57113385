"""Turns terms into the graph: live operators in a canonical order, views on edges, constants tabulated and merged."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

from agentcompile.capture import attention
from agentcompile.capture.importing import Importer
from agentcompile.capture.layout import Inexpressible, Shape, chain, dims
from agentcompile.capture.terms import Edge, Term
from agentcompile.errors import AgentCompileError
from agentcompile.ir.graph import Attr, DType, Graph, Node, Phase, Role, Use, Value
from agentcompile.ops.reference import OPERATORS

NORMALISED = frozenset(OPERATORS)
"""The operators with a normalised meaning; every other operator is kept by its ATen name."""

X, Y = {"$": 0}, {"$": 1}
ROLES: dict[str, Role] = {
    "token": "token",
    "position": "position",
    "weight": "weight",
    "state": "state",
    "constant": "constant",
}
TABLE_ELEMENTS = 1 << 28
"""The size, in elements, beyond which a position table is computed at run time instead of stored."""


def _aten(term: Term) -> tuple[str, list[object]]:
    match term.op:
        case "mean_last":
            return "aten.mean.dim", [X, [-1], True]
        case "sum_last":
            return "aten.sum.dim_IntList", [X, [-1], True]
        case "square":
            return "aten.pow.Tensor_Scalar", [X, 2]
        case "neg" | "sqrt" | "rsqrt":
            return f"aten.{term.op}.default", [X]
        case "add_scalar" | "mul_scalar":
            return f"aten.{term.op.partition('_')[0]}.Scalar", [X, term.attr("value")]
        case "softmax":
            return "aten.softmax.int", [X, -1]
        case "matmul":
            return "aten.matmul.default", [X, Y]
        case "cat":
            return "aten.cat.default", [[{"$": i} for i in range(len(term.args))], term.attr("axis")]
        case "masked" if term.attr("keeps"):
            return "aten.where.ScalarOther", [Y, X, float(str(term.attr("value")))]
        case "masked":
            return "aten.masked_fill.Scalar", [X, Y, float(str(term.attr("value")))]
        case _:
            raise AssertionError(term.op)


@dataclass(slots=True)
class Emitter:
    """Builds one graph. The graphs of a model share `constants`, so that equal tables have one name."""

    imp: Importer
    constants: dict[str, torch.Tensor]
    _values: dict[str, Value] = field(default_factory=dict)
    _nodes: list[Node] = field(default_factory=list)
    _ids: dict[tuple[int, int], str] = field(default_factory=dict)
    _inputs: dict[str, None] = field(default_factory=dict)
    _names: dict[int, str] = field(default_factory=dict)
    """The name of a position table, by the id of its leaf."""
    _tables: dict[tuple[int, bool, DType], str] = field(default_factory=dict)
    """The constant for a table of the importer. Layers share tables, and comparing their bytes takes long."""
    unknown: dict[str, int] = field(default_factory=dict)

    def graph(self, phase: Phase, outputs: list[tuple[str, Edge]], states: Iterable[Edge]) -> Graph:
        """Build the graph that computes `outputs` and writes `states`."""
        roots = [edge.term for _, edge in outputs] + [edge.term for edge in states]
        live = _ordered(roots)
        for term in live:
            if term.op == "rope":
                self._names.setdefault(id(term.args[1].term), "rope.cos")
                self._names.setdefault(id(term.args[2].term), "rope.sin")
        for term in live:
            self._term(term)
        made = tuple((name, self._use(edge)) for name, edge in outputs)
        order = {"token": 0, "position": 1, "weight": 2, "state": 3, "constant": 4}
        inputs = sorted(self._inputs, key=lambda i: order[self._values[i].role])
        rank = {name: i for i, name in enumerate(inputs)}
        values = sorted(self._values.values(), key=lambda v: rank.get(v.id, len(rank)))
        notes = [f"{op} x{count}: kept by name, run by PyTorch" for op, count in sorted(self.unknown.items())]
        return Graph(
            phase=phase,
            values=tuple(values),
            nodes=tuple(self._nodes),
            inputs=tuple(inputs),
            outputs=made,
            notes=tuple(notes),
        )

    def _value(self, id: str, shape: Shape, dtype: DType, role: Role, alias: str = "") -> str:
        if id not in self._values:
            try:
                extents = dims(shape)
            except Inexpressible as error:
                raise AgentCompileError(
                    f"a value of the captured program has {error}", hint="keep the token axis apart from the others"
                ) from None
            name = id if role != "activation" else ""
            self._values[id] = Value(id=id, shape=extents, dtype=dtype, role=role, name=name, alias=alias)
            if role != "activation":
                self._inputs[id] = None
        return id

    def _node(
        self,
        op: str,
        inputs: tuple[Use, ...],
        outs: list[tuple[Shape, DType]],
        attrs: tuple[tuple[str, Attr], ...],
        term: Term | None,
        alias: str = "",
    ) -> list[str]:
        number = len(self._nodes)
        ids = [f"%{number}" if len(outs) == 1 else f"%{number}.{i}" for i in range(len(outs))]
        for id, (shape, dtype) in zip(ids, outs, strict=True):
            self._value(id, shape, dtype, "activation", alias)
        if op not in NORMALISED:
            self.unknown[op] = self.unknown.get(op, 0) + 1
        writes = term.writes if term is not None else ()
        where = (term.module, term.source) if term is not None else ("", "")
        self._nodes.append(
            Node(
                id=f"n{number}",
                op=op,
                inputs=inputs,
                outputs=tuple(ids),
                attrs=attrs,
                mutates=writes,
                module=where[0],
                source=where[1],
            )
        )
        return ids

    def _term(self, term: Term) -> None:
        if term.op == "leaf":
            self._leaf(term)
            return
        inputs = tuple(self._use(edge) for edge in term.args)
        op, attrs = term.op, term.attrs
        if op not in NORMALISED and not any(name == "template" for name, _ in attrs):
            op, args = _aten(term)
            attrs = (("template", json.dumps({"args": args, "kwargs": {}}, sort_keys=True)),)
        alias = ""
        if term.writes:
            written = self._values[inputs[term.writes[0]].value]
            alias = written.alias or written.id
        ids = self._node(op, inputs, list(term.outs), attrs, term, alias)
        for i, id in enumerate(ids):
            self._ids[id_of(term, i)] = id

    def _leaf(self, term: Term) -> None:
        (shape, dtype), key = term.outs[0], id_of(term, 0)
        if term.role == "table":
            self._ids[key] = self._table(term, shape, dtype)
        elif term.role == "loose":
            self._ids[key] = self._loose(term)
        elif term.role == "constant":
            node, _ = self.imp.tables[term.name]
            value = self.imp.positional.evaluate(node, torch.tensor([0]))
            self._ids[key] = self._constant(value.contiguous(), dtype)
        else:
            self._ids[key] = self._value(term.name, shape, dtype, ROLES[term.role])

    def _table(self, term: Term, shape: Shape, dtype: DType) -> str:
        name, _, doubled = term.name.partition("|")
        node, axis = self.imp.tables[name]
        width, context = shape[-1], self.imp.positional.context
        table = self.imp.positional.table(node, axis) if width * context <= TABLE_ELEMENTS else None
        if table is None:
            return self._loose(term)
        known = (id(table), bool(doubled), dtype)
        if known not in self._tables:
            whole = torch.cat([table, table], dim=-1) if doubled else table
            self._tables[known] = self._constant(whole, dtype, self._names.get(id(term), "table"))
        constant = self._tables[known]
        for node_made in self._nodes:
            if node_made.op == "position_table" and node_made.inputs[1].value == constant:
                return node_made.outputs[0]
        positions = self._use(attention.positions(self.imp.pool))
        return self._node("position_table", (positions, Use(value=constant)), [(shape, dtype)], (), None)[0]

    def _loose(self, term: Term) -> str:
        """Return a position-only value that no table can hold, computed at every step by its own operators."""  # noqa: DOC501
        node, _ = self.imp.tables[term.name.partition("|")[0]]
        made = self.imp.inline(node)
        inner = self._use(made)
        if not inner.views and made.shape == term.outs[0][0]:
            return inner.value
        raise AgentCompileError(
            f"{node.name}: a value of positions that is no table of rows",
            hint="compute it from each token's own position",
        )

    def _constant(self, value: torch.Tensor, dtype: DType, prefix: str = "constant") -> str:
        digest = _bytes_digest(value)
        for name, known in self.constants.items():
            if known.shape == value.shape and known.dtype == value.dtype and _bytes_digest(known) == digest:
                return self._value(name, tuple(value.shape), dtype, "constant")
        taken = sum(1 for known in self.constants if known.startswith(prefix))
        name = f"{prefix}.{taken}" if taken or "." not in prefix else prefix
        self.constants[name] = value
        return self._value(name, tuple(value.shape), dtype, "constant")

    def _use(self, edge: Edge) -> Use:
        key = id_of(edge.term, edge.index)
        if key not in self._ids:
            self._term(edge.term)
        return Use(value=self._ids[key], views=chain(edge.layout, edge.base))


def id_of(term: Term, index: int) -> tuple[int, int]:
    """Return the key of one output of a term."""
    return id(term), index


def _bytes_digest(value: torch.Tensor) -> str:
    flat = value.reshape(-1).clone(memory_format=torch.contiguous_format)
    return hashlib.sha256(flat.view(torch.uint8).numpy().tobytes()).hexdigest()


def _ordered(roots: list[Term]) -> list[Term]:
    """Return the live terms in depth-first order: operands first, and the readers of a buffer before its writer."""  # noqa: DOC501
    live, stack = dict[int, Term](), list(roots)
    while stack:
        term = stack.pop()
        if id(term) not in live:
            live[id(term)] = term
            stack.extend(edge.term for edge in term.args)
    readers: dict[int, list[Term]] = {}
    for term in live.values():
        for edge in term.args:
            readers.setdefault(id(edge.term), []).append(term)
    done, open_, out = set[int](), set[int](), list[Term]()
    work = [(term, False) for term in reversed(roots)]
    while work:
        term, ready = work.pop()
        if id(term) in done:
            continue
        if ready:
            done.add(id(term))
            out.append(term)
            continue
        if id(term) in open_:
            raise AgentCompileError(
                "a state is read after it is overwritten, and the write depends on the read",
                hint="read the cache once per step",
            )
        open_.add(id(term))
        before = [edge.term for edge in term.args]
        for i in term.writes:
            before += [r for r in readers[id(term.args[i].term)] if r is not term]
        work.append((term, True))
        work.extend((t, False) for t in reversed(before) if id(t) not in done)
    return out
