"""The prompts of the three roles: pure functions of a contract, the tree's window, what was refused, and principles.

The first message holds the rules, the second nothing but data, as ASCII JSON. Equal arguments give equal text.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

from agentcompile.advice.prompt import readable
from agentcompile.agents.answers import Planned, schema_of
from agentcompile.agents.principles import Principle, principle_data
from agentcompile.agents.rules import rules
from agentcompile.agents.tree import ROOT, Node
from agentcompile.agents.windows import Window
from agentcompile.ir.attempt import Contract, Role
from agentcompile.ir.cleaning import clean
from agentcompile.ir.digest import Json, digest
from agentcompile.ir.kind import TASK
from agentcompile.ir.trial import reason

VERSION = "agents/2"
"""Prompt version, raised with every change of the text or of its data."""
KERNELS = 60_000
"""Most characters of kernels beside the node's own; the fastest are shown first."""
LONG, SHORT = 12_000, 1_500
"""Most characters of the feedback on the node and its failing lineage, and on any other."""
REFUSED = 4
"""The last refusals that are shown."""


@dataclass(frozen=True, kw_only=True)
class RolePrompt:
    """One question to an agent."""

    role: Role
    system: str
    user: str
    place: str
    """The identity of what is asked for, whatever was measured and wherever: region, attempt, role, code, plan."""

    @functools.cached_property
    def digest(self) -> str:
        """The identity of role and text."""
        return digest("agents-prompt/1", VERSION, self.role, self.system, self.user)

    @property
    def schema(self) -> dict[str, Json]:
        """The schema of the answer."""
        return schema_of(self.role)


def prompt_of(
    contract: Contract,
    nodes: Sequence[Node],
    window: Window,
    *,
    attempt: int,
    principles: Sequence[Principle] = (),
    refused: Sequence[str] = (),
    plan: Planned | None = None,
) -> RolePrompt:
    """Return the question to `window.role` about a node; `refused` are the reasons of refused answers about it."""
    told: dict[str, Json] = {
        "version": VERSION,
        "role": window.role,
        "attempt": attempt,
        "contract": _contract(contract),
        "principles": [principle_data(one) for one in principles],
        "node": window.node,
        "nodes": _nodes(contract, nodes, window),
        "refused": list[Json](refused[-REFUSED:]),
    }
    if window.role == "code":
        told["plan"] = _plan(plan)
    if window.role == "debug":
        told["lineage"] = [
            {"id": id, "why": _why(nodes[id]), "feedback": _feedback(nodes[id], LONG)} for id in window.logs
        ]
    written = nodes[window.node].written
    return RolePrompt(
        role=window.role,
        system=rules(window.role, contract.language, task=contract.kind.startswith(TASK)),
        user=readable(told),
        place=digest(
            "agents-place/1",
            contract.region,
            contract.kind,
            contract.language,
            attempt,
            window.role,
            written.digest if written else "",
            _plan(plan),
        ),
    )


def _contract(contract: Contract) -> Json:
    return {
        "kind": contract.kind,
        "language": contract.language,
        "interface": contract.interface,
        "floor_us": _us(contract.floor_ns) or None,
        "reference_us": _us(contract.reference_ns),
        "incumbent_us": _us(contract.incumbent_ns),
        "measured": contract.measured,
    }


def _plan(plan: Planned | None) -> Json:
    if plan is None:
        return None
    return {"instruction": plan.instruction, "kernel_with_marks": plan.kernel_with_marks}


def _nodes(contract: Contract, nodes: Sequence[Node], window: Window) -> list[Json]:
    left = KERNELS
    shown = set[int]()
    for node in sorted((nodes[id] for id in window.shown - {window.node}), key=lambda one: (one.ns, one.id)):
        if len(node.kernel) <= left:
            left -= len(node.kernel)
            shown.add(node.id)
    return [_node(contract, nodes, id, window, id in shown | {window.node}) for id in sorted(window.shown)]


def _node(contract: Contract, nodes: Sequence[Node], id: int, window: Window, whole: bool) -> Json:
    node = nodes[id]
    if node.written is None:
        return {"id": ROOT, "what": "reference", "us": _us(node.ns), "over_floor": _ratio(node.ns, contract.floor_ns)}
    above = nodes[node.parent].ns if node.parent is not None else math.inf
    return {
        "id": id,
        "parent": node.parent,
        "what": node.verdict.kind if node.verdict is not None else None,
        "why": _why(node),
        "us": _us(node.ns),
        "over_floor": _ratio(node.ns, contract.floor_ns),
        "over_parent": _ratio(above, node.ns),
        "instruction": node.instruction,
        "feedback": _feedback(node, LONG if id == window.node and window.role != "debug" else SHORT),
        "manifest": node.written.manifest if whole else None,
        "kernel": node.written.kernel if whole else None,
    }


def _why(node: Node) -> str:
    return clean(reason(node.verdict), 160) if node.verdict is not None else ""


def _feedback(node: Node, most: int) -> Json:
    """Return what the gates told of a node; where that is too long, the beginning of its text."""
    found: Json = json.loads(node.feedback)
    return found if len(node.feedback) <= most else clean(node.feedback, most)


def _us(ns: float) -> float | None:
    return round(ns / 1e3, 3) if math.isfinite(ns) else None


def _ratio(one: float, other: float) -> float | None:
    return round(one / other, 3) if math.isfinite(one) and math.isfinite(other) and other > 0 else None
