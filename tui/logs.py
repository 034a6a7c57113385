"""The screen of the log: events and the compiler's stderr, one line each, newest last. Pure."""

from __future__ import annotations

import functools
import time
from typing import assert_never

from agentcompile import events as e
from agentcompile.ir.trial import Fallback, Measured, reason
from agentcompile.lockfile.drift import difference
from agentcompile.runs.status import Status, was_asked
from agentcompile.runs.tables import duration, plan_line, stage_name

from .grid import Column, Entry
from .ink import Ink, Line, Span, Style, line
from .scene import LogLine, Scene, View
from .screen import ScreenSpec
from .trials import Same, short

COLUMNS = (Column(head="time", width=8), Column(head="what", width=10), Column(head="text", width=30, grow=1))
KEPT = 2_000
"""Lines that are kept; older ones are in the run directory."""


def entries(scene: Scene, view: View) -> list[Entry]:
    """Return the log as rows."""
    return list(_entries(Same(scene.log)))


@functools.lru_cache(maxsize=2)
def _entries(log: Same[tuple[LogLine, ...]]) -> list[Entry]:
    return [
        Entry(
            key=str(one.number),
            cells=(
                (clock(one.at_ms), "dim"),
                (one.source, "accent" if one.source == "stderr" else "dim"),
                (one.text, one.style),
            ),
            order=(float(one.number), one.source, one.text),
        )
        for one in log.value
    ]  # fmt: skip


def clock(at_ms: int) -> str:
    """Return the time of day, in UTC so that a run reads the same everywhere."""
    return time.strftime("%H:%M:%S", time.gmtime(at_ms / 1000)) if at_ms else ""


def detail(scene: Scene, view: View, number: str, width: int, ink: Ink) -> list[Line]:
    """Return one line of the log in full."""
    one = next((one for one in scene.log if str(one.number) == number), None)
    if one is None:
        return [line(("Nothing was said yet.", "dim"))]
    head: list[Line] = [
        line((f"{one.source}", "title")),
        line((clock(one.at_ms) + " UTC" if one.at_ms else "", "dim")),
        line(),
    ]
    return head + [line((piece, one.style)) for piece in ink.wrap(one.text, width)]


def _searched(event: e.Proposed | e.Remembered | e.Consulted) -> str:
    if isinstance(event, e.Consulted):
        counts = f"{event.full} legal sequences, {event.partial} in part, {event.dropped} dropped"
        what = f"for round {event.round}" if event.round else "about a candidate"
        return f"{event.region[:6]}: a model was asked {what}: {event.reason or counts}"
    if isinstance(event, e.Remembered):
        return f"{event.region[:6]}: {len(event.memories)} findings of earlier runs on like regions"
    return f"{event.region[:6]}: {event.strategy} proposed {len(event.nodes)} candidates"


def _captured(event: e.GraphCaptured) -> str:
    unknown = f"; PyTorch runs {', '.join(event.unknown)}" if event.unknown else ""
    return f"{event.phase}: {event.operators} operators{unknown}"


def said(event: e.Event) -> tuple[str, Span] | None:
    """Return an event's line of the log: where it comes from and its text; None for mere progress."""
    match event:
        case e.RunStarted():
            return "run", (f"{event.model} on {event.target.device}, agentcompile {event.version}", "")
        case e.StageStarted():
            return stage_name(event.stage), (event.detail or "began", "dim")
        case e.StageFinished():
            return stage_name(event.stage), (f"{event.seconds:.1f} s  {event.detail}", "")
        case e.GraphCaptured():
            return "capture", (_captured(event), "")
        case e.RegionFound():
            text = f"{event.name}: {event.sites} occurrences, {event.share:.1%}, roofline {duration(event.floor_ns)}"
            return "region", (text, "dim")
        case e.BoundaryFound():
            return "boundary", (f"{event.op} ({event.reason}): {event.detail}", "warn")
        case e.SpaceBounded():
            text = f"{event.region[:6]}: {event.points} points in {event.templates} templates, {event.rejected} refused"
            return "space", (text, "dim")
        case e.Advised():
            first = short(event.head[0]) if event.head else "nothing"
            text = f"{event.region[:6]}: {event.adviser} would try {first} (unverified): {event.note}"
            return "advice", (text, "dim")
        case e.AdviserCalled() | e.AdviserReplied() | e.AdviceTaken() | e.AdviceMissed() | e.ClaimSettled():
            return "advice", _advice(event)
        case e.TrialFinished():
            return "trial", _trial(event)
        case e.ChoiceMade():
            if isinstance(event.choice, Fallback):
                return "choice", (f"{event.region[:6]}: PyTorch: {event.choice.reason}", "")
            return "choice", (f"{event.region[:6]}: {event.choice.candidate.label} {event.choice.speedup:.2f}×", "good")
        case e.StepsTimed():
            times = [event.timing.median_ns(arm) for arm in event.timing.live]
            spread = f"{duration(min(times))} … {duration(max(times))}" if times else "none lived"
            return "step", (f"{len(event.timing.arms)} ways beside one another: {spread}", "dim")
        case e.ModelChecked():
            said = (
                event.check.fault or f"as near to float32 as eager over prompts of {len(event.check.lengths)} lengths"
            )
            return "model", (said, "good" if event.check.ok else "bad")
        case e.PlanAdmitted():
            return "plan", (plan_line(event.plan), "good")
        case e.LockWritten():
            return "lock", (f"wrote {event.path}", "good")
        case e.DriftFound():
            return "drift", (
                f"{difference(event.field, event.locked, event.here)} ({event.grade}); {event.remedy}",
                "warn",
            )
        case e.Warned():
            return "warning", (event.text, "warn")
        case e.Decided():
            words = ", ".join(
                f"{one.region[:6]} {one.word}{': ' + one.reason if one.reason else ''}" for one in event.rulings
            )
            return "decided", (words, "accent")
        case e.Undone():
            return "decided", ("the last decision was undone", "accent")
        case e.CandidateAsked():
            name = event.point.label if event.point is not None else event.candidate[:12]
            return "asked", (f"{event.what} {name}", "accent")
        case e.Steered():
            return "asked", (event.what, "accent")
        case e.Watched():
            return "run", (f"a screen follows it, drawn at most {event.ui_hz:g} times a second", "dim")
        case e.ReviewOpened():
            return "review", (f"{len(event.regions)} regions wait for review", "warn")
        case e.RunFailed():
            return "failed", (
                f"exit {event.exit_code}: {event.message}{'; ' + event.hint if event.hint else ''}",
                "bad",
            )
        case e.RunFinished():
            return "run", (f"{_end(event)} after {event.seconds:.0f} s  {event.detail}", "good")
        case e.Proposed() | e.Remembered() | e.Consulted():
            return "search", (_searched(event), "dim")
        case e.TrialStarted() | e.RoundsProgress() | e.SearchProgress():
            return None
    assert_never(event)


def _end(event: e.RunFinished) -> Status:
    return "stopped" if was_asked(event.detail) else "done"


def _advice(event: e.AdviserCalled | e.AdviserReplied | e.AdviceTaken | e.AdviceMissed | e.ClaimSettled) -> Span:
    match event:
        case e.AdviserCalled():
            return f"call {event.call}: a model is asked by {event.way}", "dim"
        case e.AdviserReplied():
            return f"call {event.call}: {event.result}", "dim"
        case e.AdviceTaken():
            advice = event.advice
            refused = sum(not one.accepted for one in advice.proposals)
            some = f"{len(advice.sequences)} sequences, " if advice.sequences else ""
            claims = f"{len(advice.claims)} claims, unverified"
            words = f"{len(advice.order)} ranked, {some}{claims}; {refused} proposals refused"
            return f"{event.region[:6]}: {words}", ""
        case e.AdviceMissed():
            return f"no advice about {len(event.regions)} regions: {event.reason}", "warn"
        case e.ClaimSettled():
            claim = event.claim
            return f"{event.region[:6]}: {claim.text} is {claim.standing}: {claim.because}", ""


def _trial(event: e.TrialFinished) -> Span:
    trial = event.trial
    if isinstance(trial.verdict, Measured):
        m = trial.verdict.measurement
        again = " confirmed" if trial.fidelity == "confirm" else ""
        return f"{trial.candidate.label} {duration(m.median_ns)}, {m.speedup:.2f}×{again}", ""
    style: Style = "bad"
    return f"{trial.candidate.label} {trial.verdict.kind}: {reason(trial.verdict)}", style


SCREEN = ScreenSpec(
    name="log",
    title="Log",
    about="events and the compiler's stderr",
    columns=lambda scene, view: COLUMNS,
    entries=entries,
    detail=detail,
    foot=("bottom", "open", "filter"),
    empty="Nothing was said yet.",
    newest=True,
    side=50,
)
