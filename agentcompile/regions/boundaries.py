"""Hard boundaries: operators that no region of several operators may contain, each with its reason.

A boundary operator still runs, alone and in PyTorch. No operator moves across one that may have side effects.
"""

from __future__ import annotations

from typing import Literal

from agentcompile.ir.graph import TOKENS, Graph, Node, Value
from agentcompile.ir.region import Boundary
from agentcompile.regions.kinds import SIGNATURES
from agentcompile.regions.order import root

Reason = Literal["side-effect", "alias", "dtype", "dynamic-shape", "in-place", "unknown-operator"]

FLOATS = frozenset({"bf16", "fp16", "fp32"})
"""Dtypes that kernels compute on; int64 is only for tokens and positions."""
INTEGER_INPUTS = frozenset({("embedding", 0), ("position_table", 0), ("cache_append", 2), ("attention", 3)})
"""Inputs that hold indices, as (operator, input number)."""
RANDOM = ("bernoulli", "dropout", "exponential", "multinomial", "normal", "rand", "uniform")
"""Prefixes of the names of ATen operators that advance a random generator."""
ORDERED = frozenset({"side-effect", "in-place", "alias"})
"""Reasons for which other operators may not move across the boundary either."""


def boundaries(graph: Graph) -> tuple[Boundary, ...]:
    """Return every hard boundary of `graph` in order, with one reason for each operator, the gravest first."""
    table = graph.table()
    found = []
    for node in graph.nodes:
        fault = _fault(graph, node, table)
        if fault is not None:
            reason, detail = fault
            found.append(Boundary(node=node.id, op=node.op, reason=reason, detail=detail, path=node.module))
    return tuple(found)


def _fault(graph: Graph, node: Node, table: dict[str, Value]) -> tuple[Reason, str] | None:
    return (
        _effect(node)
        or _writes(node, table)
        or _aliases(node, table)
        or _unknown(node)
        or _dtypes(node, table)
        or _shapes(graph, node, table)
    )


def _effect(node: Node) -> tuple[Reason, str] | None:
    if node.op in SIGNATURES:
        return None
    namespace, _, rest = node.op.partition(".")
    if not node.outputs:
        return "side-effect", f"{node.op} has no result, so it runs for its effect"
    if namespace != "aten":
        return "side-effect", f"{node.op} comes from outside PyTorch's operators; what it touches is unknown"
    if rest.lstrip("_").startswith(RANDOM):
        return "side-effect", f"{node.op} advances a random generator"
    return None


def _writes(node: Node, table: dict[str, Value]) -> tuple[Reason, str] | None:
    if not node.mutates:
        return None
    aliases = {value.id: value.alias for value in table.values()}
    for k in node.mutates:
        target = table.get(root(aliases, node.inputs[k].value))
        if node.op == "cache_append" and k == 0 and target is not None and target.role == "state":
            continue
        what = f"{target.role} {target.name or target.id}" if target is not None else node.inputs[k].value
        return "in-place", f"{node.op} writes into its input {k}, the {what}, which is no declared state port"
    return None


def _aliases(node: Node, table: dict[str, Value]) -> tuple[Reason, str] | None:
    written = {node.inputs[k].value for k in node.mutates}
    for out in node.outputs:
        alias = table[out].alias
        if not alias or (node.op == "cache_append" and alias in written):
            continue
        known = "" if alias in table else ", which the graph does not have"
        return "alias", f"the result {out} of {node.op} shares the buffer of {alias}{known}"
    return None


def _unknown(node: Node) -> tuple[Reason, str] | None:
    if node.op in SIGNATURES:
        return None
    return "unknown-operator", f"{node.op} has no normalised meaning; PyTorch runs it"


def _dtypes(node: Node, table: dict[str, Value]) -> tuple[Reason, str] | None:
    for k, use in enumerate(node.inputs):
        dtype = table[use.value].dtype
        if (node.op, k) in INTEGER_INPUTS:
            if dtype != "int64":
                return "dtype", f"input {k} of {node.op} holds indices as {dtype}, not int64"
        elif dtype not in FLOATS and node.op != "cast":
            return "dtype", f"input {k} of {node.op} is {dtype}; kernels compute on bf16, fp16 and fp32"
    for out in node.outputs:
        dtype = table[out].dtype
        if dtype not in FLOATS and (node.op, dtype) != ("argmax", "int64"):
            return "dtype", f"the result of {node.op} is {dtype}; kernels compute on bf16, fp16 and fp32"
    return None


def _shapes(graph: Graph, node: Node, table: dict[str, Value]) -> tuple[Reason, str] | None:
    allowed = {TOKENS} if graph.phase == "prefill" else set()
    for value in [*(use.value for use in node.inputs), *node.outputs]:
        symbols = [dim for dim in table[value].shape if isinstance(dim, str)]
        unknown = next((dim for dim in symbols if dim not in allowed), "")
        if unknown:
            return "dynamic-shape", f"{value} of {node.op} has the extent {unknown!r}, unknown in {graph.phase}"
        if len(symbols) > 1:
            return "dynamic-shape", f"{value} of {node.op} has {len(symbols)} extents that grow with the tokens"
    return None
