"""Questions before a key ends something or decides on many regions at once: what would be lost, what written. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from agentcompile.control import commands
from agentcompile.ir.trial import Kernel
from agentcompile.runs.folders import resuming

from .decided import Change, changes
from .ink import Span
from .scene import Call, Dialog, Scene, Send, Step, View
from .screen import ScreenSpec
from .trials import brief, short, times

LISTED = 8
"""Regions that a question names at most."""


def stopping(scene: Scene, view: View, screen: ScreenSpec) -> Step:
    """Ask before the compiler is ended: what is under way is lost, what was acknowledged is kept."""
    state = scene.state
    under_way = [f"{short(label)} of {row.name}" for row in state.rows for _, label in row.under_way]
    lost: Span = (f"Lost: {', '.join(under_way[:LISTED])}, not measured to its end.", "warn")
    if not under_way:
        lost = ("Nothing is running, so that nothing is lost.", "")
    kept = f"Kept: {state.counts.total} trials and {len(state.decided)} decisions."
    about: tuple[Span, ...] = (lost, (kept, ""), (f"Resume with: {resuming(scene.path)}", "dim"))
    title = f"Stop the run {scene.run}"
    return asked(view, Dialog(title=title, about=about, does="stops it and leaves", effect=Call(what="stop")))


def approving(scene: Scene, view: View, screen: ScreenSpec) -> Step:
    """Ask before every safe region is approved, and name them."""
    waiting = [change for change in changes(scene.state) if change.decided.open]
    safe = [change for change in waiting if change.decided.safe]
    about: list[Span] = [("Written into the run, and into the lock:", "")]
    about += _named(safe, "approved")
    if left := len(waiting) - len(safe):
        about.append((f"Left undecided: {left}, where an interval or a check leaves a doubt.", "warn"))
    about.append(("u takes all of it back.", "dim"))
    title, effect = f"Approve what is safe: {counted(len(safe))}", Send(command=commands.ApproveSafe())
    return asked(view, Dialog(title=title, about=tuple(about), does="approves them", effect=effect))


def rejecting(scene: Scene, view: View, screen: ScreenSpec) -> Step:
    """Ask before every undecided region is rejected, and name what would not run."""
    waiting = [change for change in changes(scene.state) if change.decided.open]
    about: list[Span] = [("These run as captured, in PyTorch, and what was measured for them is not used:", "")]
    about += _named(waiting, "rejected")
    about.append(("u takes all of it back.", "dim"))
    title, effect = f"Reject the rest: {counted(len(waiting))}", Send(command=commands.RejectRest())
    return asked(view, Dialog(title=title, about=tuple(about), does="rejects them", effect=effect))


def counted(regions: int) -> str:
    """Return a number of regions."""
    return f"{regions} region{'' if regions == 1 else 's'}"


def _named(found: Sequence[Change], word: str) -> list[Span]:
    spans: list[Span] = []
    for change in found[:LISTED]:
        choice = change.choice
        what = f"{brief(choice.candidate)} {times(choice.speedup)}" if isinstance(choice, Kernel) else "PyTorch"
        spans.append((f"  {word}  {change.row.name}  {what}", ""))
    if (more := len(found) - LISTED) > 0:
        spans.append((f"  and {more} more", "dim"))
    return spans


def asked(view: View, dialog: Dialog) -> Step:
    """Return the step that puts a question over the body."""
    return Step(view=replace(view, overlay=dialog))
