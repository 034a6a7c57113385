"""Turns a prefill graph of any number of tokens into one of a given number: the same operators with numeric shapes.

Ids and names stay the same, so a cover found at one length serves at another by its node ids. States and weights have
no symbolic extent and stay as they are.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from agentcompile.ir.graph import TOKENS, Attr, Dim, Graph, Node, Use

_TEMPLATE = "template"
"""The attribute that holds the arguments of an operator kept by its ATen name, as JSON."""


class NotBindableError(ValueError):
    """The graph is not valid at this number of tokens; the message names the place."""


def at_tokens(graph: Graph, tokens: int) -> Graph:
    """Return `graph`, a prefill of T tokens, with `tokens` for T in shapes, views and ATen arguments.

    A graph without a symbolic extent takes a fixed number of tokens and is returned unchanged for that number only.

    Raises:
        NotBindableError: the graph is no prefill graph, or it is not valid at this number of tokens.
    """
    if graph.phase != "prefill":
        raise NotBindableError(f"a {graph.phase} graph has no chunk of tokens")
    if tokens < 1:
        raise NotBindableError(f"a chunk of {tokens} tokens")
    own = _own_tokens(graph)
    if own and own != tokens:
        raise NotBindableError(f"the graph takes {own} tokens at a time, not {tokens}")
    return replace(
        graph,
        values=tuple(
            replace(value, shape=_dims(value.shape, tokens, value.name or value.id)) for value in graph.values
        ),
        nodes=tuple(_node(node, tokens) for node in graph.nodes),
        outputs=tuple((name, _use(use, tokens, name)) for name, use in graph.outputs),
    )


def _own_tokens(graph: Graph) -> int:
    """Return the number of tokens that a graph without a symbolic extent takes.

    0 when the graph takes any number, or no tokens at all.
    """
    fed = [value for value in graph.values if value.role in ("token", "position")]
    numbers = {dim for value in fed for dim in value.shape[-1:]}
    return max((dim for dim in numbers if isinstance(dim, int)), default=0)


def _dims(dims: Sequence[Dim], tokens: int, where: str) -> tuple[int, ...]:
    unknown = next((dim for dim in dims if isinstance(dim, str) and dim != TOKENS), None)
    if unknown is not None:
        raise NotBindableError(f"{where} has the extent {unknown!r}, which is not the number of tokens")
    return tuple(dim if isinstance(dim, int) else tokens for dim in dims)


def _node(node: Node, tokens: int) -> Node:
    where = f"{node.op} at {node.module or node.id}"
    return replace(
        node,
        inputs=tuple(_use(use, tokens, where) for use in node.inputs),
        attrs=tuple((name, _attr(name, attr, tokens)) for name, attr in node.attrs),
    )


def _use(use: Use, tokens: int, where: str) -> Use:
    """Replace T in the views of a use.

    Slice bounds that count from the end keep doing so: -1 is the last token of any chunk.
    """
    return replace(
        use, views=tuple(replace(view, args=_dims(view.args, tokens, f"a view of {where}")) for view in use.views)
    )


def _attr(name: str, attr: Attr, tokens: int) -> Attr:
    if name != _TEMPLATE or not isinstance(attr, str):
        return attr
    return json.dumps(_filled(json.loads(attr), tokens), sort_keys=True)


def _filled(item: object, tokens: int) -> object:
    """Replace every multiple of T in an argument template by a number."""
    if isinstance(item, list):
        return [_filled(one, tokens) for one in item]
    if isinstance(item, dict):
        if "$t" in item:
            return tokens * int(item["$t"])
        return {key: _filled(one, tokens) for key, one in item.items()}
    return item
