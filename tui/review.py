"""The screen of review: the plan as a difference from PyTorch, with what a person decided on each region. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from agentcompile.control.actions import action
from agentcompile.ir.advice import Standing
from agentcompile.ir.template import Candidate
from agentcompile.ir.trial import Fallback, Kernel, Measured, Measurement, Plan, interval
from agentcompile.runs.progress import State
from agentcompile.runs.tables import duration, interval_text

from . import asks
from .charts import PLOTS
from .decided import Change, changes
from .grid import GAP, Column, Entry, fitted, pairs
from .ink import Ink, Line, Span, Style, line
from .moving import UNDECIDED
from .scene import Advice, Pick, Scene, Step, View
from .screen import ScreenSpec, table_width
from .trials import latest, measured, named, short, times, tone, trials_of

COLUMNS = (
    Column(head="plan", width=8, drop=1),
    Column(head="region", width=14, grow=1, middle=True),
    Column(head="runs", width=18, grow=2, wants=40, middle=True),
    Column(head="ratio", width=6, right=True),
    Column(head="±", width=5, right=True, drop=3),
    Column(head="saves", width=8, right=True, drop=2),
    Column(head="decision", width=11),
)
_RUNS, _FROM = 2, "→ "
"""The place of the column that says what a region runs, and what stands before a kernel there.

It takes the room of the plan's column where there is little: a region that keeps PyTorch says so there too.
"""
_SETTLED: tuple[tuple[Standing, str, Style], ...] = (("confirmed", "✓", "good"), ("refuted", "✗", "bad"))
"""The standings of settled claims with their marks and styles."""
_CLAIMS = 2
"""Claims of one standing that are shown at most."""


def entries(scene: Scene, view: View) -> list[Entry]:
    """Return the plan's regions as rows; names of parameters are shortened where there is little room."""
    cells = dict(fitted(COLUMNS, table_width(view, SCREEN.side) - GAP)).get(_RUNS, 0)
    return [_entry(change, cells - len(_FROM)) for change in changes(scene.state)]


def _entry(change: Change, room: int) -> Entry:
    mark: Span
    match change.choice:
        case Kernel(candidate=candidate, speedup=speedup, half_width=width):
            mark = ("? change", "warn") if change.decided.open else ("~ change", "accent")
            runs: Span = (f"{_FROM}{named(candidate, room)}", "")
            numbers: tuple[Span, ...] = (
                (times(speedup), tone(speedup)),
                (f"{width:.2f}" if width < 10 else "none", "dim"),
            )
            saves: Span = (duration(change.saved_ns) if change.saved_ns > 0 else "-", "")
            order: tuple[float | str, ...] = (-speedup, width, -change.saved_ns)
        case Fallback(reason=reason):
            mark, runs = ("= keep", "dim"), (f"PyTorch: {reason}", "dim")
            numbers, saves, order = (("1.00×", "dim"), ("-", "dim")), ("-", "dim"), (-1.0, 0.0, 0.0)
    cells: tuple[Span, ...] = (mark, (change.row.name, ""), runs, *numbers, saves, change.decided.span)
    return Entry(
        key=change.row.region, cells=cells, order=(mark[0], change.row.name, runs[0], *order, change.decided.word)
    )


def heading(scene: Scene, view: View, width: int, ink: Ink) -> list[Line]:
    """Return two lines over the plan: the estimate beside what was measured in the step, and what is left to decide."""
    found = changes(scene.state)
    if not found:
        return [
            line(("No plan yet", "title")),
            line(("It is made when the search has ended; the step itself then measures it.", "dim")),
        ]
    count = {word: sum(change.decided.word == word for change in found) for word in ("undecided", "stale")}
    left = ", ".join(f"{number} {word}" for word, number in count.items() if number)
    changed = sum(isinstance(change.choice, Kernel) for change in found)
    kept = len(found) - changed
    summary = f"{changed} change, {kept} keep PyTorch" + (f", {left}" if left else "")
    return [_step_line(scene.state, found, width, ink), line((summary, "dim"))]


def _step_line(state: State, found: list[Change], width: int, ink: Ink) -> Line:
    """Return the step's time as estimated from its regions, and as measured with all kernels in place.

    The line says whether it was measured before or after a person's decisions.
    """
    plan = _first(state)
    saved = sum(change.saved_ns for change in found)
    estimate = sum(change.expected_ns for change in found)
    if plan is None or not plan.baseline_ns:
        return line(
            ("Estimate ", "title"), f"saves {duration(saved)} a step", ("  not measured in the step yet", "dim")
        )
    ends = interval(plan.log_ratio, plan.half_width)
    ratio = math.exp(plan.log_ratio)
    slower: Style = "warn" if ends is None else "good" if ends[0] > 1 else "bad" if ends[1] < 1 else "warn"
    known: Span = (f"PyTorch {duration(plan.baseline_ns)}  estimate {duration(estimate)}  ", "dim")
    shown = f" {interval_text(plan.log_ratio, plan.half_width)}"
    spans: list[Span] = [
        ("Step ", "title"),
        known,
        (f"{'measured' if _as_decided(state, found) else 'before decisions'} {duration(plan.step_ns)}  ", ""),
        (times(ratio), slower),
    ]
    if sum(ink.width(text) for text, _ in spans) + len(shown) <= width:
        spans.append((shown, slower))
    return line(*spans)


def _as_decided(state: State, found: list[Change]) -> bool:
    """Return whether the step was measured as a person decided: a change is measured when the lock is written."""
    return bool(state.ruled) or not any(change.decided.word in ("rejected", "overridden") for change in found)


def _first(state: State) -> Plan | None:
    plans = [plan for plan in state.final if plan.phase == "decode"]
    return min(plans, key=lambda plan: (plan.regime.batch, plan.regime.context), default=None)


def detail(scene: Scene, view: View, region: str, width: int, ink: Ink) -> list[Line]:
    """Return one region of the plan in full: what it would run and why, what was decided, and what else may be used."""
    change = next((change for change in changes(scene.state) if change.row.region == region), None)
    if change is None:
        return [line(("Nothing to decide yet", "dim"))]
    lines = [
        line((change.row.name, "title")),
        line((f"{change.sites} of {change.row.sites} occurrences", "dim")),
        line(),
    ]
    match change.choice:
        case Kernel(candidate=candidate, decided_by=by, reason=reason):
            facts: list[tuple[str, str | Span]] = [("from", "PyTorch, as captured"), ("to", candidate.label)]
            facts.append(("because", f"{by}{': ' + reason if reason else ''}"))
            if (author := scene.authors.get(candidate.template_digest)) is not None:
                facts.append(("author", author))
        case Fallback(reason=reason):
            facts = [("keeps", "PyTorch, as captured"), ("because", reason)]
    facts += _advice(change, scene.advice.get(region))
    if (m := change.measurement) is not None:
        facts.append(("time", f"{duration(m.median_ns)} beside {duration(m.baseline_ns)}"))
        facts.append(("ratio", (f"{times(m.speedup)} ± {m.half_width:.3f}", tone(m.speedup))))
        facts.append(("saves", f"{duration(change.saved_ns)} a step, estimated"))
    lines += pairs(facts, ink, width)
    lines += [line(), line(("Decision", "head")), line(change.decided.span)]
    lines += [line((piece, "dim")) for piece in ink.wrap(change.decided.detail, width)] if change.decided.detail else []
    return lines + _others(scene.state, change, width, ink)


def _advice(change: Change, first: Advice | None) -> list[tuple[str, str | Span]]:
    """Return what advice contributed to a choice: the candidate's place in it, and which of its claims were settled.

    `first` is the advice that the run began with, the heuristic's in most cases; a model's may have come later.
    """
    model, choice = change.row.advice, change.choice
    if first is None:
        first = Advice(adviser="the adviser", note="", head=() if model is not None else change.row.head)
    head = first.head if first.adviser != "none" else ()
    names = [name for name, asked in ((model.label if model else "", model), (first.adviser, head)) if asked]
    facts: list[tuple[str, str | Span]] = []
    if isinstance(choice, Kernel):
        places = [_place(choice.candidate.id, model.order, model.label)] if model is not None else []
        places += [_place(choice.candidate.label, head, first.adviser)] if head else []
        facts += [("advice", "; ".join(places))] if places else []
    elif names:
        facts.append(("advice", f"nothing that {' or '.join(names)} named runs here"))
    for word, mark, style in _SETTLED:
        claims = [claim.text for claim in (model.claims if model is not None else ()) if claim.standing == word]
        if claims:
            more = f"; … {len(claims) - _CLAIMS} more" if len(claims) > _CLAIMS else ""
            facts.append(("claims", (f"{mark} {word}: {'; '.join(claims[:_CLAIMS])}{more}", style)))
    return facts


def _place(one: str, order: Sequence[str], who: str) -> str:
    """Return the place of a candidate among those that an adviser named."""
    if len(order) < 2:
        return f"{who} named none" if not order else f"{'the' if one in order else 'not the'} one that {who} named"
    place = f"number {order.index(one) + 1} of" if one in order else "not among"
    return f"{place} the {len(order)} that {who} named first"


def _others(state: State, change: Change, width: int, ink: Ink) -> list[Line]:
    best: dict[str, tuple[Candidate, Measurement]] = {}
    for trial in trials_of(state, change.row.region):
        if isinstance(trial.verdict, Measured):
            best[trial.candidate.id] = (trial.candidate, trial.verdict.measurement)
    rows = sorted(best.values(), key=lambda pair: pair[1].median_ns)[:8]
    if not rows:
        return []
    lines = [line(), line(("What passed every check", "head"))]
    for candidate, m in rows:
        cells = max(width - 17, 8)
        *above, last = ink.wrap(short(candidate.label), width)
        if ink.width(last) > cells:
            above, last = [*above, last], ""
        lines += [line(piece) for piece in above]
        lines.append(
            line(ink.fit(last, cells), (f"{duration(m.median_ns):>8}", ""), (f"{times(m.speedup):>8}", tone(m.speedup)))
        )
    return lines


def _choices(scene: Scene, region: str) -> list[tuple[str, str]]:
    found = []
    for id, trial in latest(scene.state, region).items():
        m = measured(trial)
        if trial.verdict.kind == "measured" and m and not asks.refusal("override", scene, region, id):
            found.append((m.median_ns, id, f"{trial.candidate.label}  {m.speedup:.2f}×"))
    return [(id, label) for _, id, label in sorted(found)]


def _picked(scene: Scene, view: View, screen: ScreenSpec) -> Step:
    region = asks.target_of(scene, view, screen)
    row = scene.state.row(region)
    title = f"{row.name if row else ''} runs instead:"
    return Step(
        view=replace(view, overlay=Pick(action="override", title=title, options=tuple(_choices(scene, region))))
    )


def _not_picked(scene: Scene, view: View, screen: ScreenSpec) -> str:
    found = _choices(scene, asks.target_of(scene, view, screen))
    return asks.unchangeable(scene) or ("" if found else "No other candidate of this region passed every check.")


SCREEN = ScreenSpec(
    name="review",
    title="Review",
    about="the plan as a difference, to decide on",
    columns=lambda scene, view: COLUMNS,
    entries=entries,
    detail=detail,
    heading=heading,
    keys=(
        *UNDECIDED, asks.APPROVE, asks.REJECT, replace(asks.OVERRIDE, does=_picked, why_not=_not_picked), asks.UNDO,
        asks.APPROVE_SAFE, asks.REJECT_REST, asks.CANCEL, asks.WRITE, asks.SOURCE, asks.DIFF, PLOTS,
    ),
    foot=("open", "approve", "reject", "override", "undo", "approve-safe", "write"),
    empty="No plan yet.",
    lists="regions",
    side=38,
    headless=action("approve").headless,
)  # fmt: skip
