"""How a run stands, in one word that every front end shows.

In: a run's state and whether a process works on it, or its folder. Out: a `Status`. Standard library only.
"""

from __future__ import annotations

from typing import Literal

from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.runs import progress
from agentcompile.runs.session import EVENTS, RunDirectory, record_in

Status = Literal["running", "paused", "waiting for review", "stopped", "interrupted", "failed", "done"]
"""`stopped`: a person or a signal ended it in good order; `interrupted`: it ended without saying anything. Both are
resumed as they are."""
STOPPED = "asked by user"
"""How a session of `refine` says that it was asked to end."""
_EARLIER = "a person stopped it"
"""How sessions of earlier versions say so."""
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
            return "stopped" if state.finished is not None and was_asked(state.finished.detail) else "done"
        case "review":
            return "waiting for review"
        case "failed":
            return "stopped" if state.failure is not None and state.failure.exit_code >= SIGNALLED else "failed"
        case "waiting" | "running":
            return "interrupted"


def was_asked(detail: str) -> bool:
    """Return whether a session that ended with this detail was asked to."""
    return detail in (STOPPED, _EARLIER)


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


def nothing_done(state: progress.State, error: AgentCompileError) -> bool:
    """Return whether a run failed on its arguments or before it began, so that there is nothing to resume."""
    return state.target is None or (error.exit_code is ExitCode.USAGE and not state.graphs)
