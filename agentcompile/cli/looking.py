"""The verbs `explain`, `runs list`, `status` and `rm`, `cache` and `config show`: what is recorded, and where."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from shlex import quote

from agentcompile.agents import sessions
from agentcompile.agents.folder import SETTINGS, SessionFolder, sessions_in
from agentcompile.agents.journal import attempts_of
from agentcompile.build import resources_at
from agentcompile.checkpoint.convert import FOLDER, prune
from agentcompile.cli import refine_steering
from agentcompile.cli.advising import consulted, said
from agentcompile.cli.compiling import show
from agentcompile.cli.render import Screen
from agentcompile.control.review import open_items
from agentcompile.errors import AgentCompileError
from agentcompile.ir.codec import encode
from agentcompile.ir.digest import Json
from agentcompile.ir.resources import Resources
from agentcompile.ir.template import Candidate
from agentcompile.ir.trial import Comparison, Fallback, Incorrect, Kernel, Measured, Trial, interval, reason
from agentcompile.materialize.specialise import FLAGS
from agentcompile.options import Options, resolve
from agentcompile.refine.provenance import Provenance, provenance_of
from agentcompile.runs import progress, session
from agentcompile.runs.folders import resuming, started
from agentcompile.runs.losses import why_lost
from agentcompile.runs.outlook import budgeted, candidates_of
from agentcompile.runs.status import status_of
from agentcompile.runs.tables import Table, amount, duration, measured, ratio_cell, stage_name, state_json
from agentcompile.system.store import Store

_COMPARED: Mapping[Comparison, str] = {
    "FASTER": "faster than",
    "SLOWER": "slower than",
    "SAME": "no faster and no slower than",
    "INCONCLUSIVE": "inconclusive vs",
}
_BY_USER = {"approve": "approved by user", "reject": "rejected by user", "override": "overridden by user"}


def explain(flags: Mapping[str, object], region: str, *, screen: Screen) -> int:
    """Show why a region's kernel was chosen: every candidate's findings, errors and times, from a run's events.

    Raises:
        AgentCompileError: there is no run, or it has no such region (usage).
    """
    options = resolve(flags).options
    run = _run(options)
    state, folders, written = run.state(), _template_folders(run, options), dict[str, Json]()
    reports, lost = resources_of(state, options), dict[str, Json]()
    found = [row for row in state.rows if row.name == region or row.kind == region or row.region.startswith(region)]
    if not found:
        known = ", ".join(row.name for row in state.rows) or "none"
        raise AgentCompileError(f"{run.path}: no region is called {region!r}", hint=f"its regions: {known}")
    for row in found:
        trials = sorted((t for t in state.trials if t.candidate.region == row.region), key=fastest_first)
        screen.text(
            f"{row.name}: {row.sites} occurrences, {row.share:.1%} of the step, roofline {duration(row.floor_ns)}"
        )
        screen.text(why(row, state))
        if isinstance(row.choice, Kernel) and (author := _author(row.choice.candidate, folders)) is not None:
            screen.text(author.text)
            written[row.choice.candidate.template] = encode(author)
        if row.advice is not None:
            said(row, row.advice, screen)
        consulted(row, screen)
        for one in row.memories:
            stale = ", with a text of the template that changed since" if one.stale else ""
            speed = f" {one.speedup:.2f}×" if one.speedup else ""
            screen.text(f"on a like region ({one.region[:6]}) {one.label} was {one.verdict}{speed}{stale}")
        for missed in state.unadvised if row.advice is None else ():
            if row.region in missed.regions:
                screen.text(f"no advice: {missed.reason}")
        if (decision := state.decisions.get(row.region)) is not None:
            screen.text(f"{_BY_USER[decision.word]}{f': {decision.reason}' if decision.reason else ''}")
        screen.table(Table(heads=TRIAL_HEADS, rows=[trial_row(trial) for trial in trials], right=(2, 3, 4, 5)))
        for trial in newest(trials):
            if reason := why_lost(state, trial, reports):
                lost[trial.candidate.id] = reason
                screen.text(f"{trial.candidate.label}: {reason}")
    ids = {row.region for row in found}
    trials_json: list[Json] = [encode(trial) for trial in state.trials if trial.candidate.region in ids]
    told: dict[str, Json] = {"run": str(run.path), "regions": encode(tuple(found)), "trials": trials_json}
    screen.json({**told, "provenance": written, "lost": lost})
    screen.next(f"agentcompile report {quote(run.path.name)}")
    return 0


def newest(trials: Sequence[Trial]) -> list[Trial]:
    """Return one trial of each candidate, a confirming one where there is any, in their order."""
    return list({trial.candidate.id: trial for trial in reversed(trials)}.values())[::-1]


def resources_of(state: progress.State, options: Options) -> dict[str, tuple[Resources, ...]]:
    """Return what the assembler reported of the run's sources, as far as the store of this machine has it."""
    target = state.target
    if target is None or not options.store.is_dir():
        return {}
    store, flags = Store(options.store), FLAGS["cuda"](target)
    sources = {trial.source for trial in state.trials if trial.source}
    return {source: resources_at(source, flags, store, target.toolchain) for source in sources}


def _template_folders(run: session.RunDirectory, options: Options) -> list[Path]:
    """Return the folders of users' templates: those that the run named, and the one of this machine."""
    told = run.options()
    named = told.get("templates") if isinstance(told, dict) else None
    return [*(Path(str(one)) for one in (named if isinstance(named, list) else ())), options.written]


def _author(candidate: Candidate, folders: Sequence[Path]) -> Provenance | None:
    return provenance_of(candidate.template, candidate.template_digest, folders)


def why(row: progress.RegionProgress, state: progress.State) -> str:
    """Return what a region runs and why; the measurement is in the state of its run."""
    match row.choice:
        case Kernel(candidate=candidate, decided_by="adviser", reason=reason):
            return f"runs {candidate.label}: {reason}"
        case Kernel(candidate=candidate, speedup=speedup, decided_by=by, reason=reason) as kernel:
            found = measured(state, kernel)
            ratio = ratio_cell(found) if found is not None else f"{speedup:.2f}×"
            return f"runs {candidate.label}: {ratio} ({by}{': ' + reason if reason else ''})"
        case Fallback(reason=reason):
            return f"runs as captured, in PyTorch: {reason}"
        case None:
            return "not chosen yet"


def fastest_first(trial: Trial) -> tuple[int, float]:
    """Return what trials are sorted by: confirmed times, then others, then failures."""
    verdict = trial.verdict
    if isinstance(verdict, Measured):
        return (0 if trial.fidelity == "confirm" else 1, -verdict.measurement.log_ratio)
    return (2, 0.0)


TRIAL_HEADS = ("candidate", "verdict", "time", "ratio", "±", "error", "what was found")
"""The heads of a table of trials, of which `trial_row` makes the rows."""


def trial_row(trial: Trial) -> tuple[str, ...]:
    """Return a trial as cells: candidate, verdict, time, ratio, interval, error, what was found."""
    verdict = trial.verdict
    label = trial.candidate.label
    if isinstance(verdict, Measured):
        m = verdict.measurement
        name = f"measured ({trial.fidelity})"
        width = f"{m.half_width:.3f}" if interval(m.log_ratio, m.half_width) else "no interval"  # too few rounds
        ratio = (duration(m.median_ns), ratio_cell(m, decimals=3), width, f"{verdict.report.error_ratio:.2f}")
        baseline = "PyTorch" if m.baseline == "pytorch" else m.baseline
        busy = f", contended: {m.disturbed:.0%} of the rounds disturbed" if m.contended else ""
        return (label, name, *ratio, f"{_COMPARED[m.comparison]} {baseline}, n={m.rounds}{busy}")
    error = f"{verdict.report.error_ratio:.2f}" if isinstance(verdict, Incorrect) else "-"
    return (label, verdict.kind, "-", "-", "-", error, reason(verdict))


def chosen(options: Options, name: str) -> session.RunDirectory:
    """Return the run that is called `name`; when that is empty or "latest", that of the options or the newest."""
    return named(options, name) if name not in ("", session.LATEST) else _run(options)


def _run(options: Options) -> session.RunDirectory:
    if options.run_dir:
        return session.RunDirectory.open(session.standing(options.runs, options.run_dir))
    runs = session.runs_in(options.runs)
    if not runs:
        raise AgentCompileError(f"{options.runs}: no runs", hint="`agentcompile compile MODEL` makes one")
    return session.RunDirectory.open(runs[-1])


def named(options: Options, name: str) -> session.RunDirectory:
    """Return the run that is called `name`, or lies in that folder.

    Raises:
        AgentCompileError: there is none, or it is a session of `refine` (usage).
    """
    path = session.named(options.runs, name)
    if (path / SETTINGS).is_file():
        hint = f"agentcompile refine show {path}, or its other verbs: agentcompile refine --help"
        raise AgentCompileError(f"{path}: a session of `refine`, and no run of `compile`", hint=hint)
    return session.RunDirectory.open(path)


def runs_list(flags: Mapping[str, object], *, screen: Screen) -> int:
    """Show every run and every session of `refine`, in the order in which they were started."""
    runs = resolve(flags).options.runs
    rows: list[Json] = []
    table: list[tuple[str, ...]] = []
    compiles, sessions_here = session.runs_in(runs), sessions_in(runs)
    for path in sorted((*compiles, *sessions_here), key=started):
        if path in sessions_here:
            row = _session_row(path)
            rows.append(row)
            said = row.get("error", row["model"])
            table.append((path.name, f"{row['status']} (refine)", str(row.get("attempts", "-")), str(said)))
            continue
        try:
            run = session.RunDirectory.open(path)
            state = run.state()
        except AgentCompileError as error:  # one run of another version does not hide the others
            table.append((path.name, "unreadable", "-", f"{error.message}; {error.hint}"))
            rows.append({"path": str(path), "status": "unreadable", "error": error.message, "hint": error.hint})
            continue
        status = status_of(state, alive=run.alive())
        table.append((path.name, status, str(state.counts.total), state.model))
        rows.append({"path": str(path), "status": status, "trials": state.counts.total, "model": state.model})
    screen.table(Table(heads=("run", "status", "trials", "model"), rows=table, right=(2,)))
    screen.json(rows)
    screen.next(f"agentcompile runs status {quote(compiles[-1].name)}" if compiles else "agentcompile compile MODEL")
    return 0


def _session_row(path: Path) -> dict[str, Json]:
    """Return what is known about a session of `refine`."""
    try:
        folder = SessionFolder.open(path)
        options, asked = folder.settings()
        status, attempts = sessions.status_of(folder), attempts_of(folder.entries())
    except AgentCompileError as error:
        return {"path": str(path), "status": "unreadable", "model": "", "error": error.message, "hint": error.hint}
    model = str(options.get("model", "")) if isinstance(options, dict) else ""
    about: dict[str, Json] = {"region": asked.region, "attempts": attempts}
    return {"path": str(path), "status": status, "model": model, **about}


def runs_status(flags: Mapping[str, object], name: str, *, screen: Screen, every: bool = False) -> int:
    """Show one run: its progress, its regions, its plans."""
    options = resolve(flags).options
    if name and (session.named(options.runs, name) / SETTINGS).is_file():
        return refine_steering.show(flags, name, node=None, screen=screen)
    run = chosen(options, name)
    state, alive = run.state(), run.alive()
    status = status_of(state, alive=alive)
    stage = f", {stage_name(state.stage)}" if state.stage else ""
    tried = budgeted(candidates_of(state), state.budget_trials)
    screen.text(f"{run.path}: {status}{stage}, {tried}, {state.counts.total} trials")
    if state.ui_hz:
        screen.text(f"a screen followed it, drawn at most {state.ui_hz:g} times a second")
    if state.failure:
        screen.text(f"{'stopped' if status == 'stopped' else 'failed'}: {state.failure.message}")
    if state.status == "review":
        screen.text(f"{len(open_items(state))} regions wait for review")
    show(state, screen, every=every)
    told: dict[str, Json] = {"run": str(run.path), "alive": alive, "candidates": candidates_of(state)}
    screen.json({**state_json(state, alive=alive), **told})
    screen.next(next_for(run, state))
    return 0


def next_for(run: session.RunDirectory, state: progress.State) -> str:
    """Return the command that follows on a run as it is."""
    place = quote(str(run.path))
    match status_of(state, alive=run.alive()):
        case "running":
            return f"agentcompile watch {place}"
        case "paused":
            return f"agentcompile decide {place} --continue"
        case "waiting for review" if open_items(state):
            return f"agentcompile decide {place}"
        case "done":
            return f"agentcompile report {place}"
        case _:
            return resuming(run.path)


def runs_remove(
    flags: Mapping[str, object], names: Sequence[str], *, sure: bool, screen: Screen, ask: Callable[[str], str] = input
) -> int:
    """Delete runs, and sessions of `refine`; on a terminal it asks first, elsewhere it must be `sure`.

    Raises:
        AgentCompileError: a name is of no run, a process works on it, or nobody confirmed it (usage); a folder cannot
            be deleted (environment).
    """  # noqa: DOC501
    options = resolve(flags).options
    found = [_removable(options, name) for name in dict.fromkeys(names)]
    if not sure:
        if not sys.stdin.isatty():
            raise AgentCompileError("runs rm: nothing was deleted", hint="--yes confirms it where nobody can be asked")
        for path in found:
            screen.say(f"{path}: {amount(_bytes(path))}")
        if ask(f"Delete {len(found)} {'run' if len(found) == 1 else 'runs'}? [y/N] ").strip().lower() not in (
            "y",
            "yes",
        ):
            screen.text("nothing was deleted")
            return 0
    freed = 0
    for path in found:
        size = _bytes(path)
        try:
            shutil.rmtree(path)
        except OSError as error:
            raise session.environment_error(error, path) from error
        freed += size
        screen.text(f"{path}: deleted, {amount(size)}")
    screen.json({"deleted": [str(path) for path in found], "bytes": freed})
    screen.next("agentcompile runs list")
    return 0


def _removable(options: Options, name: str) -> Path:
    """Return the folder of a run or of a session that no process works on."""  # noqa: DOC501
    path = session.named(options.runs, name)
    if (path / SETTINGS).is_file():
        run = SessionFolder.open(path).run
    else:
        run = chosen(options, name)
    if run.alive():
        hint = f"stop it first: agentcompile runs stop {run.path}"
        raise AgentCompileError(f"{run.path}: process {run.holder()} works on this run", hint=hint)
    return run.path


def cache_list(flags: Mapping[str, object], *, screen: Screen) -> int:
    """Show the sizes of the store, converted checkpoints, presets, the measurement database and the runs."""
    options = resolve(flags).options
    converted, presets = options.cache / FOLDER, options.cache / "presets"
    parts = (
        *(("store", options.store), ("checkpoints", converted), ("presets", presets)),
        *(("history", options.history), ("runs", options.runs)),
    )
    sizes = [(name, path, _bytes(path)) for name, path in parts]
    rows = [(name, amount(count), str(path)) for name, path, count in sizes]
    screen.table(Table(heads=("what", "size", "where"), rows=rows, right=(1,)))
    screen.json([{"what": name, "bytes": count, "path": str(path)} for name, path, count in sizes])
    screen.next("agentcompile cache prune --keep-mb N")
    return 0


def cache_prune(flags: Mapping[str, object], *, keep_mb: int, screen: Screen) -> int:
    """Delete converted checkpoints, then files of the store, until at most `keep_mb` megabytes of both remain.

    Those that were not used for longest go first; converting a file again takes seconds, building kernels minutes.
    """
    options, keep = resolve(flags).options, keep_mb * 1_000_000
    converted = options.cache / FOLDER
    held = Store(options.store).size_bytes() if options.store.is_dir() else 0
    freed = {str(converted): prune(options.cache, max(0, keep - held))}
    left = keep - _bytes(converted)
    freed[str(options.store)] = Store(options.store).prune(max(0, left)) if options.store.is_dir() else 0
    for path, count in freed.items():
        screen.text(f"{path}: freed {amount(count)}")
    total = sum(freed.values())
    screen.json({"path": str(options.store), "freed_bytes": total})
    screen.next("agentcompile cache ls")
    return 0


def _bytes(path: Path) -> int:
    if path.is_file():
        return path.stat().st_size
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) if path.is_dir() else 0


def config_show(flags: Mapping[str, object], *, screen: Screen) -> int:
    """Show every setting with its value and where that came from."""
    resolved = resolve(flags)
    values = encode(resolved.options)
    assert isinstance(values, dict)
    rows = [(name.replace("_", "-"), values[name], source) for name, source in resolved.sources]
    table = [(name, _shown(value), source) for name, value, source in rows]
    screen.table(Table(heads=("setting", "value", "from"), rows=table))
    screen.json({name: {"value": value, "from": source} for name, value, source in rows})
    screen.next("agentcompile compile MODEL, with --SETTING VALUE for one run")
    return 0


def _shown(value: Json) -> str:
    if isinstance(value, list):
        return " ".join(str(item) for item in value) or "-"
    return str(value) if value != "" else "-"
