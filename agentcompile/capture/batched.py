"""Turns a decode graph for one sequence into one for several: the same operators with a leading extent of `batch`.

Every sequence has its own token, position and cache: token int64 [B, 1], positions int64 [B], caches [B, kv_heads,
context, head_dim], activations [B, 1, …]. Weights and constant tables are unchanged and are read once for all
sequences.
"""

from __future__ import annotations

from dataclasses import replace

from agentcompile.ir.graph import Graph, Node, Use, Value, View

SHARED = ("weight", "constant")
"""The roles of values that all sequences share."""


class NotBatchableError(ValueError):
    """The graph mixes sequences or treats them differently; the message names the place."""


def batched(graph: Graph, batch: int) -> Graph:
    """Return `graph`, a decode step of one sequence, as a decode step of `batch` sequences.

    Raises:
        NotBatchableError: the graph is no decode graph, or it cannot treat several sequences side by side.
    """
    if graph.phase != "decode":
        raise NotBatchableError(f"a {graph.phase} graph runs one sequence at a time")
    if batch == 1:
        return graph
    shared = {value.id for value in graph.values if value.role in SHARED}
    return replace(
        graph,
        values=tuple(_value(value, batch) for value in graph.values),
        nodes=tuple(_node(node, batch, shared) for node in graph.nodes),
        outputs=tuple((name, _use(use, batch, shared, name)) for name, use in graph.outputs),
    )


def _value(value: Value, batch: int) -> Value:
    if value.role in SHARED:
        return value
    if not value.shape or value.shape[0] != 1:
        raise NotBatchableError(f"{value.name or value.id} of shape {list(value.shape)} has no leading extent of 1")
    return replace(value, shape=(batch, *value.shape[1:]))


def _node(node: Node, batch: int, shared: set[str]) -> Node:
    if node.op.startswith("aten."):
        raise NotBatchableError(f"{node.op} at {node.module or node.id} is not known to treat sequences alike")
    return replace(node, inputs=tuple(_use(use, batch, shared, node.op) for use in node.inputs))


def _use(use: Use, batch: int, shared: set[str], where: str) -> Use:
    if use.value in shared:
        return use
    return replace(use, views=tuple(_view(view, batch, where) for view in use.views))


def _view(view: View, batch: int, where: str) -> View:
    first = view.args[0]
    if view.op in ("reshape", "expand") and first == 1:
        return replace(view, args=(batch, *view.args[1:]))
    if (view.op == "permute" and first == 0) or (view.op == "slice" and first != 0):
        return view
    raise NotBatchableError(f"{where} sees its input through {view.op} {list(view.args)}, which mixes sequences")
