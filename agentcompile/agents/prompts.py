"""The prompts of the three roles: pure functions of a contract, the tree's window, what was refused, and principles.

The first message holds the rules and the contract, the same for all questions of a session to a role; the second what
changes, as ASCII JSON. Equal arguments give equal text.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

from agentcompile.advice.prompt import readable
from agentcompile.agents.answers import PlanAnswer, schema_of, shown_manifest, starting_of
from agentcompile.agents.principles import Principle, principle_data
from agentcompile.agents.rules import rules
from agentcompile.agents.tree import ROOT, Node, Ratio, ratio
from agentcompile.agents.windows import Window
from agentcompile.ir.attempt import Contract, Role
from agentcompile.ir.cleaning import clean
from agentcompile.ir.digest import Json, digest
from agentcompile.ir.kind import TASK
from agentcompile.ir.trial import reason

VERSION = "agents/8"
"""Prompt version, raised with every change of the text or of its data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionDetail:
    """How much a question shows, in characters."""

    kernels: int
    """Most of kernels beside the node's own; the fastest are shown first."""
    own: int
    """Most of the feedback on the node and its failing lineage."""
    other: int
    """Most of the feedback on any other node."""


FULL = QuestionDetail(kernels=60_000, own=12_000, other=1_500)
SHORTER = (QuestionDetail(kernels=12_000, own=4_000, other=400), QuestionDetail(kernels=0, own=1_500, other=160))
"""What a question shows to a server that does not hold it whole, the longest first."""
REFUSED = 4
"""The last refusals that are shown."""


@dataclass(frozen=True, kw_only=True)
class RolePrompt:
    """One question to an agent."""

    role: Role
    system: str
    user: str
    schema: dict[str, Json]
    """The schema of the answer."""
    shorter: tuple[str, ...] = ()
    """The second message with less detail, the longest first; they are no part of its identity."""
    place: str
    """The identity of what is asked for, whatever was measured and wherever: region, attempt, role, code, plan."""

    answers: int = 1
    """A question to an agent asks for one answer."""

    @functools.cached_property
    def digest(self) -> str:
        """The identity of role and text."""
        return digest("agents-prompt/1", VERSION, self.role, self.system, self.user)


def prompt_of(
    contract: Contract,
    nodes: Sequence[Node],
    window: Window,
    *,
    attempt: int,
    principles: Sequence[Principle] = (),
    refused: Sequence[str] = (),
    plan: PlanAnswer | None = None,
) -> RolePrompt:
    """Return the question to `window.role` about a node; `refused` are the reasons of refused answers about it."""

    def data(detail: QuestionDetail) -> str:
        told: dict[str, Json] = {"version": VERSION, "role": window.role, "attempt": attempt}
        if window.role != "debug":
            told["principles"] = [principle_data(one) for one in principles]
        told |= {"node": window.node, "nodes": _nodes(contract, nodes, window, detail)}
        told["refused"] = list[Json](refused[-REFUSED:])
        if window.role == "code" and plan is not None:
            told["plan"] = _known({"diagnosis": plan.diagnosis, "idea": plan.idea or None, **_place(plan)})
        if window.role == "debug":
            told["lineage"] = [
                {"id": id, "why": _why(nodes[id]), "feedback": _feedback(nodes[id], detail.own)} for id in window.logs
            ]
        return readable(told)

    written, starting = nodes[window.node].written, starting_of(contract)
    return RolePrompt(
        role=window.role,
        system=rules(
            window.role,
            contract.language,
            contract=readable(_contract(contract)),
            starting=json.dumps(starting),
            task=contract.kind.startswith(TASK),
        ),
        user=data(FULL),
        schema=schema_of(window.role, starting),
        shorter=tuple(data(detail) for detail in SHORTER),
        place=digest(
            "agents-place/1",
            contract.region,
            contract.kind,
            contract.language,
            attempt,
            window.role,
            written.digest if written else "",
            _place(plan) if plan is not None else None,
        ),
    )


def _contract(contract: Contract) -> Json:
    interface = contract.interface
    manifest = interface.get("manifest") if isinstance(interface, dict) else None
    if isinstance(interface, dict) and isinstance(manifest, dict):
        # The manifest to start from stands with the form of the answer; the file that it becomes nobody writes.
        shown: Json = {key: value for key, value in manifest.items() if key not in ("answer", "example")}
        interface = {**interface, "manifest": shown}
    return _known(
        {
            "kind": contract.kind,
            "language": contract.language,
            "interface": interface,
            "floor_us": _us(contract.floor_ns) or None,
            "reference_us": _us(contract.reference_ns),
            "incumbent_us": _us(contract.incumbent_ns),
            "measured": contract.measured,
        }
    )


def _place(plan: PlanAnswer) -> dict[str, Json]:
    return {"instruction": plan.instruction, "kernel_with_marks": plan.kernel_with_marks}


def _known(told: dict[str, Json]) -> dict[str, Json]:
    return {key: value for key, value in told.items() if value is not None}


def _nodes(contract: Contract, nodes: Sequence[Node], window: Window, detail: QuestionDetail) -> list[Json]:
    left = detail.kernels
    shown = set[int]()
    others = (nodes[id] for id in window.shown - {window.node})
    for node in sorted(others, key=lambda one: (one.over_reference, one.id)):
        if len(node.kernel) <= left:
            left -= len(node.kernel)
            shown.add(node.id)
    # What the gates told of the failing lineage stands there, whole.
    own = {window.node: detail.own, **dict.fromkeys(window.logs, 0)}
    return [
        _node(contract, nodes, id, id in shown | {window.node}, own.get(id, detail.other))
        for id in sorted(window.shown)
    ]


def _node(contract: Contract, nodes: Sequence[Node], id: int, whole: bool, most: int) -> Json:
    node, floor_ns = nodes[id], contract.floor_ns
    if node.written is None:
        return _known({"id": ROOT, "what": "reference", "us": _us(node.ns), "over_floor": _ratio(node.ns, floor_ns)})
    above = ratio(node, nodes[node.parent]) if node.parent is not None else None
    reference = ratio(node, nodes[ROOT])
    return _known(
        {
            "id": id,
            "parent": node.parent,
            "what": node.verdict.kind if node.verdict is not None else None,
            "why": _why(node) or None,
            "us": _us(node.ns),
            "over_floor": _ratio(node.ns, floor_ns),
            "over_reference": _interval(reference),
            "over_parent": _interval(above),
            "instruction": node.instruction or None,
            "feedback": _feedback(node, most) if most else None,
            "manifest": shown_manifest(node.written.manifest, starting_of(contract)) if whole else None,
            "kernel": node.written.kernel if whole else None,
        }
    )


def _why(node: Node) -> str:
    return clean(reason(node.verdict), 160) if node.verdict is not None else ""


def _feedback(node: Node, most: int) -> Json:
    """Return what the gates told of a node; where that is too long, the beginning of its text."""
    found: Json = json.loads(node.feedback)
    if len(node.feedback) > most:
        return clean(node.feedback, most)
    return _known(found) if isinstance(found, dict) else found


def _us(ns: float) -> float | None:
    return round(ns / 1e3, 3) if math.isfinite(ns) else None


def _interval(found: Ratio | None) -> Json:
    """Return a ratio and the ends of its interval."""
    return [round(one, 3) for one in (found.ratio, found.least, found.most)] if found is not None else None


def _ratio(one: float, other: float) -> float | None:
    return round(one / other, 3) if math.isfinite(one) and math.isfinite(other) and other > 0 else None
