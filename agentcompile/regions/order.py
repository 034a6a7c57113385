"""What must run before what: data flow, written buffers and operators with side effects, as bit sets.

In: a graph. Out: `Order`, where bit i of a mask is the graph's i-th node. With bit sets of Python integers a test for
convexity or readiness takes a few machine operations at 2,500 nodes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from agentcompile.ir.graph import Graph, Node


def bits(mask: int) -> Iterator[int]:
    """Yield the indices of the set bits, lowest first."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The direct and transitive predecessors and the transitive successors of every node of a graph."""

    index: dict[str, int]
    """The position of each node id."""
    before: tuple[int, ...]
    """The direct predecessors of each node."""
    ancestors: tuple[int, ...]
    """All predecessors of each node, without the node itself."""
    descendants: tuple[int, ...]
    """All successors of each node, without the node itself."""

    def mask(self, nodes: Iterable[str]) -> int:
        """Return the bit set of `nodes`."""
        result = 0
        for node in nodes:
            result |= 1 << self.index[node]
        return result

    def needs(self, mask: int) -> int:
        """Return the direct predecessors outside `mask`, which must have run before the set can run as one."""
        result = 0
        for i in bits(mask):
            result |= self.before[i]
        return result & ~mask

    def convex(self, mask: int) -> bool:
        """Return whether no path leaves the set and comes back."""
        above = below = 0
        for i in bits(mask):
            above |= self.ancestors[i]
            below |= self.descendants[i]
        return not above & below & ~mask


def root(graph_aliases: dict[str, str], value: str) -> str:
    """Return the value that owns the buffer in which `value` lives."""
    seen = set[str]()
    while graph_aliases.get(value) and value not in seen:
        seen.add(value)
        value = graph_aliases[value]
    return value


def order(graph: Graph, barriers: Collection[str] = ()) -> Order:
    """Order `graph`; no node moves across those in `barriers` (ids of operators with side effects)."""
    producers = {out: i for i, node in enumerate(graph.nodes) for out in node.outputs}
    aliases = {value.id: value.alias for value in graph.values}
    buffers = _Buffers()
    before: list[int] = []
    barrier = -1
    for i, node in enumerate(graph.nodes):
        mask = 0
        for use in node.inputs:
            if use.value in producers:
                mask |= 1 << producers[use.value]
        mask |= buffers.touch(i, node, aliases)
        if node.id in barriers:
            mask |= (1 << i) - 1
            barrier = i
        elif barrier >= 0:
            mask |= 1 << barrier
        before.append(mask)
    ancestors: list[int] = []
    for mask in before:
        total = mask
        for j in bits(mask):
            total |= ancestors[j]
        ancestors.append(total)
    descendants = [0] * len(before)
    for i in reversed(range(len(before))):
        for j in bits(before[i]):
            descendants[j] |= descendants[i] | 1 << i
    index = {node.id: i for i, node in enumerate(graph.nodes)}
    return Order(index=index, before=tuple(before), ancestors=tuple(ancestors), descendants=tuple(descendants))


class _Buffers:
    """The last writer of each buffer and its readers since then: the hazards that data flow does not show."""

    def __init__(self) -> None:
        self._writer: dict[str, int] = {}
        self._readers: dict[str, int] = {}

    def touch(self, i: int, node: Node, aliases: dict[str, str]) -> int:
        """Record node `i` and return the nodes that must precede it because they share a buffer."""
        written = {root(aliases, node.inputs[k].value) for k in node.mutates}
        mask = 0
        for buffer in dict.fromkeys(root(aliases, use.value) for use in node.inputs):
            if buffer in self._writer:
                mask |= 1 << self._writer[buffer]
            if buffer in written:
                mask |= self._readers.get(buffer, 0)
                self._writer[buffer] = i
                self._readers[buffer] = 0
            else:
                self._readers[buffer] = self._readers.get(buffer, 0) | 1 << i
        return mask
