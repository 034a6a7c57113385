"""How a run stands, in one word that every front end shows.

In: a run's state and whether a process works on it, or its folder. Out: a `Status`. Standard library only.
"""

from __future__ import annotations

from typing import Literal

from agentcompile.runs import progress
from agentcompile.runs.session import EVENTS, RunDirectory, record_in

Status = Literal["running", "paused", "waiting for review", "stopped", "interrupted", "failed", "done"]
"""`stopped`: a person or a signal ended it in good order; `interrupted`: it ended without saying anything. Both are
resumed as they are."""
STOPPED = "a person stopped it"
"""How a session of `refine` says that it was asked to end."""
SIGNALLED = 128
"""Exit codes from here on are of a process that a signal ended."""
_TELLING = (b"run-started", b"review-opened", b"run-failed", b"run-finished", b"steered")
_TAIL_BYTES = 64 << 10


def status_of(state: progress.State, *, alive: bool) -> Status:
    """Return how a run with this state stands; `alive` says that a process works on it."""
    if alive and state.status != "review":
        return "paused" if state.paused else "running"
    match state.status:
        case "finished":
            return "stopped" if state.finished is not None and state.finished.detail == STOPPED else "done"
        case "review":
            return "waiting for review"
        case "failed":
            return "stopped" if state.failure is not None and state.failure.exit_code >= SIGNALLED else "failed"
        case "waiting" | "running":
            return "interrupted"


def glance(run: RunDirectory) -> Status:
    """Return how a run stands by the end of its events alone: folding all events of many runs would take seconds.

    Raises:
        AgentCompileError: one of its last events is damaged.
    """
    file = run.path / EVENTS
    alive = run.alive()
    try:
        with file.open("rb") as stream:
            stream.seek(0, 2)
            stream.seek(max(0, stream.tell() - _TAIL_BYTES))
            lines = stream.read().rpartition(b"\n")[0].split(b"\n")
    except OSError:
        lines = []
    told = [line for line in lines if any(b'"kind":"' + kind + b'"' in line[:400] for kind in _TELLING)]
    return status_of(progress.fold(record_in(line, file).event for line in told if line[:1] == b"{"), alive=alive)
