"""What keeps an action from doing anything now, and the command that it sends when nothing does. Pure."""

from __future__ import annotations

from agentcompile.control.actions import ACTIONS, action
from agentcompile.control.actions import Scene as Judged
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
from agentcompile.ir.template import Params, ParamValue
from agentcompile.ir.trial import Kernel

from .decided import approval_of
from .picks import key_of, region_of
from .regions import placed
from .scene import Scene, View
from .tuning import latest

COMMANDS = frozenset(row.name for row in ACTIONS)


def candidate_of(scene: Scene, view: View) -> str:
    """The candidate that an action means: the row in Tune, what the region runs elsewhere; empty when there is none."""
    region = target_of(scene, view)
    row = scene.state.row(region)
    if view.mode == "tune":
        key = key_of(scene, view, "tune")
        if key != "running":
            return key
        return _under_way(scene, region)
    runs = placed(scene.state).get(region, row.choice if row is not None else None)
    if isinstance(runs, Kernel):
        return runs.candidate.id
    return row.best.candidate if row is not None and row.best is not None else ""


def _under_way(scene: Scene, region: str) -> str:
    """The candidate that is judged now: one of this region, else any."""
    row = scene.state.row(region)
    own = row.under_way if row is not None else ()
    return own[-1][0] if own else next(iter(scene.state.under_way), "")


def target_of(scene: Scene, view: View) -> str:
    """The region that an action means."""
    return key_of(scene, view, "review") if view.mode == "review" else region_of(scene, view)


def judged(scene: Scene, view: View, candidate: str = "") -> Judged:
    """What the compiler's own table of actions judges by."""
    chosen = candidate or candidate_of(scene, view)
    return Judged(
        state=scene.state, live=scene.life in ("live", "paused"), region=target_of(scene, view), candidate=chosen
    )


def refusal(name: str, scene: Scene, view: View) -> str:
    """Why an action does nothing now; empty when it does."""
    if name in ("check", "replay"):
        return _lock_refusal(scene)
    if name in ("source", "diff") and view.mode != "lock":
        return "" if candidate_of(scene, view) else "Select a candidate first."
    if name == "source":
        return "" if scene.lock_text else "No lock was written yet."
    if name not in COMMANDS:
        return ""
    if scene.speed:
        return "This is a past run, shown again: nothing in it can be changed."
    if not scene.path:
        return "This is a lock without its run: only check and replay are possible."
    if name == "pause":
        return _pause_refusal(scene)
    if name == "cancel":
        return action(name).why_not(judged(scene, view, _under_way(scene, target_of(scene, view))))
    if name == "override" and view.mode == "review":
        return "" if choices(scene, view) else "No other candidate of this region passed every check."
    return action(name).why_not(judged(scene, view))


def _pause_refusal(scene: Scene) -> str:
    if scene.life in ("live", "paused") or scene.state.status != "finished":
        return ""
    return "The run is finished."


def _lock_refusal(scene: Scene) -> str:
    if scene.replay is not None and scene.replay.exit_code is None:
        return f"A {scene.replay.what} is under way."
    return "" if scene.lock_path and scene.lock_text else "No lock was written yet."


def choices(scene: Scene, view: View) -> list[tuple[str, str]]:
    """Candidates that may stand in for what the region runs: id and label, the fastest first."""
    region = target_of(scene, view)
    found = []
    for id, one in latest(scene.state, region).items():
        verdict = one.trial.verdict
        if verdict.kind == "measured" and not action("override").why_not(judged(scene, view, id)):
            m = verdict.measurement
            found.append((m.median_ns, id, f"{one.trial.candidate.label}  {m.speedup:.2f}×"))
    return [(id, label) for _, id, label in sorted(found)]


def command(
    name: str, scene: Scene, view: View, *, reason: str = "", candidate: str = "", params: Params = ()
) -> Command:
    """The command of an action on what is selected; KeyError for an action that sends none."""
    region = target_of(scene, view)
    chosen = candidate or candidate_of(scene, view)
    match name:
        case "pause":
            return Resume() if scene.life == "paused" else Pause()
        case "cancel":
            return Cancel(candidate=candidate or _under_way(scene, region))
        case "rerun":
            return Rerun(candidate=chosen)
        case "edit":
            return Edit(candidate=chosen, params=params)
        case "approve":
            return Approve(region=region, approval=approval_of(scene.state, region))
        case "reject":
            return Reject(region=region, reason=reason)
        case "override":
            return Override(region=region, candidate=chosen, reason=reason)
        case "undo":
            return Undo()
        case "approve-safe":
            return ApproveSafe()
        case "reject-rest":
            return RejectRest(reason=reason)
        case _:
            raise KeyError(name)


def params_text(params: Params) -> str:
    """Parameters as a person edits them: ``ROWS=4 AHEAD=2048``."""
    return " ".join(f"{name}={value}" for name, value in params)


def params_in(text: str, old: Params) -> Params | str:
    """Parameters from what was typed, all of them in the template's order; or what is wrong with it."""
    given: dict[str, str] = {}
    for word in text.replace(",", " ").split():
        name, _, wanted = word.partition("=")
        if not wanted:
            return f"{word!r} is not NAME=VALUE."
        given[name] = wanted
    unknown = [name for name in given if name not in dict(old)]
    if unknown:
        return f"{unknown[0]} is no parameter here: {', '.join(dict(old))}."
    found: list[tuple[str, ParamValue]] = []
    for name, value in old:
        new = given.get(name, str(value))
        if isinstance(value, str):
            found.append((name, new))
        elif new.removeprefix("-").isdecimal():
            found.append((name, int(new)))
        else:
            return f"{name}={new}: a whole number is needed."
    return tuple(found)
