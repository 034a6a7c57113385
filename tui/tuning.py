"""The screen of tuning: the candidates of one region with their latencies, beside one of three baselines. Pure."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from agentcompile.ir.evaluate import EvaluationError, evaluate
from agentcompile.ir.expr import ExprError, free_names, parse
from agentcompile.ir.trial import (
    WIDEST,
    Check,
    Impossible,
    Incorrect,
    Measured,
    Measurement,
    Rejected,
    Trial,
    reason,
)
from agentcompile.runs.losses import why_lost
from agentcompile.runs.progress import RegionProgress, State
from agentcompile.runs.tables import duration, interval_text

from . import searching
from .asks import APPROVE, CANCEL, DIFF, EDIT, OVERRIDE, REJECT, RERUN, SOURCE, UNDO
from .charts import PLOTS
from .grid import GAP, Column, Entry, fitted, pairs
from .ink import Ink, Line, Span, Style, histogram, line, meter, spark
from .moving import UNDECIDED
from .overlapping import share_of
from .regions import claim
from .scene import BASELINES, Baseline, Scene, Step, View
from .screen import EXPLAIN, Act, ScreenSpec, key_of, table_width
from .searching import SEARCH
from .trials import SEVERAL, Same, latest, measured, named, placed, region_of, short, state_of, times, tone

COLUMNS = (
    Column(head="state", width=12),
    Column(head="candidate", width=20, grow=3, wants=32, middle=True),
    Column(head="n", width=3, right=True, drop=3),
    Column(head="median", width=7, right=True),
    Column(head="±", width=6, right=True, drop=1),
    Column(head="p95", width=7, right=True, drop=2),
    Column(head="ratio", width=6, right=True),
    Column(head="warning", width=11, grow=1, drop=4),
)
_MEDIAN, _P95, _RATIO = 3, 5, 6
"""Places of the columns by which one candidate is best."""
_FRESH, _SEARCHED, _FAILED = 0, 1, 2
"""Groups of rows: timed again on fresh data, timed in the search, without a time."""
WIDE_INTERVAL = 0.10
"""Half an interval of the ratio's logarithm from which a time is called unstable."""
LOST_ROUNDS = 0.25
"""Share of rounds dropped for other work on the machine from which a time is called contended."""
FEW_TIMES = 3
"""Below these there is no spread to show."""
FEW_ROUNDS = 10
"""Below these the slowest round says nothing of the machine."""
_APART = 3
"""Blanks between what ratios are taken to and the histogram."""
_NONE: Span = ("-", "dim")
_NOTHING = (_NONE,) * 5
"""The numbers of a candidate that has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """The baseline of the shown ratios: its name, its log ratio to PyTorch, and half of that ratio's interval."""

    name: str
    log_ratio: float = 0.0
    half_width: float = 0.0
    candidate: str = ""
    """Its id where it is a candidate, whose rounds are not those of others; empty for PyTorch."""


def arm(state: State, region: str, baseline: Baseline) -> Arm:
    """Return the baseline of the shown ratios; PyTorch where another one is not measured yet."""
    row = state.row(region)
    if row is None or baseline == "pytorch":
        return Arm(name="PyTorch")
    if baseline == "best":
        if row.best is None:
            return Arm(name="PyTorch (nothing is best yet)")
        m = row.best.measurement
        return Arm(
            name=f"the best, {short(row.best.label)}",
            log_ratio=m.log_ratio,
            half_width=_finite(m),
            candidate=row.best.candidate,
        )
    for one in latest(state, region).values():
        if row.head and one.candidate.label == row.head[0] and (found := measured(one)) is not None:
            name = f"the adviser's first, {short(row.head[0])}"
            return Arm(name=name, log_ratio=found.log_ratio, half_width=_finite(found), candidate=one.candidate.id)
    return Arm(name="PyTorch (the adviser's first is not measured)")


def _finite(m: Measurement) -> float:
    return m.half_width if m.half_width < 1e3 else 0.0


def entries(scene: Scene, view: View) -> list[Entry]:
    """Return a region's candidates: those timed on fresh data, those timed in the search, those without a time.

    Times of these groups come from different rounds, so that each group is sorted by itself. Names of parameters are
    shortened where the column is narrow. Where the search is wanted the rows are what was proposed from what.
    """
    if searching.shows(scene, view):
        return searching.entries(scene, view)
    cells = dict(fitted(COLUMNS, table_width(view) - GAP))[1]
    return list(_entries(Same(scene.state), region_of(scene, view), view.baseline, cells, _by(view)))


def _by(view: View) -> int:
    """Return the column by which the best candidate is marked: the one that rows are sorted by, or the ratio."""
    by = view.sort.get("tune", -1)
    return by if by in (_MEDIAN, _P95) else _RATIO


def _group(trial: Trial) -> int:
    if not isinstance(trial.verdict, Measured):
        return _FAILED
    return _FRESH if trial.fidelity == "confirm" else _SEARCHED


def _sound(trial: Trial) -> Measurement | None:
    return trial.verdict.measurement if isinstance(trial.verdict, Measured) else None


def best_of(state: State, region: str, by: int = _RATIO) -> str:
    """Return the id of a region's best candidate by a column, among those of the freshest rounds; empty for none."""
    found = [
        (_group(one), {_MEDIAN: m.median_ns, _P95: m.p95_ns}.get(by, -m.log_ratio), id)
        for id, one in latest(state, region).items()
        if (m := _sound(one)) is not None
    ]
    return min(found)[2] if found else ""


@functools.lru_cache(maxsize=4)
def _entries(same: Same[State], region: str, baseline: Baseline, width: int, by: int) -> list[Entry]:
    state = same.value
    row = state.row(region)
    to, best = arm(state, region, baseline), best_of(state, region, by)
    found = latest(state, region)
    runs = placed(state).get(region, row.choice if row is not None else None)
    rows = [_entry(one, to, state_of(one, best, runs), width) for one in found.values()]
    rows.sort(key=lambda entry: (entry.group, isinstance(entry.order[_RATIO], str), entry.order[_RATIO]))
    if row is not None and row.running:
        known = {one.candidate.label for one in found.values()}
        done, total = row.rounds
        word = f"◐ {done}/{total}" if total else "◐ building"
        again = " again" if row.running in known else ""
        cells: tuple[Span, ...] = (
            (word, "accent"), (short(row.running) + again, "accent"), *_NOTHING, ("", ""),
        )  # fmt: skip
        order = (word, row.running, 0.0, 0.0, 0.0, 0.0, 0.0, "")
        rows.insert(0, Entry(key="running", cells=cells, order=order, group=_FRESH - 1))
    return rows


def _entry(trial: Trial, to: Arm, state: Span, width: int) -> Entry:
    id, name, group = trial.candidate.id, named(trial.candidate, width), _group(trial)
    m = measured(trial)
    warning = warning_of(trial)
    if m is None:
        cells: tuple[Span, ...] = (
            state, (name, "dim"), *_NOTHING, (reason(trial.verdict), "dim"),
        )  # fmt: skip
        return Entry(key=id, cells=cells, order=(state[0], name, "-", "-", "-", "-", "-", warning), group=group)
    log_ratio = m.log_ratio - to.log_ratio
    ratio = math.exp(log_ratio)
    width_of = 0.0 if id == to.candidate else math.hypot(m.half_width, to.half_width)
    cells = (
        state,
        (name, ""),
        (str(m.rounds), "dim"),
        (duration(m.median_ns), ""),
        (f"{width_of:.3f}" if width_of < WIDEST else "none", "dim"),
        (duration(m.p95_ns), "dim"),
        (f"~{times(ratio)}" if to.candidate not in ("", id) else times(ratio), tone(ratio)),
        (warning.partition(":")[0], "warn"),
    )
    order = (state[0], name, -m.rounds, float(m.median_ns), m.half_width, float(m.p95_ns), -ratio, warning)
    return Entry(key=id, cells=cells, order=order, group=group)


def warning_of(trial: Trial) -> str:
    """Return what is doubtful about a time, and the remedy; empty when nothing is."""
    m = measured(trial)
    if m is None:
        return ""
    if isinstance(trial.verdict, Impossible):
        return "too fast: below its roofline, so the clock must be wrong; r times it again"
    if m.dropped > LOST_ROUNDS * (m.rounds + m.dropped):
        return f"contended: {m.dropped} rounds dropped for other work on the machine; close it, then r times it again"
    if m.half_width > WIDE_INTERVAL and m.comparison == "INCONCLUSIVE":
        return "unstable: the rounds differ too much; r times it again with more of them"
    if m.p95_ns > 2 * m.median_ns and m.rounds >= FEW_ROUNDS:
        return "throttled: one round in twenty takes twice the median; let the machine cool, then r times it again"
    return ""


def heading(scene: Scene, view: View, width: int, ink: Ink) -> list[Line]:
    """Return two lines over the candidates: the region, then the baseline of ratios and a histogram.

    The histogram is of the times of the candidate under the cursor; of all medians where there are no single times.
    """
    if view.search:
        return searching.heading(scene, view, width, ink)
    state, region, candidate = scene.state, region_of(scene, view), key_of(scene, view, SCREEN)
    row = state.row(region)
    if row is None:
        return [line(("No region yet", "dim")), line()]
    known = latest(state, region)
    title = ink.fit(f"{row.name}  {row.sites} occurrences  {share_of(state, region):.1%} of the step", width)
    text = _compared(arm(state, region, view.baseline), {_group(one) for one in known.values()})
    own = measured(known[candidate]) if candidate in known else None
    if own is not None and len(own.times_ns) >= FEW_TIMES:
        spread, of = list(map(float, own.times_ns)), "its times "
    else:
        spread, of = [float(m.median_ns) for one in known.values() if (m := measured(one)) is not None], ""
    if len(spread) < FEW_TIMES:
        return [line((title, "title")), line((text, "dim"))]
    shape: list[Span] = [(f"{of}{duration(min(spread))} ", "dim"), (_bars(spread, width // 8, ink), "accent")]
    shape.append((f" {duration(max(spread))}", "dim"))
    room = width - ink.width(text) - _APART
    fits = sum(ink.width(one) for one, _ in shape) <= room
    return [line((title, "title")), line((text, "dim"), " " * _APART, *(shape if fits else ()))]


def _compared(to: Arm, groups: set[int]) -> str:
    """Return what ratios are taken to, and which of them come from different rounds."""
    if to.candidate:
        return f"ratio to {to.name}; ~ is a ratio of different rounds"
    apart = "; fresh rounds first, then search" if {_FRESH, _SEARCHED} <= groups else ""
    return f"ratio to {to.name}{apart}"


def _bars(values: Sequence[float], width: int, ink: Ink) -> str:
    return histogram(values, min(20, max(6, width)), ink)


def detail(scene: Scene, view: View, candidate: str, width: int, ink: Ink) -> list[Line]:
    """Return one candidate in full: its parameters, its times, its checks, and the constraints of its template."""
    if SEVERAL in candidate:
        return searching.several(scene, view, candidate, width, ink)
    state, region = scene.state, region_of(scene, view)
    row = state.row(region)
    trial = latest(state, region).get(candidate)
    if row is None or trial is None:
        if where := searching.proposal(scene, view, candidate, width, ink):
            return [line(("It waits to be timed", "title")), *where]
        running = row.running if row else ""
        return [line((running or "No candidate yet", "title" if running else "dim"))]
    best = best_of(state, region, _by(view))
    word, style = state_of(trial, best, placed(state).get(region, row.choice))
    lines = [line((piece, "title")) for piece in ink.wrap(trial.candidate.template, width)]
    lines += [
        line((word, style), ("" if trial.fidelity == "search" else "   timed again on fresh data", "dim")),
        line(),
    ]
    lines += pairs([(name, str(value)) for name, value in trial.candidate.params], ink, width, 12)
    word, style = claim(trial.candidate.label, row, [trial])
    if trial.candidate.label in row.head:
        lines += pairs(
            [("advice", (f"{word}: the adviser's choice {row.head.index(trial.candidate.label) + 1}", style))],
            ink,
            width,
            12,
        )
    if (m := measured(trial)) is not None:
        lines += _times(m, row, width, ink)
    if lost := why_lost(state, trial):
        title = "Why it is not chosen" if candidate == best else "Why it lost"
        lines += [line(), line((title, "head")), *(line(piece) for piece in ink.wrap(lost, width))]
    if warning := warning_of(trial):
        lines += [line(), *(line((piece, "warn")) for piece in ink.wrap(f"▲ {warning}", width))]
    lines += searching.proposal(scene, view, candidate, width, ink)
    lines += _found(trial, width, ink)
    if scope := _worth(state, region, candidate):
        lines += [line(), line(("Constraints", "head"))]
        for text, values in scope.items():
            lines += [line(piece) for piece in ink.wrap(text, width)]
            lines += [line((f"  {piece}", "dim")) for piece in ink.wrap(values, width - 2)]
    return lines


def _times(m: Measurement, row: RegionProgress, width: int, ink: Ink) -> list[Line]:
    shown = interval_text(m.log_ratio, m.half_width)
    facts: list[tuple[str, str | Span]] = [
        ("median", f"{duration(m.median_ns)}, p95 {duration(m.p95_ns)}"),
        (m.baseline, duration(m.baseline_ns)),
        ("ratio", (f"{m.speedup:.3f}× {shown} {m.comparison.lower()}", tone(m.speedup))),
        ("rounds", f"{m.rounds}, {m.dropped} dropped, {m.processes} processes, {m.batch} launches each"),
    ]
    if len(m.times_ns) >= FEW_TIMES:
        low_ns, high_ns = duration(min(m.times_ns)), duration(max(m.times_ns))
        facts.append(("spread", f"{low_ns} {_bars(m.times_ns, width // 3, ink)} {high_ns}"))
        facts.append(("in order", spark(m.times_ns, width - 12, ink)))
    if row.floor_ns and m.median_ns:
        share = row.floor_ns / m.median_ns
        facts.append(("of roofline", f"{meter(share, 16, ink)} {share:.0%}"))
    return [line(), line(("Times", "head")), *pairs(facts, ink, width, 12)]


def _found_by(check: Check) -> str:
    if check.ok and not check.measured and not check.allowed:
        return check.detail
    return f"{check.measured:.3g} of {check.allowed:.3g} {check.detail}"


def _found(trial: Trial, width: int, ink: Ink) -> list[Line]:
    verdict = trial.verdict
    lines: list[Line] = [line(), line(("Checks", "head"))]
    if isinstance(verdict, (Measured, Incorrect, Impossible)):
        r = verdict.report
        lines.append(line((f"{r.cases} cases, {r.repeats} repeats, error {r.error_ratio:.2f}× PyTorch's", "dim")))
        for check in r.checks:
            mark: Span = ("✓ ", "good") if check.ok else ("✗ ", "bad")
            lines.append(line(mark, f"{check.name} ", (_found_by(check), "dim")))
        return lines
    if isinstance(verdict, Rejected):
        for finding in verdict.findings:
            style: Style = "bad" if finding.severity == "error" else "warn"
            lines += [line((piece, style)) for piece in ink.wrap(f"{finding.rule}: {finding.text}", width)]
        return lines
    text = getattr(verdict, "log", "") or reason(verdict)
    return lines + [line((piece, "bad")) for piece in ink.wrap(text, width, 200)]


def _worth(state: State, region: str, candidate: str) -> dict[str, str]:
    trial = latest(state, region).get(candidate)
    row = state.row(region)
    if trial is None or row is None:
        return {}
    point = trial.candidate
    names = dict(row.dims) | {name: value for name, value in point.params if isinstance(value, int)}
    stated = next((offer.requires for offer in row.offers if offer.template == point.template), ())
    return {text: _holds(text, names) for text in stated}


def _holds(text: str, names: Mapping[str, int]) -> str:
    try:
        tree = parse(text)
    except ExprError as error:
        return f"unreadable: {error}"
    known = ", ".join(f"{name}={names[name]}" for name in sorted(free_names(tree)) if name in names)
    try:
        return f"{'✓ holds' if evaluate(tree, names) else '✗ does not hold'}{': ' + known if known else ''}"
    except EvaluationError:
        return f"held by the compiler{': ' + known if known else ''}"


def _other_baseline(scene: Scene, view: View, screen: ScreenSpec) -> Step:
    after = BASELINES[(BASELINES.index(view.baseline) + 1) % len(BASELINES)]
    return Step(view=replace(view, baseline=after))


BASELINE = Act("baseline", ("b",), "take ratios to PyTorch, the best, or the adviser's first", _other_baseline)
SCREEN = ScreenSpec(
    name="tune",
    title="Tune",
    about="the candidates of one region",
    columns=lambda scene, view: searching.COLUMNS if searching.shows(scene, view) else COLUMNS,
    entries=entries,
    detail=detail,
    heading=heading,
    keys=(*UNDECIDED, APPROVE, REJECT, OVERRIDE, EDIT, UNDO, CANCEL, RERUN, BASELINE, SEARCH, SOURCE, DIFF, PLOTS),
    foot=("open", "search", "plots", "override", "edit", "rerun", "baseline", "source"),
    empty="No candidate was tried in this region yet.",
    lists="candidates",
    headless=EXPLAIN,
)
