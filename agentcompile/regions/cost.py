"""The work of one site of a region: FLOPs and compulsory bytes, at the regime's longest context."""

from __future__ import annotations

import math

from agentcompile.ir.graph import ITEM_BYTES, Graph, Node, Use, Value, concrete
from agentcompile.ir.region import Cost, Port
from agentcompile.regions.match import attribute, dense

GATHERS = {"embedding": 1, "position_table": 1}
"""Operators that read only one row for each token from a table, with the number of the input that is the table."""
FLOPS_PER_ELEMENT = {"rms_norm": 4, "rope": 3, "silu": 4, "gelu": 8, "gelu_tanh": 8, "sigmoid": 4, "tanh": 4}
"""FLOPs for each element of the result; elementwise operators that are not listed do one."""


def cost(body: Graph, ports: tuple[Port, ...], *, tokens: int, context: int) -> Cost:
    """Return the work of one site at `tokens` tokens, with `context` of them in the cache at the end.

    `tokens` are adjacent, or, where the sequences of a batch have one each, all the newest of `context`.
    """
    table = body.table()
    flops = sum(_flops(node, table, tokens, context) for node in body.nodes)
    moved = {"weight": 0, "state": 0, "activation": 0, "output": 0}
    for port in ports:
        moved[port.role] += _bytes(port, body, table, tokens, context)
    return Cost(
        flops=flops,
        weight_bytes=moved["weight"],
        state_bytes=moved["state"],
        activation_bytes=moved["activation"] + moved["output"],
    )


def _flops(node: Node, table: dict[str, Value], tokens: int, context: int) -> int:
    if node.op == "linear":
        weight = table[node.inputs[1].value]
        return 2 * _numel(node.inputs[0], table, tokens) * weight.numel() // int(weight.shape[-1])
    if node.op == "attention":
        queries = concrete(table[node.outputs[0]].shape, tokens)[2]  # of [B, heads, T, D]
        return 4 * _numel(node.inputs[0], table, tokens) // queries * _seen(node, queries, context)
    if node.op in GATHERS or node.op == "cache_append":
        return 0
    if node.op == "argmax":
        return _numel(node.inputs[0], table, tokens)
    return FLOPS_PER_ELEMENT.get(node.op, 1) * sum(table[out].numel(tokens) for out in node.outputs)


def _numel(use: Use, table: dict[str, Value], tokens: int) -> int:
    """Return the number of elements that an operator reads through an edge, following slices and expansions."""
    shape = list(table[use.value].shape)
    for view in use.views:
        if view.op in ("reshape", "expand"):
            shape = list(view.args)
        elif view.op == "permute":
            shape = [shape[int(axis)] for axis in view.args]
        else:
            axis, start, stop = (int(arg) if isinstance(arg, int) else None for arg in view.args)
            assert axis is not None
            whole = shape[axis] if isinstance(shape[axis], int) else tokens
            shape[axis] = len(range(int(whole))[slice(start, stop)])
    return math.prod(concrete(shape, tokens))


def _span(node: Node, context: int) -> int:
    window = attribute(node, "window")
    return min(context, window) if isinstance(window, int) and window > 0 else context


def _seen(node: Node, queries: int, context: int) -> int:
    """Return how many slots so many adjacent queries see all together; the last one sees `context`."""
    span = _span(node, context)
    return sum(min(span, max(context - behind, 1)) for behind in range(queries))


def _bytes(port: Port, body: Graph, table: dict[str, Value], tokens: int, context: int) -> int:
    value = table[port.name]
    if port.role == "output":
        return value.nbytes(tokens)
    if port.role == "state":
        return _state_bytes(port, body, table, tokens, context)
    readers = [(node, k) for node in body.nodes for k, use in enumerate(node.inputs) if use.value == port.name]
    if readers and all(GATHERS.get(node.op) == k for node, k in readers):
        rows = max(int(value.shape[0]), 1) if value.shape else 1
        return value.numel() // rows * min(rows, tokens) * ITEM_BYTES[value.dtype]
    sliced = [node.inputs[k] for node, k in readers if not dense(node.inputs[k].views)]
    if sliced and len(sliced) == len(readers):
        return max(min(_numel(use, table, tokens), value.numel(tokens)) for use in sliced) * ITEM_BYTES[value.dtype]
    return value.nbytes(tokens)


def _state_bytes(port: Port, body: Graph, table: dict[str, Value], tokens: int, context: int) -> int:
    """Return the bytes of the rows of a cache [batch, heads, context, head_dim] that are read or appended.

    A state that any other operator than attention and the append reads counts as a whole.
    """
    value = table[port.name]
    slots = value.shape[2] if len(value.shape) == 4 and isinstance(value.shape[2], int) else 1
    row = value.nbytes(tokens) // max(slots, 1)
    batch = value.shape[0] if value.shape and isinstance(value.shape[0], int) else 1
    lives = {v.id for v in body.values if v.id == port.name or v.alias == port.name}
    total = 0
    for node in body.nodes:
        for use in node.inputs[1:3] if node.op == "attention" else ():
            if use.value in lives:
                total += row * min(_span(node, context), slots)
        if node.op == "cache_append" and node.inputs[0].value in lives:
            total += row * tokens // batch
        if node.op not in ("attention", "cache_append") and any(use.value in lives for use in node.inputs):
            total += value.nbytes(tokens)
    return total
