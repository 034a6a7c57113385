"""The effect of a command on a run, with a live compiler or without: the events that record it, or why it is refused.

In: a state and a command. Out: events to write before anything acts on them, and a sentence for the person. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal, assert_never

from agentcompile.control.actions import Scene, action
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
    Stop,
    Undo,
    Watch,
    WriteLock,
)
from agentcompile.control.review import Item, approval, item_of, open_items, trials_of
from agentcompile.events import CandidateAsked, Decided, Event, Steered, Undone, Watched
from agentcompile.ir.template import Candidate
from agentcompile.ir.trial import Decision
from agentcompile.runs.progress import RegionProgress, State

FASTEST_HZ = 1000.0
"""The highest drawing rate that a screen may state."""
Legal = Callable[[Candidate], str]
"""A function that says why a candidate is not in the space of its region; empty when it is."""


class RefusedError(Exception):
    """The command was not carried out; the text says why."""


def answer(state: State, command: Command, *, live: bool, legal: Legal | None = None) -> tuple[tuple[Event, ...], str]:
    """Return the events of a command (none when it only asks) and what to tell the person.

    `legal` checks candidates against the spaces that a compiler has; without it, the parameter domains that the run
    announced are used.

    Raises:
        RefusedError: the command is not allowed now.
    """
    match command:
        case Pause() | Resume() | Stop():
            return _steer(state, command, live)
        case Cancel() | Rerun() | Edit():
            return _ask(state, command, live, legal)
        case Approve(region=region):
            return _approve(state, command, live, _row(state, region))
        case Reject(region=region):
            row = _row(state, region)
            _allowed("reject", Scene(state=state, live=live, region=region))
            rejection = _rejection(_item(state, region), command.reason)
            return _decided([rejection]), f"rejected: {row.name} stays in PyTorch"
        case Override(region=region):
            return _override(state, command, live, _row(state, region))
        case Undo():
            _allowed("undo", Scene(state=state, live=live))
            names = ", ".join(_name(state, decision.region) for decision in state.decided[-1].rulings)
            return (Undone(),), f"undone: {names}"
        case ApproveSafe():
            _allowed("approve-safe", Scene(state=state, live=live))
            safe = [item for item in open_items(state) if item.safe]
            return _decided([_approval(item) for item in safe]), f"approved: {_names(safe)}"
        case RejectRest(reason=reason):
            _allowed("reject-rest", Scene(state=state, live=live))
            rest = list(open_items(state))
            return _decided([_rejection(item, reason) for item in rest]), f"rejected: {_names(rest)}"
        case WriteLock():
            _allowed("write", Scene(state=state, live=live))
            return (), "the lock can be written: compile --resume of this run writes it"
        case Watch(ui_hz=ui_hz):
            if not live:
                raise RefusedError("No compiler works on this run.")
            if not 0 < ui_hz <= FASTEST_HZ:
                raise RefusedError(f"A screen draws above 0 and at most {FASTEST_HZ:g} times a second.")
            return ((Watched(ui_hz=ui_hz),) if ui_hz > state.ui_hz else ()), "noted"
    assert_never(command)


def _steer(state: State, command: Pause | Resume | Stop, live: bool) -> tuple[tuple[Event, ...], str]:
    _allowed(command.kind, Scene(state=state, live=live))
    match command:
        case Pause():
            return (Steered(what="pause"),), "paused before the next candidate; nothing is lost"
        case Resume():
            return (Steered(what="resume"),), "resumed"
        case Stop():
            return (Steered(what="stop"),), "stopping; nothing is lost, compile --resume resumes it"
    assert_never(command)


def _ask(
    state: State, command: Cancel | Rerun | Edit, live: bool, legal: Legal | None
) -> tuple[tuple[Event, ...], str]:
    scene = Scene(state=state, live=live, candidate=command.candidate)
    _allowed(command.kind, scene)
    if isinstance(command, Cancel):
        region = next((row.region for row in state.rows if command.candidate in dict(row.under_way)), "")
        return (CandidateAsked(what="cancel", region=region, candidate=command.candidate),), "cancelled"
    point = trials_of(state, command.candidate)[0].candidate
    if isinstance(command, Edit):
        point = replace(point, params=command.params)
        if why := legal(point) if legal is not None else _outside(_row(state, point.region), point):
            raise RefusedError(f"{point.label}: {why}")
        if trials_of(state, point.id):
            raise RefusedError(f"{point.label} was evaluated already: rerun it to evaluate it again.")
    what: Literal["rerun", "edit"] = command.kind
    asked = CandidateAsked(what=what, region=point.region, candidate=point.id, point=point)
    when = "at the next safe point" if live else "when the run is resumed"
    return (asked,), f"{point.label} is evaluated {when}"


def _outside(row: RegionProgress, point: Candidate) -> str:
    """Return why a candidate cannot be in its space, as far as the announced domains tell; empty when they allow it.

    The constraints are not checked here: only the compiler has them.
    """
    offer = next((offer for offer in row.offers if offer.template == point.template), None)
    if offer is None:
        return ""
    given = dict(point.params)
    for param in offer.params:
        if param.name not in given:
            return f"{param.name} is missing."
        if given.pop(param.name) not in param.domain:
            return f"{param.name} takes one of {', '.join(map(str, param.domain))}."
    return f"{next(iter(given))} is no parameter of {offer.template}." if given else ""


def _approve(state: State, command: Approve, live: bool, row: RegionProgress) -> tuple[tuple[Event, ...], str]:
    _allowed("approve", Scene(state=state, live=live, region=command.region))
    item = _item(state, command.region)
    if command.approval not in ("", item.approval):
        raise RefusedError(f"{row.name} has changed since it was shown: look at it again.")
    return _decided([_approval(item)]), f"approved: {row.name} runs {item.kernels[0].candidate.label}"


def _override(state: State, command: Override, live: bool, row: RegionProgress) -> tuple[tuple[Event, ...], str]:
    _allowed("override", Scene(state=state, live=live, region=command.region, candidate=command.candidate))
    if not command.reason.strip():
        raise RefusedError("An override needs a reason, which the lock keeps.")
    trials = trials_of(state, command.candidate)
    decision = Decision(
        region=command.region,
        word="override",
        candidate=trials[0].candidate,
        approval=approval(trials),
        reason=command.reason.strip(),
    )
    return _decided([decision]), f"overridden: {row.name} runs {trials[0].candidate.label}"


def _decided(decisions: list[Decision]) -> tuple[Event, ...]:
    return (Decided(rulings=tuple(decisions)),)


def _approval(item: Item) -> Decision:
    return Decision(region=item.region, word="approve", approval=item.approval)


def _rejection(item: Item, reason: str) -> Decision:
    return Decision(region=item.region, word="reject", approval=item.approval, reason=reason.strip())


def _row(state: State, region: str) -> RegionProgress:
    row = state.row(region)
    if row is None:
        raise RefusedError(f"This run has no region {region[:12]!r}.")
    return row


def _item(state: State, region: str) -> Item:
    item = item_of(state, region)
    assert item is not None, "the action's own check looked"
    return item


def _allowed(name: str, scene: Scene) -> None:
    if why := action(name).why_not(scene):
        raise RefusedError(why)


def _name(state: State, region: str) -> str:
    row = state.row(region)
    return row.name if row is not None else region[:12]


def _names(items: list[Item]) -> str:
    return f"{len(items)} regions ({', '.join(item.name for item in items)})"
