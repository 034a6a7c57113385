"""Everything a person can do to a run, as one table: keys, help, palette and the verb `decide` are made from it.

In: the state of a run, whether a compiler works on it, and what is selected. Out: for each action an empty text where
it is allowed, or the sentence that says why not. Pure; only the standard library.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from agentcompile.control.review import Item, fault, item_of, items, open_items, trials_of
from agentcompile.runs.progress import State


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What decides whether an action is allowed: the run, whether a compiler works on it now, and the selected ids."""

    state: State
    live: bool
    region: str = ""
    candidate: str = ""


@dataclass(frozen=True, slots=True)
class Action:
    """One row of the table; `headless` is the same action as a command line.

    In `headless`, RUN, REGION, CANDIDATE, LOCK and TEXT stand for values.
    """

    name: str
    key: str
    label: str
    help: str
    headless: str
    why_not: Callable[[Scene], str]
    """Why the action is not allowed, as a sentence; empty where it is allowed."""
    asks: str = ""
    """What a person must add: `reason` or `params`; empty for nothing."""


def _works(scene: Scene) -> str:
    return "" if scene.live else "No compiler works on this run."


def _pause(scene: Scene) -> str:
    return _works(scene) or ("The session is paused already." if scene.state.paused else "")


def _resume(scene: Scene) -> str:
    return _works(scene) or ("" if scene.state.paused else "The session is not paused.")


def _selected(scene: Scene) -> str:
    return "" if scene.candidate else "Select a candidate first."


def _cancel(scene: Scene) -> str:
    if why := _works(scene) or _selected(scene):
        return why
    pending = [asked for asked in scene.state.asked if asked.candidate == scene.candidate]
    if any(asked.what == "cancel" for asked in pending):
        return "It is being cancelled already."
    if trials_of(scene.state, scene.candidate) and not pending and scene.candidate not in scene.state.under_way:
        return "It is evaluated already."
    return ""


def _rerun(scene: Scene) -> str:
    if why := _selected(scene):
        return why
    if any(asked.candidate == scene.candidate and asked.what != "cancel" for asked in scene.state.asked):
        return "It waits to be evaluated already."
    return "" if trials_of(scene.state, scene.candidate) else "It was not evaluated yet."


def _edit(scene: Scene) -> str:
    if why := _selected(scene):
        return why
    return (
        "" if trials_of(scene.state, scene.candidate) else "Only a candidate that was evaluated shows its parameters."
    )


def _item(scene: Scene) -> Item | str:
    if not scene.region:
        return "Select a region first."
    found = item_of(scene.state, scene.region)
    if found is not None:
        return found
    if not scene.state.plans and all(row.choice is None for row in scene.state.rows):
        return "Nothing is chosen yet: the regions are still searched."
    return "This region runs as captured, or is no part of the plan: there is nothing to decide."


def _approve(scene: Scene) -> str:
    match _item(scene):
        case str() as why:
            return why
        case Item(standing="approved"):
            return "It is approved already."
        case Item(kernels=()):
            return "It was rejected: undo that, or override it with a candidate."
        case Item(approval="", why=why):
            return f"It cannot be approved: {why}."
        case _:
            return ""


def _reject(scene: Scene) -> str:
    match _item(scene):
        case str() as why:
            return why
        case Item(standing="rejected"):
            return "It is rejected already."
        case _:
            return ""


def _override(scene: Scene) -> str:
    found = _item(scene)
    if isinstance(found, str) and scene.region not in _covered(scene.state):
        return found
    if why := _selected(scene):
        return why
    trials = trials_of(scene.state, scene.candidate)
    if trials and trials[0].candidate.region != scene.region:
        return "This candidate is of another region."
    if why := fault(trials):
        return f"It cannot be selected: {why}."
    if isinstance(found, Item) and [k.candidate.id for k in found.kernels] == [scene.candidate]:
        return "It is the chosen one already: approve it."
    return ""


def _covered(state: State) -> set[str]:
    """Return the regions in the plans; a person may also override a region that a plan runs in PyTorch."""
    return {part.region for plan in state.plans for part in plan.parts}


def _undo(scene: Scene) -> str:
    return "" if scene.state.decided else "There is no decision to take back."


def _approve_safe(scene: Scene) -> str:
    if not items(scene.state):
        return "Nothing is chosen yet: the regions are still searched."
    return "" if any(item.safe for item in open_items(scene.state)) else "No undecided region is safe to approve."


def _reject_rest(scene: Scene) -> str:
    if not items(scene.state):
        return "Nothing is chosen yet: the regions are still searched."
    return "" if open_items(scene.state) else "Every region is decided."


def _write(scene: Scene) -> str:
    if scene.live:
        return "The compiler is at work: it writes the lock itself, or stops for review."
    if not scene.state.settled:
        return "There is no plan yet: resume the run first."
    left = open_items(scene.state)
    if scene.state.review is not None and left:
        stale = sum(item.standing == "stale" for item in left)
        return f"Not decided yet: {len(left)} regions, {stale} of them stale; {left[0].name} is the first."
    return ""


def _replay(scene: Scene) -> str:
    return "" if scene.state.lock is not None else "No lock was written yet."


ACTIONS: tuple[Action, ...] = (
    Action("pause", "space", "Pause", "hold the session before its next candidate",
           "agentcompile decide RUN --pause", _pause),
    Action("resume", "space", "Resume", "resume after a pause",
           "agentcompile decide RUN --continue", _resume),
    Action("cancel", "x", "Cancel", "cancel a candidate that has no verdict yet",
           "agentcompile decide RUN --cancel CANDIDATE", _cancel),
    Action("rerun", "r", "Rerun", "forget a candidate's trials and evaluate it again",
           "agentcompile decide RUN --rerun CANDIDATE", _rerun),
    Action("edit", "e", "Edit", "evaluate the same template with other parameters",
           "agentcompile decide RUN --edit CANDIDATE --param NAME=VALUE", _edit, "params"),
    Action("approve", "y", "Approve", "let the region run what was chosen for it",
           "agentcompile decide RUN --region REGION --approve", _approve),
    Action("reject", "n", "Reject", "let the region run as captured, in PyTorch",
           "agentcompile decide RUN --region REGION --reject --reason TEXT", _reject),
    Action("override", "o", "Override", "let the region run the selected candidate, for a reason that the lock keeps",
           "agentcompile decide RUN --region REGION --use CANDIDATE --reason TEXT", _override, "reason"),
    Action("undo", "u", "Undo", "undo the last decision",
           "agentcompile decide RUN --undo", _undo),
    Action("approve-safe", "a", "Approve safe",
           "approve every undecided region that is faster beyond its interval and passed every check",
           "agentcompile decide RUN --approve-safe", _approve_safe),
    Action("reject-rest", "d", "Reject rest", "reject every region that is undecided or stale",
           "agentcompile decide RUN --reject-rest", _reject_rest),
    Action("write", "W", "Write lock", "write the lock of what was decided",
           "agentcompile compile --resume --run-dir RUN", _write),
    Action("replay", "R", "Replay", "rebuild and validate the lock as the headless runner does",
           "agentcompile replay LOCK", _replay),
    Action("stop", "Q", "Stop run", "end the compiler; compile --resume resumes the run",
           "agentcompile runs stop RUN", _works),
)  # fmt: skip
"""Every action, in the order in which help shows them."""


def action(name: str) -> Action:
    """Return the action of that name.

    Raises:
        KeyError: there is none.
    """
    return {row.name: row for row in ACTIONS}[name]
