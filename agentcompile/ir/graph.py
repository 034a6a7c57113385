"""A normalised operator graph of one phase: capture makes it and every later stage reads it.

Weights, states and constants are inputs. Views (reshape, permute, slice, expand) are properties of an edge, never
nodes. A state is mutated only by an operator that declares it (`Node.mutates`), and the mutated value is a new `Value`
whose `alias` names the buffer it lives in. Values and nodes are in topological order.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from agentcompile.ir.digest import Json, digest

Dim = int | str
"""An extent, or the name of a symbolic one: ``"T"`` is the number of tokens in a prefill chunk."""
TOKENS = "T"
"""The one symbolic extent: the tokens of a prefill chunk."""
DType = Literal["bf16", "fp16", "fp32", "fp64", "int64", "int32", "int8", "uint8", "bool"]
Role = Literal["token", "position", "weight", "state", "constant", "activation"]
Phase = Literal["decode", "prefill"]
Attr = bool | int | float | str | tuple[int, ...]

ITEM_BYTES: dict[str, int] = {
    "bf16": 2,
    "fp16": 2,
    "fp32": 4,
    "fp64": 8,
    "int64": 8,
    "int32": 4,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}


def concrete(shape: Sequence[Dim], tokens: int = 1) -> tuple[int, ...]:
    """Return a shape with `tokens` for every symbolic dimension."""
    return tuple(dim if isinstance(dim, int) else tokens for dim in shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """One tensor of the graph; `name` is the checkpoint's tensor name for weights, and `k.3` or `v.3` for states."""

    id: str
    shape: tuple[Dim, ...]
    dtype: DType
    role: Role
    name: str = ""
    alias: str = ""
    """Id of the value whose buffer this one lives in; empty when it owns its buffer."""

    def numel(self, tokens: int = 1) -> int:
        """Count elements with `tokens` for every symbolic dimension."""
        return math.prod(concrete(self.shape, tokens))

    def nbytes(self, tokens: int = 1) -> int:
        """Return the bytes of a dense buffer of this value with `tokens` for every symbolic dimension."""
        return self.numel(tokens) * ITEM_BYTES[self.dtype]


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One step of an edge's view chain: reshape(dims), permute(axes), slice(axis, start, stop), expand(dims)."""

    op: Literal["reshape", "permute", "slice", "expand"]
    args: tuple[Dim, ...]


def takes_last(views: tuple[View, ...]) -> bool:
    """Return whether a chain reshapes at most, and then takes the last of the second axis: a chunk's last token."""
    end = [(view.op, view.args[:2]) for view in views[-1:]]
    return end == [("slice", (1, -1))] and all(view.op == "reshape" for view in views[:-1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """An edge: a value seen through a canonical chain of views (empty: the dense buffer itself)."""

    value: str
    views: tuple[View, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One operator; `op` is a normalised name (`rms_norm`), or `aten.…` for an unknown one, arguments in `attrs`."""

    id: str
    op: str
    inputs: tuple[Use, ...]
    outputs: tuple[str, ...]
    attrs: tuple[tuple[str, Attr], ...] = ()
    mutates: tuple[int, ...] = ()
    """Indices of inputs whose buffer the operator writes."""
    module: str = ""
    source: str = ""

    def attr(self, name: str) -> Attr:
        """Return the attribute `name`; KeyError when the operator has none of that name."""
        return dict(self.attrs)[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """The operators of one phase, or of one region's body, with an explicit interface."""

    phase: Phase
    values: tuple[Value, ...]
    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    """Ids of every value that no node defines: token, position, weights, states, constants, activations."""
    outputs: tuple[tuple[str, Use], ...]
    """Names (`logits`, `token`, …) and the values that they denote."""
    notes: tuple[str, ...] = field(default=(), compare=False)
    """Remarks of capture for people: operators kept by their ATen name, assumptions that were proved."""

    def table(self) -> dict[str, Value]:
        """Return the values by id."""
        return {value.id: value for value in self.values}

    def producers(self) -> dict[str, Node]:
        """Return the node that defines each value, by value id; values without one are left out."""
        return {out: node for node in self.nodes for out in node.outputs}

    def consumers(self) -> dict[str, list[Node]]:
        """Return the nodes that read each value, in order, by value id; each node once, however often it reads."""
        readers: dict[str, list[Node]] = {value.id: [] for value in self.values}
        for node in self.nodes:
            for value in dict.fromkeys(use.value for use in node.inputs):
                readers[value].append(node)
        return readers

    def digest(self) -> str:
        """Return the identity of the program, independent of ids, names, module paths and source lines."""
        return _graph_digest(self)


@functools.lru_cache(maxsize=4096)
def _graph_digest(graph: Graph) -> str:
    """Hash the graph with values numbered in order of first use, so that names do not matter; skip unused ones."""
    table, number = graph.table(), dict[str, int]()
    used: list[Json] = []

    def of(value_id: str) -> int:
        if value_id not in number:
            number[value_id] = len(number)
            value = table[value_id]
            alias = of(value.alias) if value.alias else -1
            role = value.role if value.id in graph.inputs else "activation"
            used.append([number[value_id], list(value.shape), value.dtype, role, alias])
        return number[value_id]

    def edge(use: Use) -> Json:
        return [of(use.value), [[view.op, list(view.args)] for view in use.views]]

    nodes: list[Json] = []
    for node in graph.nodes:
        attrs: list[Json] = [[k, list(v) if isinstance(v, tuple) else v] for k, v in sorted(node.attrs)]
        inputs: list[Json] = [edge(use) for use in node.inputs]
        made: list[Json] = [of(out) for out in node.outputs]
        nodes.append([node.op, attrs, inputs, made, list(node.mutates)])
    ends: list[Json] = [[name, edge(use)] for name, use in graph.outputs]
    return digest("graph/1", graph.phase, nodes, ends, used)
