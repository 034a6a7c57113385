"""The legality check of a match: convex, connected, closed, dense inside, and one dtype in each family."""

from __future__ import annotations

from dataclasses import dataclass

from agentcompile.ir.graph import Graph, Use, Value
from agentcompile.regions.match import Match, dense
from agentcompile.regions.order import Order, root

ELEMENTWISE = frozenset({"add", "sub", "mul", "div"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A place where a kind's operators match but may not be one region, with the reason."""

    kind: str
    nodes: tuple[str, ...]
    reason: str
    path: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LegalityFacts:
    """The facts of a graph that the legality checks need, computed once."""

    graph: Graph
    order: Order
    table: dict[str, Value]
    aliases: dict[str, str]
    readers: dict[str, frozenset[str]]
    """The nodes that read each value, by value id."""
    kept: frozenset[str]
    """The values that are outputs of the graph."""


def facts(graph: Graph, order: Order) -> LegalityFacts:
    """Collect use-def facts of `graph`."""
    return LegalityFacts(
        graph=graph,
        order=order,
        table=graph.table(),
        aliases={value.id: value.alias for value in graph.values},
        readers={value: frozenset(node.id for node in nodes) for value, nodes in graph.consumers().items()},
        kept=frozenset(use.value for _, use in graph.outputs),
    )


def fault(
    match: Match,
    results: frozenset[str],
    exposed: frozenset[str],
    known: LegalityFacts,
    viewed: frozenset[str] = frozenset(),
) -> str:
    """Return why `match` is not a legal region; empty when it is.

    `results` and `exposed` are the names that may be read outside. Views of the names in `viewed` are not checked here:
    `views.misread` checks them against what the kind states.
    """
    values = dict(match.values)
    inside = {values[name]: name for bound in match.operators for name in bound.outs}
    return (
        _escapes(match, inside, results | exposed, known)
        or _views(match, {value: name for value, name in inside.items() if name not in viewed})
        or _broadcasts(match, known)
        or _families(values, known)
        or _connected(match)
        or ("" if known.order.convex(known.order.mask(match.nodes)) else "a path leaves it and comes back")
    )


def _escapes(match: Match, inside: dict[str, str], allowed: frozenset[str], known: LegalityFacts) -> str:
    for value, name in inside.items():
        base = name.partition(".")[0]
        if base in allowed or name in allowed:
            continue
        outside = sorted(known.readers[value] - match.nodes, key=known.order.index.__getitem__)
        if outside:
            return f"{name} is also read outside, by {outside[0]}"
        if value in known.kept:
            return f"{name} is also a result of the graph"
    return ""


def _views(match: Match, inside: dict[str, str]) -> str:
    for bound in match.operators:
        for use in bound.uses:
            if use.value in inside and not dense(use.views):
                chain = ", ".join(view.op for view in use.views)
                return f"{inside[use.value]} is read inside through {chain}, not as a dense buffer"
    return ""


def _broadcasts(match: Match, known: LegalityFacts) -> str:
    if len(match.operators) == 1:
        return ""
    for bound in match.operators:
        if bound.node.op in ELEMENTWISE:
            counts = {_count(use, known) for use in bound.uses}
            if len(counts) != 1 or None in counts:
                return f"{bound.outs[0]} = {bound.node.op}(…) broadcasts"
    return ""


def _count(use: Use, known: LegalityFacts) -> tuple[int, int] | None:
    """Return the number of elements at one and at two tokens; None through any view but a reshape.

    The two counts together tell symbolic shapes apart.
    """
    value = known.table[use.value]
    return (value.numel(1), value.numel(2)) if dense(use.views) else None


def _families(values: dict[str, str], known: LegalityFacts) -> str:
    dtypes: dict[str, str] = {}
    for name, value in values.items():
        family, dot, _ = name.partition(".")
        dtype = known.table[value].dtype
        if dot and dtypes.setdefault(family, dtype) != dtype:
            return f"the family {family} mixes {dtypes[family]} and {dtype}"
    return ""


def _connected(match: Match) -> str:
    """Return a fault unless all operators connect through values that two of them touch, shared inputs included."""
    groups: list[set[str]] = []
    for bound in match.operators:
        touched = {use.value for use in bound.uses} | set(bound.node.outputs)
        for group in [group for group in groups if group & touched]:
            groups.remove(group)
            touched |= group
        groups.append(touched)
    return "" if len(groups) == 1 else "its operators share no value"


def state_root(known: LegalityFacts, value: str) -> str:
    """Return the state whose buffer `value` lives in; empty when it lives in none."""
    owner = root(known.aliases, value)
    return owner if owner in known.table and known.table[owner].role == "state" else ""
