"""Finds every place where a kind's pattern fits a graph.

In: a graph and a kind. Out: `Match`es, each with the node and ordered inputs of every line, not yet checked for
legality (`partition` does that). Inputs of `add` and `mul` are stored in the pattern's order, so two spellings of one
expression give one region.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from agentcompile.ir.graph import Attr, Graph, Node, Use, View
from agentcompile.regions.pattern import COMMUTATIVE, DEFAULT_ATTRS, Line, MatchStep, Pattern


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """One operator of a match: the names of its outputs, and its inputs' names and uses in the pattern's order."""

    node: Node
    outs: tuple[str, ...]
    names: tuple[str, ...]
    uses: tuple[Use, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """The operators of a kind found in a graph, in the pattern's order, and the graph value behind each name."""

    kind: str
    operators: tuple[Bound, ...]
    values: tuple[tuple[str, str], ...]
    """Pairs of a pattern name (numbered in families) and a graph value id."""

    @property
    def nodes(self) -> frozenset[str]:
        """The ids of the matched operators."""
        return frozenset(bound.node.id for bound in self.operators)


def dense(views: tuple[View, ...]) -> bool:
    """Return whether a chain of views only reshapes: the buffer is read whole and in order."""
    return all(view.op == "reshape" for view in views)


def attribute(node: Node, name: str) -> Attr | None:
    """Return an attribute or its default; None when the operator has no attribute of that name."""
    return dict(node.attrs).get(name, DEFAULT_ATTRS.get(node.op, {}).get(name))


class Finder:
    """A matcher of patterns against one graph, with the graph's use-def tables."""

    def __init__(self, graph: Graph, refused: frozenset[str] = frozenset()) -> None:
        """Index the graph; `refused` are nodes that no region of several operators may contain."""
        self._nodes = [node for node in graph.nodes if node.id not in refused]
        self._all = graph.nodes
        self._producers = {out: node for node in self._nodes for out in node.outputs}
        self._by_op: dict[str, list[Node]] = {}
        self._consumers: dict[str, list[Node]] = {}
        for node in self._nodes:
            self._by_op.setdefault(node.op, []).append(node)
            for value in dict.fromkeys(use.value for use in node.inputs):
                self._consumers.setdefault(value, []).append(node)

    def single(self, node: Node, kind: str, pattern: Pattern) -> Match:
        """Return the match of one operator as a kind of its own."""
        outs = ("y",) if len(node.outputs) == 1 else tuple(f"y.{i}" for i in range(len(node.outputs)))
        names = tuple(arg.name for arg in pattern.lines[0].args)
        bound = Bound(node=node, outs=outs, names=names, uses=node.inputs)
        return _match(kind, (bound,))

    def find(self, kind: str, pattern: Pattern) -> list[Match]:
        """Return every match in order of its first operator, with each set of operators once."""
        found: dict[frozenset[str], Match] = {}
        for bound in self._extend(pattern, pattern.plan, {}, ()):
            ordered = sorted(bound, key=lambda item: item[0])  # operators of the `beside` lines are dropped
            match = _match(kind, tuple(operator for line, operator in ordered if line < len(pattern.lines)))
            found.setdefault(match.nodes, match)
        position = {node.id: i for i, node in enumerate(self._all)}
        return sorted(found.values(), key=lambda match: min(position[node] for node in match.nodes))

    def _extend(
        self, pattern: Pattern, plan: tuple[MatchStep, ...], env: Mapping[str, str], done: tuple[tuple[int, Bound], ...]
    ) -> Iterator[tuple[tuple[int, Bound], ...]]:
        if not plan:
            if _inputs_come_from_outside(env, done):
                yield done
            return
        step, line = plan[0], (*pattern.lines, *pattern.beside)[plan[0].line]
        taken = {bound.node.id for _, bound in done}
        for group in self._candidates(line, step, env):
            if taken.isdisjoint(node.id for node in group):
                for more, bounds in _bind(line, group, env):
                    yield from self._extend(pattern, plan[1:], more, done + tuple((step.line, b) for b in bounds))

    def _candidates(self, line: Line, step: MatchStep, env: Mapping[str, str]) -> Iterator[tuple[Node, ...]]:
        if line.family:
            shared = [env[step.via]] if step.via else list(self._consumers)
            for value in shared:
                yield from self._families(line, value, inside=bool(step.via))
        elif step.move == "producer":
            if (node := self._producers.get(env[step.via])) is not None:
                yield (node,)
        else:
            nodes = self._consumers.get(env[step.via], []) if step.via else self._by_op.get(line.op, [])
            yield from ((node,) for node in nodes)

    def _families(self, line: Line, value: str, *, inside: bool) -> Iterator[tuple[Node, ...]]:
        """Yield maximal families that read `value` as their shared input, one for each way of viewing it."""
        groups: dict[tuple[View, ...], list[Node]] = {}
        for node in self._consumers.get(value, []):
            uses = [use for use in node.inputs if use.value == value]
            if node.op == line.op and len(uses) == 1 and node.inputs[line.shared].value == value:
                views = () if dense(uses[0].views) else uses[0].views
                groups.setdefault(views, []).append(node)
        for views, group in groups.items():
            if len(group) >= (2 if line.family == "*" else 1) and not (inside and views):
                yield tuple(group)


def _bind(
    line: Line, group: tuple[Node, ...], env: Mapping[str, str]
) -> Iterator[tuple[dict[str, str], tuple[Bound, ...]]]:
    """Yield the ways of reading `group` as `line`: more than one where an operator commutes."""
    arity = len(group[0].inputs)
    if not sum(not arg.optional for arg in line.args) <= arity <= len(line.args):
        return
    if any(not _fits(line, node) or len(node.inputs) != arity for node in group):
        return
    orders = [(0, 1), (1, 0)] if line.op in COMMUTATIVE and arity == 2 else [tuple(range(arity))]
    for inputs in orders:
        more, bounds = dict(env), []
        for i, node in enumerate(group):
            out = f"{line.out}.{i}" if line.family else line.out
            names = tuple(f"{arg.name}.{i}" if arg.family else arg.name for arg in line.args[:arity])
            uses = tuple(node.inputs[k] for k in inputs)
            pairs = [(out, node.outputs[0]), *zip(names, (use.value for use in uses), strict=True)]
            if any(more.setdefault(name, value) != value for name, value in pairs):
                break
            bounds.append(Bound(node=node, outs=(out,), names=names, uses=uses))
        else:
            yield more, tuple(bounds)


def _fits(line: Line, node: Node) -> bool:
    if node.op != line.op or len(node.outputs) != 1:
        return False
    return all(attribute(node, name) == value for name, value in line.attrs)


def _inputs_come_from_outside(env: Mapping[str, str], done: tuple[tuple[int, Bound], ...]) -> bool:
    """Return whether no input port is bound to a value the match computes, and no two names to one result."""
    results = {name for _, bound in done for name in bound.outs}
    inside = {env[name] for name in results}
    return len(inside) == len(results) and not any(env[name] in inside for name in env.keys() - results)


def _match(kind: str, operators: tuple[Bound, ...]) -> Match:
    values: dict[str, str] = {}
    for bound in operators:
        for name, use in zip(bound.names, bound.uses, strict=True):
            values[name] = use.value
        for name, value in zip(bound.outs, bound.node.outputs, strict=True):
            values[name] = value
    return Match(kind=kind, operators=operators, values=tuple(values.items()))
