"""Which values of a region are exact on sparse small integers, so that a right kernel gives them bit for bit."""

from __future__ import annotations

from collections.abc import Callable

from agentcompile.ir.graph import Graph, Node
from agentcompile.validate.bound import Bounded, Propagation

_EXACT_SUM = 2.0**23
"""Sums of integers up to here are exact in float32, in every order."""


def inexact(graph: Graph, out: Propagation, coefficient: float) -> dict[str, str]:
    """Value id to why it need not be exact; values that are exact are absent. `out` is of the integer case."""
    found: dict[str, str] = {}
    for node in graph.nodes:
        reason = next((found[use.value] for use in node.inputs if use.value in found), "")
        if node.op == "rms_norm" and not bool(out.values[node.inputs[0].value].value.any()):
            reason = ""
        elif node.op == "attention":
            reason = _attention(node, out, found)
        elif not reason:
            reason = _RULES.get(node.op, _never)(node, out)
        if not reason and node.op == "linear":
            error = out.values[node.outputs[0]].error()
            reason = "its sums are too large" if float(error.max()) > coefficient * _EXACT_SUM else ""
        if reason:
            found |= dict.fromkeys(node.outputs, reason)
    return found


def _never(node: Node, _: Propagation) -> str:
    return f"{node.op} does not keep integers"


def _whole(node: Node, out: Propagation) -> str:
    value = out.values[node.outputs[0]].value
    if not value.is_floating_point() or bool((value.double() == value.double().round()).all()):
        return ""
    return f"{node.op} left the integers"


def _attention(node: Node, out: Propagation, found: dict[str, str]) -> str:
    """Zero queries over a power of two of slots, values that divide by it."""
    query, positions = out.values[node.inputs[0].value], out.values[node.inputs[3].value]
    slots = positions.value.reshape(-1) + 1
    if bool(query.value.any()):
        return "softmax of scores that differ"
    if bool((slots & (slots - 1)).any()):
        return "softmax over a number of slots that is no power of two"
    values = node.inputs[2].value
    new: Bounded | None = out.appends[values].new if values in out.appends else None
    if new is not None and new.accumulated is not None:
        return "the new values are not exact"
    return found.get(values, "")


_KEEP = ("linear", "add", "sub", "mul", "relu", "rope", "embedding", "position_table", "cast", "argmax", "cache_append")
_RULES: dict[str, Callable[[Node, Propagation], str]] = dict.fromkeys(_KEEP, _whole)
