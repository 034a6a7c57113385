"""Dynamic context: which nodes of the tree an agent sees for its work on one of them (STARK, arXiv 2510.16996).

Every window holds the node and the root. Plan sees its children and the leaderboard, code its children and those of its
siblings, debug its siblings, and the logs of the failing lineage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

from agentcompile.agents.tree import ROOT, TOP, Node, children, failing_lineage, leaderboard, siblings
from agentcompile.ir.attempt import Role


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What one question shows of the tree."""

    role: Role
    node: int
    """The node that is worked on."""
    shown: frozenset[int]
    """Ids of all nodes in the window, with the root and the node itself."""
    logs: tuple[int, ...] = ()
    """Ids of the failing lineage from below, whose logs are shown; debug has them alone."""


def window(role: Role, nodes: Sequence[Node], id: int, *, top: int = TOP) -> Window:
    """Return the window of a role on the node `id`."""
    match role:
        case "plan":
            near = [*children(nodes, id), *leaderboard(nodes, top)]
        case "code":
            near = [*children(nodes, id)]
            for sibling in siblings(nodes, id):
                near += children(nodes, sibling.id)
        case "debug":
            near = [*siblings(nodes, id)]
        case _:
            assert_never(role)
    logs = tuple(node.id for node in failing_lineage(nodes, id)) if role == "debug" else ()
    return Window(role=role, node=id, shown=frozenset({ROOT, id, *(node.id for node in near)}), logs=logs)


def alone(role: Role) -> Window:
    """Return the window of attempts that know nothing of one another: the root."""
    return Window(role=role, node=ROOT, shown=frozenset({ROOT}))
