"""The actions that ask something of the compiler: refusals, what a person must say first, commands. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from agentcompile.control import commands
from agentcompile.control.actions import Scene as Selection
from agentcompile.control.actions import action
from agentcompile.ir.trial import Kernel

from . import confirming, forms
from .decided import approval_of
from .scene import WORKS, Ask, Call, Scene, Send, Step, View, What
from .screen import Act, Does, Group, ScreenSpec, key_of
from .trials import SEVERAL, latest, placed, region_of


def target_of(scene: Scene, view: View, screen: ScreenSpec) -> str:
    """Return the region that an action means."""
    return key_of(scene, view, screen) if screen.lists == "regions" else region_of(scene, view)


def candidate_of(scene: Scene, view: View, screen: ScreenSpec) -> str:
    """Return the candidate that an action means; empty when there is none.

    Where candidates are listed it is the one under the cursor, elsewhere what the region runs, or its best.
    """
    region = target_of(scene, view, screen)
    row = scene.state.row(region)
    if screen.lists == "candidates":
        key = key_of(scene, view, screen)
        return _under_way(scene, region) if key == "running" else "" if SEVERAL in key else key
    runs = placed(scene.state).get(region, row.choice if row is not None else None)
    if isinstance(runs, Kernel):
        return runs.candidate.id
    return row.best.candidate if row is not None and row.best is not None else ""


def _under_way(scene: Scene, region: str) -> str:
    row = scene.state.row(region)
    own = row.under_way if row is not None else ()
    return own[-1][0] if own else next(iter(scene.state.under_way), "")


def unchangeable(scene: Scene) -> str:
    """Return why nothing of what is shown can be changed; empty when it can."""
    if scene.speed:
        return "This is a past run, shown again: nothing in it can be changed."
    return "" if scene.path else "This is a lock without its run: only check and replay are possible."


def refusal(name: str, scene: Scene, region: str, candidate: str) -> str:
    """Return why a command on a region and a candidate would do nothing now; empty when it would do something."""
    selection = Selection(state=scene.state, live=scene.life in WORKS, region=region, candidate=candidate)
    return unchangeable(scene) or action(name).why_not(selection)


def _refused(name: str, scene: Scene, view: View, screen: ScreenSpec) -> str:
    region = target_of(scene, view, screen)
    candidate = _under_way(scene, region) if name == "cancel" else candidate_of(scene, view, screen)
    return refusal(name, scene, region, candidate)


def commanded(name: str, does: Does, group: Group = "decide", more: str = "") -> Act:
    """Return an action that the compiler knows: its key, label, help and refusals are those of the compiler's table."""
    row = action(name)
    return Act(name, (row.key,), row.help + more, does, partial(_refused, name), group, row.label.lower())


def _sent(makes: Callable[[Scene, str, str], commands.Command]) -> Does:

    def does(scene: Scene, view: View, screen: ScreenSpec) -> Step:
        made = makes(scene, target_of(scene, view, screen), candidate_of(scene, view, screen))
        return Step(view=view, effects=(Send(command=made),))

    return does


def _paused(scene: Scene, view: View, screen: ScreenSpec) -> Step:
    if scene.life not in WORKS:
        return Step(view=view, effects=(Call(what="resume"),))
    return Step(view=view, effects=(Send(command=commands.Resume() if scene.life == "paused" else commands.Pause()),))


def _not_paused(scene: Scene, view: View, screen: ScreenSpec) -> str:
    ended = scene.life not in WORKS and scene.state.status == "finished"
    return unchangeable(scene) or ("The run is done." if ended else "")


def _asks(name: str, title: str) -> Does:

    def does(scene: Scene, view: View, screen: ScreenSpec) -> Step:
        row = scene.state.row(target_of(scene, view, screen))
        subject = candidate_of(scene, view, screen)
        ask = Ask(action=name, title=title.format(row.name if row else ""), subject=subject)
        return Step(view=replace(view, overlay=ask))

    return does


def _edited(scene: Scene, view: View, screen: ScreenSpec) -> Step:
    return forms.opened(scene, view, target_of(scene, view, screen), candidate_of(scene, view, screen))


def _not_edited(scene: Scene, view: View, screen: ScreenSpec) -> str:
    if why := _refused("edit", scene, view, screen):
        return why
    region = target_of(scene, view, screen)
    trial = latest(scene.state, region).get(candidate_of(scene, view, screen))
    return "" if forms.offer_of(scene, trial) is not None else forms.UNKNOWN


def _written(scene: Scene, view: View, screen: ScreenSpec) -> Step:
    return Step(view=replace(view, mode="lock"), effects=(Call(what="write"),))


def answered(scene: Scene, view: View, screen: ScreenSpec, ask: Ask) -> Step:
    """Return what follows from the answer to a question of one of these actions: its command, or the question again.

    Raises:
        AssertionError: none of these actions asks this.
    """
    region, text = target_of(scene, view, screen), ask.text.strip()
    command: commands.Command
    match ask.action:
        case "override" if not text:
            return Step(view=replace(view, overlay=replace(ask, title="A reason is needed; the lock keeps it:")))
        case "override":
            command = commands.Override(region=region, candidate=ask.subject, reason=text)
        case "reject":
            command = commands.Reject(region=region, reason=text)
        case _:
            raise AssertionError(f"{ask.action} was never asked")
    return Step(view=view, effects=(Send(command=command),))


def _program(what: What, key: str, help: str) -> Act:

    def does(scene: Scene, view: View, screen: ScreenSpec) -> Step:
        return Step(view=view, effects=(Call(what=what, text=candidate_of(scene, view, screen)),))

    def why_not(scene: Scene, view: View, screen: ScreenSpec) -> str:
        return "" if candidate_of(scene, view, screen) else "Select a candidate first."

    return Act(what, (key,), help, does, why_not)


APPROVE = commanded(
    "approve",
    _sent(lambda scene, region, _: commands.Approve(region=region, approval=approval_of(scene.state, region))),
)
REJECT = commanded("reject", _asks("reject", "Why not {}? (may be empty)"))
OVERRIDE = commanded("override", _asks("override", "Why should {} run this?"))
EDIT = replace(commanded("edit", _edited), why_not=_not_edited)
UNDO = commanded("undo", _sent(lambda *_: commands.Undo()))
APPROVE_SAFE = commanded("approve-safe", confirming.approving, more="; asks first")
REJECT_REST = commanded("reject-rest", confirming.rejecting, more="; asks first")
PAUSE = replace(commanded("pause", _paused, "run", "; then resume, also where it had stopped"), why_not=_not_paused)
CANCEL = commanded(
    "cancel", _sent(lambda scene, region, _: commands.Cancel(candidate=_under_way(scene, region))), "run"
)
RERUN = commanded("rerun", _sent(lambda scene, _, candidate: commands.Rerun(candidate=candidate)), "run")
WRITE = commanded("write", _written, "run")
STOP = commanded("stop", confirming.stopping, "app", "; asks first")
SOURCE = _program("source", "v", "the candidate's program; in Lock, the file")
DIFF = _program("diff", "D", "its program beside that of what runs now")
