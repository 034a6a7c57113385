"""The verbs `refine show`, `prune`, `pause`, `resume`, `stop` and `promote`: look at a session, and steer it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from agentcompile.agents import views
from agentcompile.agents.folder import JOURNAL, Command, SessionFolder, sessions_in
from agentcompile.agents.journal import Journal, Pruned, Refused, attempts_of, nodes_of
from agentcompile.agents.tree import Node
from agentcompile.cli.render import Screen
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.ir.cleaning import clean
from agentcompile.options import Options, resolve
from agentcompile.runs import session
from agentcompile.runs.tables import Table, duration

_LINE = 400
_PATIENCE_S = 20.0
"""Seconds that a process may take to end after a signal."""


def show(flags: Mapping[str, object], name: str, *, node: int | None, screen: Screen) -> int:
    """Show the tree of a session, or all about one node.

    Raises:
        AgentCompileError: there is no such session, or no such node (usage).
    """
    folder = session_of(resolve(flags).options, name)
    entries, subject, state = folder.entries(), folder.subject(), folder.run.state()
    nodes = nodes_of(entries)
    if node is not None:
        _known(nodes, node)
        for line in views.node_lines(nodes, node):
            screen.text(clean(line, _LINE))
        details = views.summary(entries, subject)["nodes"]
        assert isinstance(details, list)
        own = details[node]
        assert isinstance(own, dict)
        screen.json({**own, "changes": list(views.changes(nodes[nodes[node].parent or 0], nodes[node]))})
        return 0
    _, asked = folder.settings()
    status = status_of(folder)
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
    return 0


def status_of(folder: SessionFolder) -> str:
    """Return how a session is: running, paused, interrupted, failed or finished."""
    state = folder.run.state()
    if folder.run.alive():
        return "paused" if state.paused else "running"
    return state.status if state.status in ("finished", "failed") else "interrupted"


def prune(flags: Mapping[str, object], name: str, node: int, *, screen: Screen) -> int:
    """Close the branch that begins at a node: nothing is made from it any more.

    Raises:
        AgentCompileError: there is no such session or node, or it is the root (usage).
    """
    folder = session_of(resolve(flags).options, name)
    nodes = nodes_of(folder.entries())
    if node == 0:
        raise AgentCompileError("node 0 is the reference: it begins no branch", hint="name another node")
    _known(nodes, node)
    if folder.run.alive():
        folder.ask(Command(what="prune", node=node))
        said = f"node {node} is closed before the next attempt"
    else:
        with session.Journal(folder.run), Journal(folder.path / JOURNAL) as journal:
            if not nodes_of(journal.entries)[node].pruned:
                journal.append(Pruned(node=node))
        said = f"node {node} is closed"
    screen.text(f"{folder.path}: {said}")
    screen.json({"run": str(folder.path), "node": node, "live": folder.run.alive()})
    return 0


def command(flags: Mapping[str, object], name: str, what: Literal["pause", "resume"], *, screen: Screen) -> int:
    """Hold a session before its next attempt, or let it go on.

    Raises:
        AgentCompileError: there is no such session (usage), or no process works on it (environment).
    """
    folder = _live(session_of(resolve(flags).options, name))
    folder.ask(Command(what=what))
    said = "waits before its next attempt" if what == "pause" else "goes on"
    screen.text(f"{folder.path}: {said}")
    screen.json({"run": str(folder.path), "asked": what})
    return 0


def stop(flags: Mapping[str, object], name: str, *, now: bool, screen: Screen) -> int:
    """End a session after its attempt, or with `now` at once; nothing is lost, `refine --resume` goes on.

    Raises:
        AgentCompileError: there is no such session (usage), no process works on it, or it does not end (environment).
    """
    folder = _live(session_of(resolve(flags).options, name))
    if now:
        holder = folder.run.holder()
        if holder > 0:
            os.kill(holder, signal.SIGTERM)
        until = time.monotonic() + _PATIENCE_S
        while folder.run.alive():
            if time.monotonic() >= until:
                text = f"{folder.path}: process {holder} does not end"
                raise AgentCompileError(text, exit_code=ExitCode.ENVIRONMENT, hint="end it by hand")
            time.sleep(0.05)
    else:
        folder.ask(Command(what="stop"))
    goes_on = f"agentcompile refine --resume --run-dir {folder.path}"
    screen.text(f"{folder.path}: {'ended' if now else 'ends after its attempt'}")
    screen.say(f"go on with: {goes_on}")
    screen.json({"run": str(folder.path), "stopped": now, "resume": goes_on})
    return 0


def promote(flags: Mapping[str, object], name: str, node: int, *, called: str, screen: Screen) -> int:
    """Write a node's kernel to the folder of written templates.

    Raises:
        AgentCompileError: there is no such session or node, or it has no time (usage); the folder cannot be written
            (environment).
    """
    options = resolve(flags).options
    folder = session_of(options, name)
    nodes, subject = nodes_of(folder.entries()), folder.subject()
    _known(nodes, node)
    if subject is None:
        raise AgentCompileError(f"{folder.path}: nothing was opened yet", hint="wait for its first attempt")
    from agentcompile.refine.nodes import promote_node

    made = promote_node(nodes, node, subject, options.written, name=called)
    if not views.admissible(nodes[node]):
        screen.say(f"warning: node {node} is not surely faster than the {subject.bar}, {subject.incumbent}")
    screen.text(f"{made}: node {node}; {views.promoted(subject)}")
    screen.json({"run": str(folder.path), "node": node, "template": str(made)})
    return 0


def session_of(options: Options, name: str) -> SessionFolder:
    """Return the session that is called `name` or lies in that folder; the newest when `name` is empty.

    Raises:
        AgentCompileError: there is none (usage).
    """
    if name:
        return SessionFolder.open(Path(name) if Path(name).is_dir() else options.runs / name)
    found = sessions_in(options.runs)
    if not found:
        hint = "`agentcompile refine MODEL --region R`, or `refine TASK.py`, makes one"
        raise AgentCompileError(f"{options.runs}: no sessions of `refine`", hint=hint)
    return SessionFolder.open(found[-1])


def _live(folder: SessionFolder) -> SessionFolder:
    if not folder.run.alive():
        hint = f"go on with it: agentcompile refine --resume --run-dir {folder.path}"
        text = f"{folder.path}: no process works on this session"
        raise AgentCompileError(text, exit_code=ExitCode.ENVIRONMENT, hint=hint)
    return folder


def _known(nodes: Sequence[Node], id: int) -> None:
    if not 0 <= id < len(nodes):
        hint = f"nodes: 0 to {len(nodes) - 1}" if nodes else "there is no tree yet"
        raise AgentCompileError(f"there is no node {id}", hint=hint)
