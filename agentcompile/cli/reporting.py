"""The verb `report`: a run as one HTML page, with its plots, tables, sources and advice."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from shlex import quote

from agentcompile.cli.advising import consulted, said
from agentcompile.cli.looking import TRIAL_HEADS, chosen, fastest_first, newest, resources_of, trial_row, why
from agentcompile.cli.render import Screen
from agentcompile.control.sources import source_text
from agentcompile.events import SearchProgress
from agentcompile.interchange.page import RegionPart, Report, SourceText, page
from agentcompile.ir.trial import Kernel
from agentcompile.options import Options, resolve
from agentcompile.runs import progress, session
from agentcompile.runs.losses import Reports, why_lost
from agentcompile.runs.status import status_of
from agentcompile.runs.tables import Table, amount
from agentcompile.system.plain_files import write_atomically

ENDING = ".report.html"


def report(flags: Mapping[str, object], name: str, out: Path | None, *, screen: Screen) -> int:
    """Write one run to `out`, or to a file with the run's name in the current folder.

    Raises:
        AgentCompileError: there is no such run (usage), or the file cannot be written (environment).
    """  # noqa: DOC501
    settings = resolve(flags).options
    run = chosen(settings, name)
    file = out or Path(run.path.resolve().name + ENDING)
    data = page(report_of(run, settings)).encode()
    try:
        write_atomically(file, data)
    except OSError as error:
        raise session.environment_error(error, file) from error
    screen.text(f"{file}: {amount(len(data))}")
    screen.json({"run": str(run.path), "file": str(file), "bytes": len(data)})
    screen.next(f"open {quote(str(file))} in a browser, or send it: it needs nothing beside it")
    return 0


def report_of(run: session.RunDirectory, settings: Options) -> Report:
    """Return what the page of a run is made of; `settings` say where the store is."""
    state, steps = progress.State(), list[tuple[float, float]]()
    for event in run.events():
        state = progress.apply(state, event)
        if isinstance(event, SearchProgress) and event.step_ns:
            steps.append((event.elapsed_s, float(event.step_ns)))
    options = run.options()
    given = sorted(options.items()) if isinstance(options, dict) else []
    reports = resources_of(state, settings)
    return Report(
        name=run.path.resolve().name,
        status=status_of(state, alive=run.alive()),
        state=state,
        options=[(key.replace("_", "-"), str(value)) for key, value in given],
        steps=steps,
        parts=[_part(run, state, row, reports) for row in sorted(state.rows, key=lambda row: (-row.share, row.name))],
    )


def _part(
    run: session.RunDirectory, state: progress.State, row: progress.RegionProgress, reports: Reports
) -> RegionPart:
    timed = [trial for trial in state.trials if trial.candidate.region == row.region]
    told = Screen(out=io.StringIO(), err=io.StringIO())
    if row.advice is not None:
        said(row, row.advice, told)
    consulted(row, told)
    for missed in state.unadvised:
        if row.advice is None and row.region in missed.regions:
            told.text(f"no advice: {missed.reason}")
    ordered = sorted(timed, key=fastest_first)
    lost = {id(trial): why_lost(state, trial, reports) for trial in newest(ordered)}
    trials = [(*trial_row(trial), lost.get(id(trial), "")) for trial in ordered]
    assert isinstance(told.out, io.StringIO)
    return RegionPart(
        row=row,
        why=why(row, state),
        advice=told.out.getvalue(),
        trials=Table(heads=(*TRIAL_HEADS, "why it lost"), rows=trials, right=(2, 3, 4, 5)),
        timed=timed,
        sources=list(_sources(run, state, row)),
    )


def _sources(run: session.RunDirectory, state: progress.State, row: progress.RegionProgress) -> Iterator[SourceText]:
    """Yield the sources of the kernels that were chosen for a region, in the plans or alone."""
    choices = [part.choice for plan in state.final for part in plan.parts if part.region == row.region]
    kernels = [one for one in (*choices, row.choice) if isinstance(one, Kernel)]
    for digest, kernel in {one.source: one for one in kernels}.items():
        yield SourceText(label=kernel.candidate.label, digest=digest, text=source_text(run, digest))
