"""Sites of a chunk whose results only its last token needs: they run for that token alone.

Behind the last attention every token is computed by itself, and the head reads the last one. A kernel for chunks of any
length takes the number of tokens as an argument, so that it runs for one token on the last rows as they lie.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from agentcompile.ir.graph import Graph, Value, takes_last
from agentcompile.ir.region import Region, Site
from agentcompile.ir.template import COUNT, Source
from agentcompile.ir.trial import Choice, Kernel

ROWWISE = frozenset(
    {"linear", "add", "mul", "rms_norm", "silu", "gelu", "gelu_tanh", "relu", "sigmoid", "tanh", "cast"}
)
"""Operators that compute each row of a result from the same row of their operands alone."""
_LINE = 64
"""Bytes to which buffers are aligned when a kernel is validated: one may rely on it."""


class Placed(Protocol):
    """One site of a cover with the choice (kernel or fallback) that serves it."""

    @property
    def region(self) -> Region:
        """The region that runs there."""

    @property
    def site(self) -> Site:
        """The place in the graph."""

    @property
    def choice(self) -> Choice:
        """The kernel or fallback chosen for it."""


def owner(table: Mapping[str, Value], value_id: str) -> str:
    """Return the value whose memory a value of the table shares; itself if it shares none."""
    while table[value_id].alias:
        value_id = table[value_id].alias
    return value_id


def for_last_token(graph: Graph, placed: Sequence[Placed], sources: Mapping[str, Source]) -> frozenset[int]:
    """Return the numbers of the sites, in the order they run, that a chunk needs for its last token alone."""
    if graph.phase != "prefill":
        return frozenset()
    table, found = graph.table(), set[int]()
    needed = {owner(table, use.value) for _, use in graph.outputs}
    for at in reversed(range(len(placed))):
        item = placed[at]
        bound = {port: owner(table, value) for port, value in item.site.bindings}
        written = {bound[port.name] for port in item.region.ports if port.access != "read"}
        if not written & needed and _by_rows(item, sources, table):
            found.add(at)
        else:
            read = [port.name for port in item.region.ports if port.access != "write"]
            needed |= {bound[name] for name in read if not _reads_last(item.region, name)}
    return frozenset(found)


def _by_rows(item: Placed, sources: Mapping[str, Source], table: Mapping[str, Value]) -> bool:
    """Return whether a site's kernel may run for some of a chunk's tokens: it makes each from its own rows alone."""
    source = sources[item.choice.source] if isinstance(item.choice, Kernel) else None
    region, bound = item.region, dict(item.site.bindings)
    return (
        source is not None
        and source.language != "library"
        and all(COUNT in launch.arguments for launch in source.launches)
        and region.dense
        and all(node.op in ROWWISE for node in region.body.nodes)
        and not any(port.role == "state" for port in region.ports)
        and all(_token_first(table[bound[port.name]]) for port in region.ports if port.role in ("activation", "output"))
    )


def _token_first(value: Value) -> bool:
    """Return whether a token's numbers lie together, the tokens one after another, each at the start of a line."""
    sizes = [dim for dim in value.shape if dim != 1]
    first = bool(sizes) and isinstance(sizes[0], str) and all(isinstance(dim, int) for dim in sizes[1:])
    return first and value.nbytes(1) % _LINE == 0


def _reads_last(region: Region, name: str) -> bool:
    """Return whether all readers of a port take its last token only."""
    uses = [use for node in region.body.nodes for use in node.inputs if use.value == name]
    return bool(uses) and all(takes_last(use.views) for use in uses)
