"""Where commands are carried out: in the compiler that works on a run, or without one by whoever holds the run's lock.

Invariant: what a person did is on disk before anything acts on it and before the reply says so.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from agentcompile.control.client import NoCompilerError, send
from agentcompile.control.commands import Command, Reply, Stop
from agentcompile.control.deciding import RefusedError, answer
from agentcompile.control.review import open_items
from agentcompile.control.server import Server, nothing
from agentcompile.control.steering import Steering
from agentcompile.errors import AgentCompileError
from agentcompile.events import Emit, Warned
from agentcompile.runs.progress import State
from agentcompile.runs.rows import changed
from agentcompile.runs.session import Journal, RunDirectory

TRIES = 20
TRY_S = 0.1
"""How often (`TRIES`), and at what distance in seconds, a command is sent again while a compiler begins or ends."""


def earlier(state: State) -> State:
    """Return what a run's earlier processes left, in the form that the flow reads: incomplete plans do not count."""
    return state if state.settled else changed(state, plans=(), ruled=(), layouts=())


@contextmanager
def steered(
    run: Path, state: Callable[[], State], emit: Emit, lock: threading.RLock, *, review: bool
) -> Iterator[Steering]:
    """Yield a session that a person can steer through the run's socket.

    `state` is read under `lock`, which `emit` takes too. Where the socket cannot be made, a warning says that the run
    cannot be steered.
    """

    def undecided() -> list[str]:
        with lock:
            return [item.region for item in open_items(state())]

    steering = Steering(earlier(state()), review=review, undecided=undecided)
    steering.listen()

    def carry_out(command: Command) -> tuple[Reply, Callable[[], None]]:
        with lock:
            try:
                events, text = answer(state(), command, live=True, legal=steering.legal)
                for event in events:
                    emit(event)
                    steering.see(event)
            except RefusedError as refusal:
                return Reply(ok=False, text=str(refusal)), nothing
            except AgentCompileError as error:
                return Reply(ok=False, text=f"{error.message}; {error.hint}"), nothing
        return Reply(ok=True, text=text), _end if isinstance(command, Stop) else nothing

    try:
        server = Server(run, carry_out)
    except OSError as error:
        emit(Warned(text=f"{run}: nobody can steer this run: {error.strerror or error}"))
        server = None
    try:
        yield steering
    finally:
        if server is not None:
            server.close()
        steering.close()


def _end() -> None:
    """End this process as SIGTERM does: in order, with the run's last event written."""
    os.kill(os.getpid(), signal.SIGTERM)


def deliver(path: Path, command: Command, *, timeout_s: float = 5.0) -> Reply:
    """Have a command carried out by the run's compiler or, when none works, by appending to its events under its lock.

    Raises:
        AgentCompileError: `path` is not a run (usage); the disk is full or the compiler gives no reply (environment).
    """
    run = RunDirectory.open(path)
    for _ in range(TRIES):
        try:
            return send(path, command, timeout_s=timeout_s)
        except NoCompilerError:
            if not run.alive():
                break
        time.sleep(TRY_S)  # the compiler begins or ends: its lock is held, but there is no socket
    with Journal(run) as journal:
        try:
            events, text = answer(run.state(), command, live=False)
        except RefusedError as refusal:
            return Reply(ok=False, text=str(refusal))
        for event in events:
            journal.append(event)
    return Reply(ok=True, text=text)
