"""The verbs `watch`, `runs attach`, `runs view` and `runs stop`: follow a run, show it again, or end its compiler."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from shlex import quote

from agentcompile.cli.compiling import show
from agentcompile.cli.exits import Terminated
from agentcompile.cli.looking import chosen, next_for
from agentcompile.cli.render import PACED_S, Reporter, Screen
from agentcompile.control.client import NoCompilerError, send
from agentcompile.control.commands import Stop
from agentcompile.control.following import Follower
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.ir.codec import encode
from agentcompile.ir.digest import Json
from agentcompile.options import resolve
from agentcompile.runs import session
from agentcompile.runs.folders import resuming
from agentcompile.runs.outlook import Outlook, outlook
from agentcompile.runs.progress import State
from agentcompile.runs.tables import state_json

LOOK_S = 0.25
"""Seconds between two looks at a live run."""
STOP_S = 20.0
"""Seconds that a compiler may take to end before it is killed."""


def attach(flags: Mapping[str, object], name: str, *, screen: Screen) -> int:
    """Show a run from its first event until no process works on it, and return the run's exit code."""
    run = chosen(resolve(flags).options, name)
    follower = Follower(run)
    with Reporter(screen) as reporter:
        while True:
            ended = follower.ended
            for record in follower.new():
                reporter(record.event)
            if ended:
                break
            time.sleep(LOOK_S)
    return _ended(run, reporter.state, screen)


def watch(
    flags: Mapping[str, object],
    name: str,
    *,
    once: bool,
    screen: Screen,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Say how far a run is, again and again until no process works on it; return the run's exit code, with `once` 0.

    On a terminal one line is drawn again; elsewhere a line is written when the stage changes, and every
    `render.PACED_S` seconds. As JSON it is a line for every change. Ctrl-C ends this and not the run.
    """  # noqa: DOC501
    run = chosen(resolve(flags).options, name)
    follower, said, said_s = Follower(run), None, -math.inf
    drawn = screen.redraws and screen.format == "text"
    end = "\n" if drawn else ""
    try:
        while True:
            ended = follower.ended
            follower.new()
            found, now = outlook(follower.state, alive=not ended), clock()
            if found != said and screen.format == "json":
                screen.line({**_fields(found), "run": str(run.path)})
                said = found
            elif found != said and (drawn or ended or _news(said, found) or now - said_s >= PACED_S):
                screen.redraw(found.line) if drawn else screen.text(found.line)
                said, said_s = found, now
            if ended or once:
                break
            sleep(LOOK_S)
    except Terminated:
        raise
    except KeyboardInterrupt:
        screen.say(f"{end}the run goes on; agentcompile watch {run.path.name} shows it again")
        return 128 + signal.SIGINT
    if drawn:
        screen.say("")
    return ExitCode.OK if once else _code(run, follower.state, screen)


def _fields(found: Outlook) -> dict[str, Json]:
    fields = encode(found)
    assert isinstance(fields, dict)
    return {**fields, "machine": found.machine}


def _news(before: Outlook | None, now: Outlook) -> bool:
    return before is None or (before.status, before.stage) != (now.status, now.stage)


def view(
    flags: Mapping[str, object], name: str, *, speed: float, screen: Screen, sleep: Callable[[float], None] = time.sleep
) -> int:
    """Show a run again as it went, `speed` times as fast; 0 shows it at once.

    Raises:
        AgentCompileError: `speed` is negative, or there is no such run (usage).
    """
    if speed < 0:
        raise AgentCompileError(f"--speed: {speed:g} is not allowed", hint="10 is ten times as fast, 0 at once")
    run = chosen(resolve(flags).options, name)
    before = 0
    with Reporter(screen) as reporter:
        for record, _ in run.records():
            if speed and before:
                sleep(max(record.at_ms - before, 0) / 1000 / speed)
            before = record.at_ms
            reporter(record.event)
    show(reporter.state, screen)
    screen.json({**state_json(reporter.state), "run": str(run.path)})
    screen.next(next_for(run, reporter.state))
    return 0


def named(flags: Mapping[str, object], name: str) -> Path:
    """Return the folder of the run that a person names; the newest when `name` is empty."""
    return chosen(resolve(flags).options, name).path


def _ended(run: session.RunDirectory, state: State, screen: Screen) -> int:
    show(state, screen)
    screen.json({**state_json(state), "run": str(run.path)})
    return _code(run, state, screen)


def _code(run: session.RunDirectory, state: State, screen: Screen) -> int:
    """Return the exit code of a run that ended, and say what follows from how it did."""
    match state.status:
        case "finished":
            screen.next(next_for(run, state))
            return ExitCode.OK
        case "review":
            screen.say(f"waits for review: agentcompile decide {quote(str(run.path))}")
            return ExitCode.UNDECIDED
        case "failed" if state.failure is not None:
            screen.say(f"failed: {state.failure.message}\nhint: {state.failure.hint}")
            return state.failure.exit_code
        case _:
            screen.say(f"its compiler ended without a message; resume it: {resuming(run.path)}")
            return ExitCode.ENVIRONMENT


def stop(flags: Mapping[str, object], name: str, *, screen: Screen, patience_s: float = STOP_S) -> int:
    """End a run's compiler in good order, or kill it when it does not end; no durable event is lost.

    Raises:
        AgentCompileError: the process does not end (environment).
        NoCompilerError: no compiler works on the run.
    """
    run = chosen(resolve(flags).options, name)
    holder = run.holder()
    try:
        said = send(run.path, Stop(), timeout_s=min(5.0, patience_s)).text
    except NoCompilerError:
        if not run.alive():
            raise
        said = _signalled(holder, signal.SIGTERM)
    except AgentCompileError:
        said = _signalled(holder, signal.SIGTERM)
    if not _gone(run, holder, patience_s):
        said = _signalled(holder, signal.SIGKILL)
        if not _gone(run, holder, STOP_S):
            raise AgentCompileError(
                f"{run.path}: process {holder} does not end", exit_code=ExitCode.ENVIRONMENT, hint="end it by hand"
            )
    hint = resuming(run.path)
    screen.text(f"{run.path}: {said}")
    screen.json({"run": str(run.path), "stopped": True, "resume": hint})
    screen.next(hint)
    return 0


def _signalled(holder: int, number: signal.Signals) -> str:
    if holder > 0:
        os.kill(holder, number)
    return f"ended by {number.name}"


def _gone(run: session.RunDirectory, holder: int, limit_s: float) -> bool:
    """Return whether, within `limit_s`, the run's lock is released and the process that held it has ended."""
    until = time.monotonic() + limit_s
    while run.alive() or (holder > 0 and Path(f"/proc/{holder}").exists() and not _zombie(holder)):
        if time.monotonic() >= until:
            return False
        time.sleep(0.05)
    return True


def _zombie(pid: int) -> bool:
    """Return whether a process has ended and only its parent has not yet collected it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][:1] == "Z"
    except OSError:
        return True
