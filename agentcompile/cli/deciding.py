"""The verb `decide`: a person's decisions on a run, one action a call; without one, what there is to decide on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from agentcompile.cli.looking import chosen, next_for
from agentcompile.cli.render import Screen
from agentcompile.cli.reviewing import SHORT, to_decide
from agentcompile.control.commands import (
    Approve,
    ApproveSafe,
    Cancel,
    Command,
    Edit,
    Override,
    Pause,
    Reject,
    RejectRest,
    Rerun,
    Resume,
    Undo,
)
from agentcompile.control.desk import deliver
from agentcompile.control.review import items, open_items
from agentcompile.errors import AgentCompileError
from agentcompile.ir.codec import encode
from agentcompile.ir.template import Candidate, Params, ParamValue
from agentcompile.options import resolve
from agentcompile.runs.progress import RegionProgress, State


@dataclass(frozen=True, slots=True, kw_only=True)
class DecideFlags:
    """The flags of one call; a flag that is empty or False was not given."""

    region: str = ""
    approve: bool = False
    reject: bool = False
    use: str = ""
    reason: str = ""
    undo: bool = False
    approve_safe: bool = False
    reject_rest: bool = False
    pause: bool = False
    go_on: bool = False
    cancel: str = ""
    rerun: str = ""
    edit: str = ""
    params: tuple[str, ...] = ()


def decide(flags: Mapping[str, object], name: str, asked: DecideFlags, *, screen: Screen) -> int:
    """Apply the action to a run, through its compiler where one works on it, and return 0.

    Raises:
        AgentCompileError: the flags do not make one action, or the run refused it (usage).
    """
    run = chosen(resolve(flags).options, name)
    state = run.state()
    command = _command(state, run.path, asked)
    if command is None:
        to_decide(state, screen)
        screen.json({"run": str(run.path), "live": run.alive(), "items": encode(items(state))})
        ways = f"agentcompile decide {quote(str(run.path))} --approve-safe, or --region REGION with what to do"
        screen.next(ways if open_items(state) else next_for(run, state))
        return 0
    reply = deliver(run.path, command)
    if not reply.ok:
        raise AgentCompileError(reply.text, hint=f"`agentcompile decide {run.path}` shows what may be decided on")
    screen.text(reply.text)
    screen.json({"run": str(run.path), "ok": reply.ok, "text": reply.text})
    screen.next(next_for(run, run.state()))
    return 0


def _command(state: State, run: Path, asked: DecideFlags) -> Command | None:
    given = _given(asked)
    if len(given) > 1:
        raise AgentCompileError(f"{' and '.join(given)}: one action a call", hint="call decide once for each")
    if asked.params and not asked.edit:
        raise AgentCompileError("--param: belongs to --edit", hint="name the candidate to begin from with --edit")
    match given:
        case []:
            if asked.region:
                raise AgentCompileError("--region: nothing to do with it", hint="add --approve, --reject or --use")
            return None
        case ["--pause"]:
            return Pause()
        case ["--continue"]:
            return Resume()
        case ["--undo"]:
            return Undo()
        case ["--approve-safe"]:
            return ApproveSafe()
        case ["--reject-rest"]:
            return RejectRest(reason=asked.reason)
        case ["--cancel"]:
            return Cancel(candidate=_candidate(state, asked.cancel, "--cancel"))
        case ["--rerun"]:
            return Rerun(candidate=_candidate(state, asked.rerun, "--rerun"))
        case ["--edit"]:
            id = _candidate(state, asked.edit, "--edit")
            return Edit(candidate=id, params=_edited(state, id, asked.params))
        case _:
            return _on_region(state, run, asked)


def _given(asked: DecideFlags) -> list[str]:
    actions = [
        name for name in DecideFlags.__slots__ if name not in ("region", "reason", "params") and getattr(asked, name)
    ]
    return ["--continue" if name == "go_on" else f"--{name.replace('_', '-')}" for name in actions]


def _on_region(state: State, run: Path, asked: DecideFlags) -> Command:
    flag = _given(asked)[0]
    if not asked.region:
        raise AgentCompileError(f"{flag}: of which region?", hint="name it with --region")
    region = _region(state, run, asked.region).region
    if asked.approve:
        return Approve(region=region)
    if asked.reject:
        return Reject(region=region, reason=asked.reason)
    if not asked.reason.strip():
        raise AgentCompileError("--use: an override needs a reason, which the lock keeps", hint="give it with --reason")
    return Override(region=region, candidate=_candidate(state, asked.use, "--use", region), reason=asked.reason)


def _region(state: State, run: Path, name: str) -> RegionProgress:
    exact = [row for row in state.rows if name in (row.name, row.region)]
    found = exact or [row for row in state.rows if row.kind == name or row.region.startswith(name)]
    planned = {item.region for item in items(state)}
    found = [row for row in found if row.region in planned] or found
    if not found:
        known = ", ".join(row.name for row in state.rows if row.region in planned) or "none yet"
        raise AgentCompileError(f"--region: {run}: no region is called {name!r}", hint=f"to decide on: {known}")
    if len(found) > 1:
        names = ", ".join(row.name for row in found)
        raise AgentCompileError(f"--region: {name!r} is {len(found)} regions", hint=f"take one of {names}")
    return found[0]


def _candidate(state: State, name: str, flag: str, region: str = "") -> str:
    known: dict[str, str] = {id: label for row in state.rows for id, label in row.under_way}
    known |= {point.id: point.label for point in _points(state) if region in ("", point.region)}
    found = [id for id, label in known.items() if name in (id, label)] or [id for id in known if id.startswith(name)]
    if len(found) == 1:
        return found[0]
    if not found:
        raise AgentCompileError(
            f"{flag}: no candidate is called {name!r}",
            hint="`agentcompile explain REGION` lists those evaluated; a label or the start of an id names one",
        )
    some = ", ".join(f"{id[:SHORT]} {known[id]}" for id in found[:4])
    raise AgentCompileError(f"{flag}: {name!r} is {len(found)} candidates", hint=f"take an id: {some}")


def _points(state: State) -> Sequence[Candidate]:
    return tuple(dict.fromkeys(trial.candidate for trial in state.trials))


def _edited(state: State, id: str, params: Sequence[str]) -> Params:
    base = next((point for point in _points(state) if point.id == id), None)
    if base is None:
        raise AgentCompileError(f"--edit: {id[:SHORT]} was not evaluated yet", hint="wait for its verdict")
    if not params:
        raise AgentCompileError("--edit: changes nothing", hint=f"add --param NAME=VALUE; it has {base.label}")
    changed: dict[str, ParamValue] = {}
    for text in params:
        name, _, value = text.partition("=")
        if name not in dict(base.params) or not value:
            names = ", ".join(name for name, _ in base.params)
            raise AgentCompileError(f"--param: {text!r} is not NAME=VALUE", hint=f"its parameters: {names}")
        changed[name] = int(value) if value.removeprefix("-").isdecimal() else value
    return tuple((name, changed.get(name, value)) for name, value in base.params)
