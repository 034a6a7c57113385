"""The verbs `refine show`, `prune`, `pause`, `resume`, `stop` and `promote`: look at a session, and steer it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from shlex import quote
from typing import Literal

from agentcompile.agents import sessions, views
from agentcompile.agents.folder import SessionFolder
from agentcompile.agents.journal import Refused, attempts_of, nodes_of
from agentcompile.agents.tree import Node
from agentcompile.cli.render import Screen
from agentcompile.errors import AgentCompileError
from agentcompile.ir.cleaning import clean
from agentcompile.options import resolve
from agentcompile.runs.status import Status
from agentcompile.runs.tables import Table, duration

_LINE = 400


def show(flags: Mapping[str, object], name: str, *, node: int | None, screen: Screen) -> int:
    """Show the tree of a session, or all about one node.

    Raises:
        AgentCompileError: there is no such session, or no such node (usage).
    """
    folder = sessions.session_of(resolve(flags).options, name)
    entries, subject, state = folder.entries(), folder.subject(), folder.run.state()
    nodes = nodes_of(entries)
    if node is not None:
        sessions.check_node(nodes, node)
        for line in views.node_lines(nodes, node):
            screen.text(clean(line, _LINE))
        details = views.summary(entries, subject)["nodes"]
        assert isinstance(details, list)
        own = details[node]
        assert isinstance(own, dict)
        screen.json({**own, "changes": list(views.changes(nodes[nodes[node].parent or 0], nodes[node]))})
        screen.next(f"agentcompile refine {_on_node(folder, nodes[node])}")
        return 0
    _, asked = folder.settings()
    status = sessions.status_of(folder)
    screen.text(f"{folder.path}: {status}, {attempts_of(entries)} of {asked.attempts} attempts")
    if subject is not None:
        screen.text(f"{subject.text}, {subject.bar}: {subject.incumbent}, {duration(subject.incumbent_ns)}")
    table = views.tree(entries)
    screen.table(
        Table(
            heads=table.heads, rows=[tuple(clean(one, _LINE) for one in row) for row in table.rows], right=table.right
        )
    )
    for one in entries:
        if isinstance(one, Refused):
            screen.text(f"refused, from node {one.node}: {clean(one.reason, _LINE)}")
    stopped = state.finished.detail if state.finished is not None else ""
    if stopped:
        screen.text(f"stopped: {clean(stopped, _LINE)}")
    if state.failure is not None:
        screen.text(f"failed: {state.failure.message}")
    screen.text(f"asked: {views.cost(state.spent)}")
    found = views.summary(entries, subject, stopped=stopped, spent=state.spent)
    screen.json({**found, "run": str(folder.path), "status": status, "alive": folder.run.alive()})
    screen.next(_next_for(folder, nodes, status, asked.attempts))
    return 0


def _on_node(folder: SessionFolder, node: Node) -> str:
    """Return the words of `refine` that follow on a node: its promotion where it may be promoted, else the tree."""
    place = quote(str(folder.path))
    return f"promote {place} {node.id}" if views.admissible(node) else f"show {place}"


def _next_for(folder: SessionFolder, nodes: Sequence[Node], status: Status, attempts: int) -> str:
    """Return the command that follows on a session as it is."""
    place, best = quote(str(folder.path)), views.best_admissible(nodes)
    match status:
        case "running":
            return f"agentcompile refine show {place}{f' --node {nodes[-1].id}' if nodes else ''}"
        case "paused":
            return f"agentcompile refine resume {place}"
        case "done" if best is not None:
            return f"agentcompile refine promote {place} {best.id}"
        case "done":
            return f"{sessions.resume_command(folder.path)} --attempts {2 * attempts}"
        case _:
            return sessions.resume_command(folder.path)


def prune(flags: Mapping[str, object], name: str, node: int, *, screen: Screen) -> int:
    """Close the branch that begins at a node: nothing is made from it any more.

    Raises:
        AgentCompileError: there is no such session or node, or it is the root (usage).
    """
    folder = sessions.session_of(resolve(flags).options, name)
    said = sessions.prune(folder, node)
    screen.text(f"{folder.path}: {said}")
    screen.json({"run": str(folder.path), "node": node, "live": folder.run.alive()})
    screen.next(f"agentcompile refine show {quote(str(folder.path))}")
    return 0


def command(flags: Mapping[str, object], name: str, what: Literal["pause", "resume"], *, screen: Screen) -> int:
    """Hold a session before its next attempt, or let it go on.

    Raises:
        AgentCompileError: there is no such session (usage), or no process works on it (environment).
    """
    folder = sessions.session_of(resolve(flags).options, name)
    screen.text(f"{folder.path}: {sessions.hold(folder, what)}")
    screen.json({"run": str(folder.path), "asked": what})
    screen.next(f"agentcompile refine {'resume' if what == 'pause' else 'show'} {quote(str(folder.path))}")
    return 0


def stop(flags: Mapping[str, object], name: str, *, now: bool, screen: Screen) -> int:
    """End a session after its attempt, or with `now` at once; nothing is lost, `refine --resume` goes on.

    Raises:
        AgentCompileError: there is no such session (usage), no process works on it, or it does not end (environment).
    """
    folder = sessions.session_of(resolve(flags).options, name)
    said, goes_on = sessions.stop(folder, now=now), sessions.resume_command(folder.path)
    screen.text(f"{folder.path}: {said}")
    screen.json({"run": str(folder.path), "stopped": now, "resume": goes_on})
    screen.next(goes_on)
    return 0


def promote(flags: Mapping[str, object], name: str, node: int, *, called: str, screen: Screen) -> int:
    """Write a node's kernel to the folder of written templates.

    Raises:
        AgentCompileError: there is no such session or node, or it has no time (usage); the folder cannot be written
            (environment).
    """
    options = resolve(flags).options
    folder = sessions.session_of(options, name)
    nodes, subject = nodes_of(folder.entries()), folder.subject()
    sessions.check_node(nodes, node)
    if subject is None:
        raise AgentCompileError(f"{folder.path}: nothing was opened yet", hint="wait for its first attempt")
    from agentcompile.refine.nodes import promote_node

    made = promote_node(nodes, node, subject, options.written, name=called)
    if not views.admissible(nodes[node]):
        screen.say(f"warning: node {node} is not surely faster than the {subject.bar}, {subject.incumbent}")
    screen.text(f"{made}: node {node}; {views.promoted(subject)}")
    screen.json({"run": str(folder.path), "node": node, "template": str(made)})
    made_with, _ = folder.settings()
    if not subject.task and isinstance(made_with, dict) and (model := made_with.get("model")):
        screen.next(f"agentcompile compile {quote(str(model))}")
    return 0
