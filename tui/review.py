"""Mode 3: the plan as a difference from PyTorch, with what a person decided on each region. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from agentcompile.ir.template import Candidate
from agentcompile.ir.trial import Choice, Fallback, Kernel, Measured, Measurement, Part, Plan
from agentcompile.runs.progress import RegionProgress, State
from agentcompile.runs.tables import duration

from .decided import NOTHING, Decided, decisions
from .grid import Column, Entry, pairs
from .ink import Ink, Line, Span, Style, line
from .regions import brief, short, times, tone, trials_of

COLUMNS = (
    Column(head="plan", width=8),
    Column(head="region", width=18, grow=2),
    Column(head="runs", width=18, grow=3, drop=1),
    Column(head="ratio", width=6, right=True),
    Column(head="±", width=5, right=True, drop=3),
    Column(head="saves", width=8, right=True, drop=2),
    Column(head="decision", width=11),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One region of the plan: what serves it, how much that saves in a step, and what was decided."""

    row: RegionProgress
    choice: Choice
    sites: int
    measurement: Measurement | None
    proposed_ns: float
    """What the kernel that was measured best would save, whatever was decided; below 0 for PyTorch."""
    decided: Decided

    @property
    def saved_ns(self) -> float:
        """Time that its kernel takes off a step, estimated from its own measurement beside PyTorch."""
        m = self.measurement
        return self.sites * float(m.baseline_ns - m.median_ns) if m and isinstance(self.choice, Kernel) else 0.0

    @property
    def expected_ns(self) -> float:
        """Its time in a step by itself: as measured, of PyTorch too; the roofline where nothing was."""
        if isinstance(self.choice, Kernel) and self.measurement is not None:
            return self.sites * float(self.measurement.median_ns)
        best = self.row.best
        return self.sites * (float(best.measurement.baseline_ns) if best is not None else self.row.floor_ns)


def parts(state: State) -> tuple[Part, ...]:
    """The parts of all decode plans, each region once; before there is a plan, every region with a choice."""
    if not state.plans:
        return tuple(Part(region=row.region, choice=row.choice) for row in state.rows if row.choice is not None)
    found: dict[str, Part] = {}
    for plan in sorted(state.plans, key=lambda plan: (plan.regime.batch, plan.regime.context)):
        for part in plan.parts if plan.phase == "decode" else ():
            found.setdefault(part.region, part)
    return tuple(found.values())


def changes(state: State) -> list[Change]:
    """What the plan changes, largest measured saving first, and what it keeps; a decision moves nothing."""
    found = []
    standing = decisions(state)
    for part in parts(state):
        row = state.row(part.region)
        if row is None:
            continue
        word = standing.get(row.region, NOTHING)
        choice = _choice(state, part.choice, word)
        found.append(
            Change(
                row=row,
                choice=choice,
                sites=len(part.sites) or row.sites,
                measurement=_measurement(state, choice),
                proposed_ns=_saved_ns(len(part.sites) or row.sites, _measurement(state, part.choice)),
                decided=word,
            )
        )
    return sorted(found, key=lambda one: (-one.proposed_ns, one.row.name))


def _saved_ns(sites: int, measurement: Measurement | None) -> float:
    return sites * float(measurement.baseline_ns - measurement.median_ns) if measurement else -1.0


def _choice(state: State, measured: Choice, word: Decided) -> Choice:
    """What the region will run: as measured, or as a person decided."""
    if word.word == "rejected":
        return Fallback(reason=word.reason or "rejected by a person", decided_by="human")
    point = word.instead
    if word.word != "overridden" or point is None:
        return measured
    trial = next((one for one in reversed(trials_of(state, point.region)) if one.candidate == point), None)
    if trial is None or not isinstance(trial.verdict, Measured):
        return measured
    m = trial.verdict.measurement
    return Kernel(
        candidate=point, source=trial.source, speedup=m.speedup, half_width=m.half_width, decided_by="human",
        reason=word.reason,
    )  # fmt: skip


def _measurement(state: State, choice: Choice) -> Measurement | None:
    if not isinstance(choice, Kernel):
        return None
    last: dict[str, Measurement] = {}
    for trial in trials_of(state, choice.candidate.region):
        if trial.candidate.id == choice.candidate.id and isinstance(trial.verdict, Measured):
            last[trial.fidelity] = trial.verdict.measurement
    return last.get("confirm") or last.get("search")


def entries(state: State, *, narrow: bool = False) -> list[Entry]:
    """The plan's regions as rows; `narrow` leaves out the names of parameters, which the detail has."""
    return [_entry(change, narrow) for change in changes(state)]


def _entry(change: Change, narrow: bool) -> Entry:
    mark: Span
    match change.choice:
        case Kernel(candidate=candidate, speedup=speedup, half_width=width):
            mark = ("? change", "warn") if change.decided.open else ("~ change", "accent")
            runs: Span = (f"→ {brief(candidate)}" if narrow else f"PyTorch → {short(candidate.label)}", "")
            numbers: tuple[Span, ...] = (
                (times(speedup), tone(speedup)),
                (f"{width:.2f}" if width < 10 else "any", "dim"),
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


def heading(state: State, width: int, ink: Ink) -> list[Line]:
    """Two lines over the plan: the estimate beside what was measured in the step, and what is left to decide."""
    found = changes(state)
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
    return [step_line(state, found, width, ink), line((summary, "dim"))]


def step_line(state: State, found: list[Change], width: int, ink: Ink) -> Line:
    """The step as estimated from the regions' own times, and as measured with all kernels in place, before or after a
    person's decisions."""
    plan = _first(state)
    saved = sum(change.saved_ns for change in found)
    estimate = sum(change.expected_ns for change in found)
    if plan is None or not plan.baseline_ns:
        return line(
            ("Estimate ", "title"), f"saves {duration(saved)} a step", ("  not measured in the step yet", "dim")
        )
    low, high = (math.exp(plan.log_ratio + sign * plan.half_width) for sign in (-1, 1))
    ratio = math.exp(plan.log_ratio)
    slower: Style = "good" if low > 1 else "bad" if high < 1 else "warn"
    known: Span = (f"PyTorch {duration(plan.baseline_ns)}  estimate {duration(estimate)}  ", "dim")
    interval = f" ({low:.2f}–{high:.2f})"
    spans: list[Span] = [
        ("Step ", "title"),
        known,
        (f"{'measured' if _as_decided(state, found) else 'before decisions'} {duration(plan.step_ns)}  ", ""),
        (times(ratio), slower),
    ]
    if sum(ink.width(text) for text, _ in spans) + len(interval) <= width:
        spans.append((interval, slower))
    return line(*spans)


def _as_decided(state: State, found: list[Change]) -> bool:
    """Whether what was measured in the step is what a person decided: a change is measured when the lock is written."""
    return bool(state.ruled) or not any(change.decided.word in ("rejected", "overridden") for change in found)


def _first(state: State) -> Plan | None:
    plans = [plan for plan in state.final if plan.phase == "decode"]
    return min(plans, key=lambda plan: (plan.regime.batch, plan.regime.context), default=None)


def detail(state: State, region: str, width: int, ink: Ink) -> list[Line]:
    """One region of the plan: what it would run and why, what was decided, and what else may be used."""
    change = next((change for change in changes(state) if change.row.region == region), None)
    if change is None:
        return [line(("Nothing to decide yet", "dim"))]
    lines = [line((change.row.name, "title")), line((f"{change.sites} of {change.row.sites} sites", "dim")), line()]
    match change.choice:
        case Kernel(candidate=candidate, decided_by=by, reason=reason):
            facts: list[tuple[str, str | Span]] = [("from", "PyTorch, as captured"), ("to", candidate.label)]
            facts.append(("because", f"{by}{': ' + reason if reason else ''}"))
        case Fallback(reason=reason):
            facts = [("keeps", "PyTorch, as captured"), ("because", reason)]
    if (m := change.measurement) is not None:
        facts.append(("time", f"{duration(m.median_ns)} beside {duration(m.baseline_ns)}"))
        facts.append(("ratio", (f"{times(m.speedup)} ± {m.half_width:.3f}", tone(m.speedup))))
        facts.append(("saves", f"{duration(change.saved_ns)} a step, estimated"))
    lines += pairs(facts, ink, width)
    lines += [line(), line(("Decision", "head")), line(change.decided.span)]
    lines += [line((piece, "dim")) for piece in ink.wrap(change.decided.detail, width)] if change.decided.detail else []
    return lines + _others(state, change, width, ink)


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
        name = ink.fit(brief(candidate) if width < 60 else short(candidate.label), max(width - 17, 8))
        lines.append(line(name, (f"{duration(m.median_ns):>8}", ""), (f"{times(m.speedup):>8}", tone(m.speedup))))
    return lines
