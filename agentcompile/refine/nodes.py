"""Promotion of a node of a session: its texts become a user's template, with all who had a part in it.

In: the nodes of a session and what it refines. Out: the template's folder.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from agentcompile.agents.folder import Subject
from agentcompile.agents.tree import ROOT, Node, RoleStep
from agentcompile.errors import AgentCompileError
from agentcompile.ir.attempt import Evaluated
from agentcompile.refine.promote import promote
from agentcompile.refine.provenance import provenance_for


def promote_node(nodes: Sequence[Node], id: int, subject: Subject, root: Path, *, name: str = "") -> Path:
    """Write the kernel of a node to the folder of templates `root` and return its own folder.

    Raises:
        AgentCompileError: there is no such node, it has no time, or the name is none (usage); the folder cannot be
            written (environment).
    """
    if not 0 < id < len(nodes):
        hint = f"nodes: 1 to {len(nodes) - 1}" if len(nodes) > 1 else "no attempt was evaluated yet"
        raise AgentCompileError(f"there is no node {id} with a kernel", hint=hint)
    node = nodes[id]
    assert node.written is not None, "every node but the root has one"
    assert node.verdict is not None, "every node but the root was evaluated"
    steps = parts(nodes, node)
    about = provenance_for(
        subject.region,
        subject.contract,
        node.written,
        Evaluated(verdict=node.verdict, ns=node.ns, feedback=json.loads(node.feedback)),
        node=str(id),
        models=tuple(dict.fromkeys((str(step.role), step.model) for step in steps)),
        exchanges=tuple(dict.fromkeys(step.exchange for step in steps if step.exchange)),
        incumbent_ns=subject.incumbent_ns,
        floor_ns=subject.floor_ns,
        machine=subject.machine,
        task_file=subject.task,
    )
    return promote(node.written, about, root, kind=subject.kind, language=subject.language, name=name)


def parts(nodes: Sequence[Node], node: Node) -> tuple[RoleStep, ...]:
    """Return the answers that led to a node, from the root on."""
    found = list[tuple[RoleStep, ...]]()
    while node.id != ROOT:
        found.append(node.log)
        node = nodes[node.parent or ROOT]
    return tuple(step for log in reversed(found) for step in log)
