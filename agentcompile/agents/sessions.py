"""What a person does with a session from outside: find it, see how it is, steer it.

In: a session's folder. Out: the sentence that says what follows, for every front end the same. A session that a process
works on is asked through its folder; one that nobody works on is changed at once.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from agentcompile.agents.folder import JOURNAL, Command, SessionFolder, sessions_in
from agentcompile.agents.journal import Pruned, SessionJournal, nodes_of
from agentcompile.agents.tree import ROOT, Node
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.options import Options
from agentcompile.runs import session, status
from agentcompile.runs.folders import resuming
from agentcompile.runs.status import Status

_PATIENCE_S = 20.0
"""Seconds that a process may take to end after a signal."""
_LOOK_S = 0.05


def session_of(options: Options, name: str) -> SessionFolder:
    """Return the session that is called `name` or lies in that folder; the newest when `name` is empty.

    Raises:
        AgentCompileError: there is none (usage).
    """
    if name not in ("", session.LATEST):
        return SessionFolder.open(session.named(options.runs, name))
    found = sessions_in(options.runs)
    if not found:
        hint = "`agentcompile refine MODEL --region R`, or `refine TASK.py`, makes one"
        raise AgentCompileError(f"{options.runs}: no sessions of `refine`", hint=hint)
    return SessionFolder.open(found[-1])


def status_of(folder: SessionFolder) -> Status:
    """Return how a session stands."""
    return status.status_of(folder.run.state(), alive=folder.run.alive())


def resume_command(path: Path) -> str:
    """Return the command that goes on with a session."""
    return resuming(path, "refine")


def check_node(nodes: Sequence[Node], id: int) -> None:
    """Refuse a number that no node has.

    Raises:
        AgentCompileError: there is no such node (usage).
    """
    if not 0 <= id < len(nodes):
        hint = f"nodes: 0 to {len(nodes) - 1}" if nodes else "there is no tree yet"
        raise AgentCompileError(f"there is no node {id}", hint=hint)


def prune(folder: SessionFolder, node: int) -> str:
    """Close the branch that begins at a node: nothing is made from it any more.

    Raises:
        AgentCompileError: there is no such node, or it is the root (usage); the folder cannot be written (environment).
    """
    if node == ROOT:
        raise AgentCompileError("node 0 is the reference: it begins no branch", hint="name another node")
    check_node(nodes_of(folder.entries()), node)
    if folder.run.alive():
        folder.ask(Command(what="prune", node=node))
        return f"node {node} is closed before the next attempt"
    with session.Journal(folder.run), SessionJournal(folder.path / JOURNAL) as journal:
        if not nodes_of(journal.entries)[node].pruned:
            journal.append(Pruned(node=node))
    return f"node {node} is closed"


def hold(folder: SessionFolder, what: Literal["pause", "resume"]) -> str:
    """Hold a session before its next attempt, or let it go on.

    Raises:
        AgentCompileError: no process works on it, or its folder cannot be written (environment).
    """
    check_live(folder)
    folder.ask(Command(what=what))
    return "waits before its next attempt" if what == "pause" else "resumed"


def stop(folder: SessionFolder, *, now: bool) -> str:
    """End a session after its attempt, or with `now` at once; nothing is lost, `resume_command` goes on.

    Raises:
        AgentCompileError: no process works on it, or it does not end (environment).
    """
    check_live(folder)
    if not now:
        folder.ask(Command(what="stop"))
        return "ends after its attempt"
    holder = folder.run.holder()
    if holder > 0:
        os.kill(holder, signal.SIGTERM)
    until = time.monotonic() + _PATIENCE_S
    while folder.run.alive():
        if time.monotonic() >= until:
            text = f"{folder.path}: process {holder} does not end"
            raise AgentCompileError(text, exit_code=ExitCode.ENVIRONMENT, hint="end it by hand")
        time.sleep(_LOOK_S)
    return "ended"


def check_live(folder: SessionFolder) -> None:
    """Refuse a session that no process works on.

    Raises:
        AgentCompileError: no process works on it (environment); the hint is the command that goes on.
    """
    if not folder.run.alive():
        hint = f"resume it: {resume_command(folder.path)}"
        text = f"{folder.path}: no process works on this session"
        raise AgentCompileError(text, exit_code=ExitCode.ENVIRONMENT, hint=hint)
