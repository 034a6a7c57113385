"""The screen of regions: every region with what is known of it, and one of them in detail. Pure."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from agentcompile.ir.trial import Fallback, Kernel, Measured, Trial
from agentcompile.runs.progress import RegionProgress, State
from agentcompile.runs.tables import amount, duration

from .asks import CANCEL
from .charts import PLOTS
from .grid import Column, Entry, pairs
from .ink import Ink, Line, Span, Style, line, spark
from .moving import UNDECIDED
from .overlapping import Overlaps, overlaps, share_of
from .scene import Advice, Scene, View
from .screen import EXPLAIN, ScreenSpec
from .trials import Placed, Same, ordered, placed, short, times, tone, trials_of

COLUMNS = (
    Column(head="state", width=11),
    Column(head="region", width=24, grow=3, middle=True),
    Column(head="count", width=5, right=True, drop=3),
    Column(head="share", width=7, right=True, drop=1),
    Column(head="roofline", width=8, right=True, drop=2),
    Column(head="pytorch", width=7, right=True, drop=4),
    Column(head="best", width=7, right=True),
    Column(head="ratio", width=6, right=True),
    Column(head="runs", width=16, grow=2, drop=5, middle=True),
)

_STATES: dict[str, tuple[str, Style]] = {
    "found": ("○ found", "dim"),
    "bounded": ("○ bounded", "dim"),
    "advised": ("◌ advised", "dim"),
    "searching": ("◐ tuning", "accent"),
    "measured": ("◐ measured", ""),
    "chosen": ("● chosen", "good"),
    "fallback": ("‖ pytorch", "dim"),
    "planned": ("● in plan", "good"),
    "unused": ("- unused", "dim"),
}


def state_of(row: RegionProgress, plan: Placed) -> Span:
    """Return a region's state as glyph and word."""
    if plan:
        choice = plan.get(row.region)
        return _STATES["unused" if choice is None else "planned" if isinstance(choice, Kernel) else "fallback"]
    if isinstance(row.choice, Fallback):
        return _STATES["fallback"]
    if row.state == "searching" and not row.running:
        return _STATES["measured"]
    return _STATES[row.state]


def entries(scene: Scene, view: View) -> list[Entry]:
    """Return every region as a row: those of the plan by their share, and below each those that overlap with it."""
    return list(_entries(Same(scene.state)))


@functools.lru_cache(maxsize=2)
def _entries(state: Same[State]) -> list[Entry]:
    plan, found = placed(state.value), overlaps(state.value)
    return [_entry(row, plan, found) for row in ordered(state.value)]


def _entry(row: RegionProgress, plan: Placed, found: Overlaps) -> Entry:
    share, above = found.shares.get(row.region), found.above.get(row.region, "")
    best = row.best.measurement if row.best else None
    ratio = best.speedup if best else 0.0
    cells: tuple[Span, ...] = (
        state_of(row, plan),
        (f"└ {row.name}" if above else row.name, ""),
        (str(row.sites), ""),
        (f"{share:.1%}", "") if share is not None else (f"({row.share:.1%})", "dim"),
        (duration(row.floor_ns), "dim"),
        (duration(best.baseline_ns) if best else "-", "dim"),
        (duration(best.median_ns) if best else "-", ""),
        (times(ratio) if best else "-", tone(ratio) if best else "dim"),
        _runs(row, plan),
    )
    order = (
        state_of(row, plan)[0], row.name, -row.sites, -row.share, -row.floor_ns,
        -best.baseline_ns if best else 1.0, -best.median_ns if best else 1.0, -ratio, _runs(row, plan)[0],
    )  # fmt: skip
    return Entry(key=row.region, cells=cells, order=order, under=above)


def heading(scene: Scene, view: View, width: int, ink: Ink) -> list[Line]:
    """Return the line over the regions: how many cover the step, their shares together, and what overlaps with them."""
    if not scene.state.rows:
        return []
    found = overlaps(scene.state)
    covers = "of the plan" if found.planned else "without overlap"
    text = f"{len(found.shares)} regions {covers}, {found.whole:.0%} of the step"
    if below := sum(bool(one) for one in found.above.values()):
        text += f"; {below} overlap with these: (share)"
    return [line((ink.fit(text, width), "dim"))]


def _runs(row: RegionProgress, plan: Placed) -> Span:
    if plan and row.region not in plan:
        return "in others", "dim"
    match plan.get(row.region, row.choice):
        case Kernel(candidate=candidate):
            return short(candidate.label), ""
        case Fallback(reason=reason):
            return f"PyTorch: {reason}", "dim"
        case None:
            return _open(row)


def _open(row: RegionProgress) -> Span:
    if row.running:
        done, total = row.rounds
        return f"{short(row.running)}{f' {done}/{total}' if total else ''}", "accent"
    if row.points:
        return f"{row.counts.total} of {row.points} tried", "dim"
    return ("no template" if row.state != "found" else "found"), "dim"


def detail(scene: Scene, view: View, region: str, width: int, ink: Ink) -> list[Line]:
    """Return one region in full: its cost, operators and interface, advice, checks, and the course of its trials."""
    row = scene.state.row(region)
    if row is None:
        return [line(("No region yet. They appear when the model is cut.", "dim"))]
    trials = trials_of(scene.state, region)
    lines = [line((row.name, "title")), line((row.regime, "dim")), line()]
    lines += pairs(_cost(row, placed(scene.state), share_of(scene.state, region)), ink, width)
    lines += _interface(row, ink, width)
    lines += _advice(row, trials, scene.advice.get(region), ink, width)
    lines += _checks(row, trials, ink, width)
    return [*lines, *_trend(trials, ink, width)]


def _cost(row: RegionProgress, plan: Placed, share: float) -> list[tuple[str, str | Span]]:
    word, style = state_of(row, plan)
    facts: list[tuple[str, str | Span]] = [
        ("state", (word, style)),
        ("count", f"{row.sites}, {share:.1%} of the step"),
        ("roofline", f"{duration(row.floor_ns)} an occurrence"),
        ("work", f"{amount(row.flops, 'FLOP')}, {amount(row.bytes)}, {row.flops / max(row.bytes, 1):.2f} FLOP/B"),
    ]
    if row.best:
        m = row.best.measurement
        over = f", {m.median_ns / row.floor_ns:.2f}× its roofline" if row.floor_ns else ""
        facts.append(("best", f"{duration(m.median_ns)}{over}"))
        facts.append(("ratio", (f"{times(m.speedup)} {m.baseline}, {duration(m.baseline_ns)}", tone(m.speedup))))
        facts.append(("reached", f"{amount(m.bytes_per_s, 'B/s')} from {m.residency}"))
    match plan.get(row.region, row.choice):
        case _ if plan and row.region not in plan:
            facts.append(("runs", "nowhere: other regions of the plan contain its operators"))
        case Kernel(candidate=candidate, decided_by=by):
            facts.append(("runs", f"{candidate.label} ({by})"))
        case Fallback(reason=reason):
            facts.append(("runs", f"PyTorch, as captured: {reason}"))
        case None:
            pass
    return facts


def _interface(row: RegionProgress, ink: Ink, width: int) -> list[Line]:
    if not row.operators and not row.ports:
        return []
    lines = [line(), line(("Operators and interface", "head"))]
    lines += [line(piece) for piece in ink.wrap(" → ".join(row.operators), width)] if row.operators else []
    return lines + [line((f"  {port}", "dim")) for port in row.ports]


def _advice(row: RegionProgress, trials: Sequence[Trial], advice: Advice | None, ink: Ink, width: int) -> list[Line]:
    if not row.head:
        return []
    lines = [line(), line((f"Advice of {advice.adviser if advice else 'the adviser'}", "head"))]
    for label in row.head:
        word, style = claim(label, row, trials)
        lines.append(line((f"{word:<12} ", style), (short(label), "")))
    if advice is not None and advice.note:
        lines += [line((piece, "dim")) for piece in ink.wrap(f"It says, unverified: {advice.note}", width, 12)]
    return lines


def claim(label: str, row: RegionProgress, trials: Sequence[Trial]) -> Span:
    """Return what became of the advice to try `label` first, by measurement alone: unverified, confirmed or refuted."""
    of_it = [trial for trial in trials if trial.candidate.label == label]
    measured = [trial.verdict.measurement for trial in of_it if isinstance(trial.verdict, Measured)]
    if not of_it:
        return "? unverified", "dim"
    if not measured:
        return "✗ refuted", "bad"
    best = row.best.measurement.log_ratio if row.best else measured[-1].log_ratio
    last = measured[-1]
    if last.comparison == "INCONCLUSIVE":
        return "? unclear", "warn"
    good = last.log_ratio > 0 and last.log_ratio >= best - max(last.half_width if last.half_width < 1 else 0.05, 0.05)
    return ("✓ confirmed", "good") if good else ("✗ refuted", "bad")


def _checks(row: RegionProgress, trials: Sequence[Trial], ink: Ink, width: int) -> list[Line]:
    lines = [line(), line(("Space and checks", "head"))]
    space = f"{row.points} points in {row.templates} templates, {row.refused} refused"
    c = row.counts
    failed = {
        "rejected by a check": c.rejected, "not built": c.build_failed, "incorrect": c.incorrect, "crashed": c.crashed,
        "timed out": c.timed_out, "disturbed": c.disturbed, "impossible": c.impossible,
    }  # fmt: skip
    said = ", ".join(f"{count} {name}" for name, count in failed.items() if count)
    lines += pairs(
        [("space", space), ("tried", f"{c.total}: {c.measured} measured{', ' + said if said else ''}")], ink, width
    )
    if row.best and (trial := next((t for t in reversed(trials) if t.candidate.id == row.best.candidate), None)):
        verdict = trial.verdict
        if isinstance(verdict, Measured):
            r = verdict.report
            text = f"{sum(check.ok for check in r.checks)} of {len(r.checks)} checks, {r.cases} cases"
            lines += pairs([("best", f"{text}, error {r.error_ratio:.2f}× that of PyTorch")], ink, width)
    return lines


def _trend(trials: Sequence[Trial], ink: Ink, width: int) -> list[Line]:
    best = 0.0
    course: list[float] = []
    for trial in trials:
        if isinstance(trial.verdict, Measured):
            best = max(best, trial.verdict.measurement.speedup)
            course.append(best)
    if len(course) < 2:
        return []
    shown = spark(course, min(width - 24, 48), ink)
    text = f" {times(course[0])} → {times(course[-1])}"
    return [line(), line(("Best ratio by trial", "head")), line((shown, "accent"), (text, ""))]


SCREEN = ScreenSpec(
    name="regions",
    title="Regions",
    about="what the model was cut into",
    columns=lambda scene, view: COLUMNS,
    entries=entries,
    detail=detail,
    heading=heading,
    keys=(*UNDECIDED, CANCEL, PLOTS),
    foot=("open", "filter", "sort", "pause", "plots"),
    empty="No regions yet: they appear when the model is cut.",
    lists="regions",
    opens="tune",
    headless=EXPLAIN,
)
