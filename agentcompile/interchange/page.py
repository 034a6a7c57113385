"""One run as one HTML page that needs nothing beside it: no script, no file, no address that a browser would open.

In: what a run's events and its store say. Out: the page's text. Every text is cleaned and escaped, and the page's
content policy lets a browser load nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from agentcompile.events import clean
from agentcompile.interchange import plots
from agentcompile.ir.trial import Kernel, Measured, Plan, Trial
from agentcompile.runs.progress import RegionProgress, State
from agentcompile.runs.status import Status
from agentcompile.runs.tables import Table, choice_text, duration, plan, plan_line, regions, stage_name

POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --muted: #626a75; --grid: #d9dce1; --paper: #ffffff; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e7eb; --muted: #9aa2ad; --grid: #363c45; --paper: #14171b; }
}
body { margin: 0 auto; max-width: 80rem; padding: 1rem; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; } h3 { font-size: 1rem; }
p { color: var(--muted); max-width: 60rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .5rem; border-bottom: 1px solid var(--grid); text-align: left; vertical-align: top; }
th { color: var(--muted); } .right { text-align: right; white-space: nowrap; }
pre { overflow-x: auto; border: 1px solid var(--grid); padding: .6rem; font-size: .8rem; overflow-wrap: normal; }
svg { display: block; width: 100%; max-width: 54rem; height: auto; font-size: 12px; }
summary { cursor: pointer; font-weight: 600; margin: .6rem 0; }
"""
_SOURCE = 400_000
"""Letters of one source that are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceText:
    """The text of a kernel as a compiler saw it; None where the store has it no more."""

    label: str
    digest: str
    text: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionPart:
    """The part of the page on one region."""

    row: RegionProgress
    why: str
    """What it runs, and why."""
    advice: str
    """What an adviser said; empty where none said anything."""
    trials: Table
    timed: Sequence[Trial]
    """Its trials, in the order in which they were made."""
    sources: Sequence[SourceText]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All that the page is made of."""

    name: str
    status: Status
    state: State
    options: Sequence[tuple[str, str]]
    steps: Sequence[tuple[float, float]]
    """The best step known over the search: seconds, nanoseconds."""
    parts: Sequence[RegionPart]


def page(report: Report) -> str:
    """Return the whole page as HTML; the same run gives the same bytes."""
    title = _text(f"{report.name}: {report.status}")
    lines = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{escape(POLICY)}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{title}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{title}</h1>",
        *_head(report),
        *_result(report),
        *_progress(report),
    ]
    lines.append("<h2>Regions</h2>")
    lines += _table(regions(report.state))
    for part in report.parts:
        lines += _region(part)
    lines += _settings(report)
    return "\n".join([*lines, "</body></html>", ""])


def _head(report: Report) -> Iterator[str]:
    state, counts = report.state, report.state.counts
    yield f"<p>{_text(f'model {state.model}, agentcompile {state.version}')}</p>"
    if state.target is not None:
        yield f"<p>{_text(f'{state.target.device}, {state.target.kind} {state.target.arch}')}</p>"
    kinds = ("measured", "rejected", "build_failed", "incorrect", "crashed", "timed_out", "impossible")
    told = [f"{getattr(counts, kind)} {kind.replace('_', ' ')}" for kind in kinds if getattr(counts, kind)]
    reused = f"; {counts.reused} from the measurement database" if counts.reused else ""
    yield f"<p>{_text(f'{counts.total} trials: ' + (', '.join(told) or 'none') + reused)}</p>"
    if state.failure is not None:
        yield f"<p><strong>{_text(state.failure.message)}</strong> {_text(state.failure.hint)}</p>"
    if state.lock is not None:
        yield f"<p>{_text(f'lock {state.lock.path}, {state.lock.digest[:12]}')}</p>"
    for warning in state.warnings:
        yield f"<p>warning: {_text(warning)}</p>"


def _result(report: Report) -> Iterator[str]:
    if not report.state.final:
        return
    yield "<h2>Plans</h2>"
    for one in report.state.final:
        yield f"<h3>{_text(plan_line(one))}</h3>"
        yield from _table(plan(report.state, one))
        if bars := _bars(report, one):
            yield plots.bars(bars, f"Times of one occurrence of each region, {one.regime.name}")
    for check in report.state.checks.values():
        verdict = f"fault: {check.fault}" if check.fault else "passed"
        yield f"<h3>{_text(f'Whole model beside {check.oracle} in float32: {verdict}')}</h3>"
        rows = [
            (score.phase, str(score.positions), f"{score.kl:.3g}", f"{score.kl_eager:.3g}", str(score.mismatches))
            for score in check.phases
        ]
        heads = ("phase", "positions", "KL, nats", "KL of eager, nats", "other greedy tokens")
        yield from _table(Table(heads=heads, rows=rows, right=(1, 2, 3, 4)))


def _bars(report: Report, one: Plan) -> list[plots.RegionBar]:
    timed = {part.row.region: part for part in report.parts}
    found = []
    for part in one.parts:
        known = timed.get(part.region)
        if known is None:
            continue
        times = [trial.verdict.measurement for trial in known.timed if isinstance(trial.verdict, Measured)]
        chosen = 0.0
        if isinstance(part.choice, Kernel):
            mine = [
                trial.verdict.measurement.median_ns
                for trial in known.timed
                if isinstance(trial.verdict, Measured) and trial.candidate == part.choice.candidate
            ]
            chosen = float(mine[-1]) if mine else 0.0
        if times:
            baseline = float(times[-1].baseline_ns)
            row = known.row
            found.append(plots.RegionBar(name=row.name, floor_ns=row.floor_ns, baseline_ns=baseline, chosen_ns=chosen))
    return sorted(found, key=lambda bar: -bar.baseline_ns)


def _progress(report: Report) -> Iterator[str]:
    rows = [
        (stage_name(stage.stage), "-" if stage.seconds is None else f"{stage.seconds:.1f}", stage.detail)
        for stage in report.state.stages
    ]
    yield "<h2>Stages</h2>"
    yield from _table(Table(heads=("stage", "s", "result"), rows=rows, right=(1,)))
    if drawn := plots.line(report.steps, "Best step over the search"):
        yield "<h3>Best step over the search</h3>"
        yield drawn


def _region(part: RegionPart) -> Iterator[str]:
    row = part.row
    runs = choice_text(row.choice) if row.choice is not None else "not chosen"
    yield f"<details><summary>{_text(f'{row.name}: {runs}')}</summary>"
    facts = f"{row.sites} occurrences, {row.share:.1%} of the step, roofline {duration(row.floor_ns)}"
    yield f"<p>{_text(f'{facts}; {row.templates} templates, {row.points} candidates')}</p>"
    yield f"<p>{_text(part.why)}</p>"
    if part.advice:
        yield f"<h3>Advice</h3><pre>{_text(part.advice, lines=True)}</pre>"
    measured = [trial for trial in part.timed if isinstance(trial.verdict, Measured)]
    if measured:
        dots = [
            plots.Dot(
                label=trial.candidate.label,
                time_ns=trial.verdict.measurement.median_ns,
                confirmed=trial.fidelity == "confirm",
            )
            for trial in measured
            if isinstance(trial.verdict, Measured)
        ]
        last = measured[-1].verdict
        baseline = last.measurement.baseline_ns if isinstance(last, Measured) else 0
        yield plots.dots(dots, baseline, row.floor_ns, f"Candidates of {row.name}")
    yield from _table(part.trials)
    for source in part.sources:
        yield f"<h3>{_text(f'Source of {source.label}, {source.digest[:12]}')}</h3>"
        if source.text is None:
            yield "<p>The store on this machine does not have it.</p>"
        else:
            yield f"<pre>{_text(source.text, lines=True)}</pre>"
    yield "</details>"


def _settings(report: Report) -> Iterator[str]:
    yield "<h2>Settings</h2>"
    yield from _table(Table(heads=("setting", "value"), rows=list(report.options)))
    boundaries = [(one.op, one.reason, one.detail) for one in report.state.boundaries]
    if boundaries:
        yield "<h2>Boundaries</h2>"
        yield from _table(Table(heads=("operator", "reason", "detail"), rows=boundaries))


def _table(table: Table) -> Iterator[str]:
    if not table.rows:
        return

    def cell(tag: str, at: int, text: str) -> str:
        side = ' class="right"' if at in table.right else ""
        return f"<{tag}{side}>{_text(text)}</{tag}>"

    yield '<div class="wide"><table>'
    yield f"<tr>{''.join(cell('th', at, text) for at, text in enumerate(table.heads))}</tr>"
    for row in table.rows:
        yield f"<tr>{''.join(cell('td', at, text) for at, text in enumerate(row))}</tr>"
    yield "</table></div>"


def _text(text: str, *, lines: bool = False) -> str:
    return escape(clean(text, _SOURCE, lines=lines))
