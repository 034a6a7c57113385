"""The tree of attempts: a node is a kernel with its verdict, its parent the one that it was made from.

Everything here is a pure function of a tuple of nodes in the order of their ids; node 0, the root, is the reference.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from agentcompile.ir.advice import Usage
from agentcompile.ir.attempt import Role, Times, Written
from agentcompile.ir.trial import WIDEST, Cancelled, Disturbed, Measured, Verdict

ROOT = 0
TOP = 5
"""Nodes of the leaderboard. The paper does not say how many it shows."""
DEAD = 3
"""Failed children after which a branch without a sound node is dead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleStep:
    """One answer of an agent on the way to a node."""

    role: Role
    model: str
    exchange: str
    """Digest of the recorded exchange; empty where there was no readable one."""
    instruction: str = ""
    """What the plan told the code role to do; empty for the other roles."""
    idea: str = ""
    """The plan's idea in a sentence; empty for the other roles, and in answers to ``agents/3``."""
    notes: str = ""
    """Diagnosis of a plan, notes of whoever wrote."""
    usage: Usage


@dataclass(frozen=True, kw_only=True)
class Node:
    """An evaluated kernel, or the reference."""

    kind: Literal["node"] = "node"
    id: int
    parent: int | None
    """None for the root alone."""
    written: Written | None = None
    """None for the root alone."""
    verdict: Verdict | None = None
    """None for the root alone."""
    ns: float = math.inf
    """Its time; infinity where it failed."""
    over_reference: float = math.inf
    """Its time divided by the reference's in the same rounds; infinity where it failed.

    By it nodes are compared: their times are of different moments, at some of which the machine was busy.
    """
    times: Times | None = None
    """The times to beat, where they were taken anew when this was evaluated."""
    feedback: str = "null"
    """What the gates told of it, as JSON text."""
    log: tuple[RoleStep, ...] = ()
    repeats: int | None = None
    """The node with the same code, whose verdict was taken over; None where it was evaluated itself."""
    pruned: bool = False
    """Whether a person closed the branch that begins here."""

    @property
    def sound(self) -> bool:
        """Whether it passed every gate."""
        return self.ns < math.inf

    @property
    def kernel(self) -> str:
        """The text of its kernel; empty for the root."""
        return self.written.kernel if self.written is not None else ""

    @property
    def settled(self) -> bool:
        """Whether its verdict is of its code, and not of what disturbed it."""
        return self.verdict is not None and not isinstance(self.verdict, (Disturbed, Cancelled))

    @property
    def instruction(self) -> str:
        """What the plan told whoever wrote it; empty where there was no plan."""
        return next((step.instruction for step in self.log if step.role == "plan"), "")

    @property
    def idea(self) -> str:
        """The idea of the plan in a sentence; empty where there was none."""
        return next((step.idea for step in self.log if step.role == "plan"), "")

    @property
    def half_width(self) -> float:
        """Half the interval of the logarithm of `over_reference`: 0 for the reference, infinity where it failed."""
        if self.id == ROOT:
            return 0.0
        return self.verdict.measurement.half_width if isinstance(self.verdict, Measured) else math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """How many times as fast one node is as another: above 1 it is faster."""

    ratio: float
    least: float
    """The ends of its interval."""
    most: float


def ratio(node: Node, other: Node) -> Ratio | None:
    """Return how many times as fast `node` is as `other`; None where one of them has no time.

    Each was timed beside the reference, so that a busy moment does not count.
    """
    if not (node.over_reference < math.inf and other.over_reference < math.inf):
        return None
    log, half = math.log(other.over_reference / node.over_reference), math.hypot(node.half_width, other.half_width)
    half = min(half, WIDEST)
    return Ratio(ratio=math.exp(log), least=math.exp(log - half), most=math.exp(log + half))


def children(nodes: Sequence[Node], id: int) -> tuple[Node, ...]:
    """Return the nodes that were made from one."""
    return tuple(node for node in nodes if node.parent == id)


def siblings(nodes: Sequence[Node], id: int) -> tuple[Node, ...]:
    """Return the other nodes with the same parent; the root has none."""
    parent = nodes[id].parent
    return tuple(node for node in nodes if node.parent == parent and node.id != id) if parent is not None else ()


def leaderboard(nodes: Sequence[Node], most: int = TOP) -> tuple[Node, ...]:
    """Return the fastest sound kernels, the fastest first; the reference is not one of them, nor are repeats."""
    sound = [node for node in nodes if node.sound and node.id != ROOT and node.repeats is None]
    return tuple(sorted(sound, key=lambda node: (node.over_reference, node.id))[:most])


def best(nodes: Sequence[Node]) -> Node | None:
    """Return the fastest sound kernel; None where there is none."""
    return next(iter(leaderboard(nodes, 1)), None)


def dead(nodes: Sequence[Node], failures: int = DEAD) -> frozenset[int]:
    """Return the ids of all nodes of dead branches: so many children failed, and nothing below is sound.

    The root begins no dead branch. A branch that a person closed is dead too. A child that was disturbed or cancelled
    did not fail: nothing is known of its code.
    """
    failed, alive, found = [0] * len(nodes), [False] * len(nodes), set[int]()
    for node in reversed(nodes):  # children come after their parents
        if node.parent is not None:
            failed[node.parent] += node.settled and not node.sound
            alive[node.parent] |= node.sound or alive[node.id]
    for node in nodes:
        ended = node.pruned or (failed[node.id] >= failures and not alive[node.id])
        if node.parent is not None and (ended or node.parent in found):
            found.add(node.id)
    return frozenset(found)


def leaves(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Return the nodes without children."""
    parents = {node.parent for node in nodes}
    return tuple(node for node in nodes if node.id not in parents)


def expandable(nodes: Sequence[Node], failures: int = DEAD) -> tuple[Node, ...]:
    """Return the leaves from which something may still be made: those of no dead branch."""
    pruned = dead(nodes, failures)
    return tuple(node for node in leaves(nodes) if node.id not in pruned)


def failing_lineage(nodes: Sequence[Node], id: int) -> tuple[Node, ...]:
    """Return a failing node and those above it up to the nearest sound one, from below; none for a sound node."""
    found, node = list[Node](), nodes[id]
    while not node.sound and node.parent is not None:
        found.append(node)
        node = nodes[node.parent]
    return tuple(found)
