"""The verb `export`: a run's trials in a format that other tools read, as a new folder."""

from __future__ import annotations

import difflib
import os
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from agentcompile import __version__
from agentcompile.checkpoint.names import is_here
from agentcompile.cli.looking import chosen
from agentcompile.cli.render import Screen
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.events import RunStarted, TrialFinished
from agentcompile.interchange import flashinfer, t4
from agentcompile.interchange.code import UnfitError
from agentcompile.interchange.trials import ExportedTrial, pretty
from agentcompile.ir.digest import SHORT
from agentcompile.ir.region import Region
from agentcompile.ir.scope import region_dtype
from agentcompile.ir.target import Target
from agentcompile.ir.template import Candidate
from agentcompile.options import Options, resolve
from agentcompile.runs import progress, session
from agentcompile.runs.folders import resuming
from agentcompile.runs.resumed import stored_options

if TYPE_CHECKING:
    from agentcompile.catalog import Catalog


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """What a run's events do not hold: its regions with their bodies, by id, and the templates."""

    regions: Mapping[str, Region]
    templates: Catalog


Find = Callable[[Options, progress.State], Kernels]
"""A function that finds the kernels of a run with these options; AgentCompileError for what the user can fix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedRun:
    """A run that has trials: those made on its machine, by region, regions in the order of their first trial."""

    path: Path
    options: Options
    state: progress.State
    target: Target
    tried: Mapping[str, Sequence[ExportedTrial]]
    left_out: Mapping[str, int]

    def name(self, region: str) -> str:
        """Return a region's name, or the start of its id when the run does not name it."""
        row = self.state.row(region)
        return row.name if row is not None else region[:SHORT]


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """Files by their path in the new folder, how many trials they hold, and why other trials were left out."""

    files: dict[str, bytes] = field(default_factory=dict)
    trials: int = 0
    left_out: Counter[str] = field(default_factory=Counter)


def export(
    flags: Mapping[str, object], name: str, format: str, out: Path, *, screen: Screen, find: Find | None = None
) -> int:
    """Write the trials of the run `name` (empty: the newest) to `out`: a folder, or a ``.json`` for T4 of one region.

    Trials that a format cannot hold are left out, counted and explained.

    Raises:
        AgentCompileError: a name, format or place is wrong or taken (usage); no trial can be exported, or the model is
            no longer the run's (drift); a file cannot be written (environment).
    """
    asked = resolve(flags).options
    if format not in ("t4", "flashinfer"):
        raise AgentCompileError(f"--format: {format!r} is not allowed", hint="allowed: t4, flashinfer")
    one_file = out.suffix == ".json"
    if one_file and format == "flashinfer":
        raise AgentCompileError(f"--out: {out}: a FlashInfer trace set is a folder", hint="name one without .json")
    _free(out)
    run = _read(_named(asked, name))
    if one_file and len(run.tried) > 1:
        text = f"--out: {out}: the run has trials of {len(run.tried)} regions, a T4 document each"
        raise AgentCompileError(text, hint="name a folder, without .json")
    if format == "t4":
        made = _t4(run)
    else:
        made = _flashinfer(run, (find or recaptured)(_moved(run, asked, flags), run.state))
    if not made.trials:
        text = f"{run.path}: none of its trials can be exported: {'; '.join(made.left_out)}"
        raise AgentCompileError(text, exit_code=ExitCode.DRIFT, hint="--format t4 needs neither model nor templates")
    if one_file:
        (document, _) = made.files.values()
        _write(out, document)
    else:
        _write(out, made.files)
    for why, count in made.left_out.items():
        screen.say(f"warning: trials left out: {count}: {why}")
    screen.text(f"{out}: {made.trials} trials of {len(run.tried)} regions, {1 if one_file else len(made.files)} files")
    screen.json(
        {
            "run": str(run.path),
            "format": format,
            "out": str(out),
            "trials": made.trials,
            "left_out": [{"trials": count, "reason": why} for why, count in made.left_out.items()],
        }
    )
    screen.next(f"agentcompile report {quote(str(run.path))}")
    return 0


def _named(options: Options, name: str) -> session.RunDirectory:
    if name not in ("", session.LATEST) and not session.named(options.runs, name).is_dir():
        known = [path.name for path in session.runs_in(options.runs)]
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]}? " if near else ""
        text = f"{options.runs / name}: no run is called {name!r}"
        raise AgentCompileError(text, hint=f"{hint}`agentcompile runs list` names the runs")
    return chosen(options, name)


def _read(directory: session.RunDirectory) -> ExportedRun:
    """Return a run with its trials on the machine that it was last on.

    A run that was continued on another machine also has trials of another target, which are left out.
    """  # noqa: DOC501
    records = [record for record, _ in directory.records()]
    state = progress.fold(record.event for record in records)
    target = next((r.event.target for r in reversed(records) if isinstance(r.event, RunStarted)), None)
    tried: dict[str, list[ExportedTrial]] = {}
    left_out = Counter[str]()
    for record in records:
        if not isinstance(record.event, TrialFinished) or target is None:
            continue
        trial = record.event.trial
        if trial.candidate.target != target.digest:
            left_out["they were made on another machine, before the run went on here"] += 1
        else:
            tried.setdefault(trial.candidate.region, []).append(ExportedTrial(trial=trial, at_ms=record.at_ms))
    if target is None or not tried:
        what = "; ".join(left_out) or "it has none yet"
        text = f"{directory.path}: no trials to export: {what}"
        raise AgentCompileError(text, hint=f"resume with: {resuming(directory.path)}")
    options = stored_options(directory)
    return ExportedRun(path=directory.path, options=options, state=state, target=target, tried=tried, left_out=left_out)


def _moved(run: ExportedRun, asked: Options, flags: Mapping[str, object]) -> Options:
    model = asked.model if flags.get("model") else run.options.model
    return replace(run.options, model=model, home=asked.home)


def _t4(run: ExportedRun) -> Export:
    files = {
        f"{run.name(region).replace('@', '-').replace('/', '-')}.json": pretty(
            t4.results(run.name(region), tried, run.target)
        )
        for region, tried in run.tried.items()
    }
    files["metadata.json"] = pretty(t4.metadata(run.target, run.state.version or __version__))
    return Export(files=files, trials=sum(map(len, run.tried.values())), left_out=Counter(run.left_out))


def _flashinfer(run: ExportedRun, kernels: Kernels) -> Export:
    """Return a trace set of each region that the model still has, with the candidates whose text is the same."""  # noqa: DOC501
    files: dict[str, bytes] = {}
    left_out, count = Counter(run.left_out), 0
    for id, tried in run.tried.items():
        region = kernels.regions.get(id)
        if region is None:
            left_out[f"{run.name(id)} is no region of the model under this version"] += len(tried)
            continue
        made: dict[str, flashinfer.KernelTexts] = {}
        kept: list[ExportedTrial] = []
        for one in tried:
            try:
                candidate = one.trial.candidate
                if candidate.id not in made:
                    made[candidate.id] = _made(region, candidate, kernels, run.target)
                if made[candidate.id].source.digest != one.trial.source:
                    raise UnfitError(f"{candidate.template} gives other program text under this version")
                kept.append(one)
            except UnfitError as why:
                left_out[str(why)] += 1
        try:
            if kept:
                files |= flashinfer.dataset(region, kept, made, run.target, Path(run.state.model).name)
                count += len(kept)
        except UnfitError as why:
            left_out[f"{region.name}: {why}"] += len(kept)
    return Export(files=files, trials=count, left_out=left_out)


def _made(region: Region, candidate: Candidate, kernels: Kernels, target: Target) -> flashinfer.KernelTexts:
    from agentcompile.materialize import specialise

    template = kernels.templates.find(candidate.template, region_dtype(region))
    if template is None:
        raise UnfitError(f"there is no template {candidate.template} here")
    if template.digest != candidate.template_digest:
        raise UnfitError(f"the template {candidate.template} has changed since")
    if template.language == "library":
        raise UnfitError("a library call has no program text")
    return flashinfer.KernelTexts(template=template, source=specialise(template, region, candidate.params, target))


def recaptured(options: Options, state: progress.State) -> Kernels:
    """Partition the run's graphs again; graphs are read from the store, or captured again where it lacks them.

    Raises:
        AgentCompileError: the checkpoint is not there (usage), or it gives other graphs than the run's (drift).
    """
    if not is_here(options.model):
        text = f"{options.model}: the run's checkpoint is not here, and the reference code is made from its graph"
        raise AgentCompileError(text, hint="give its directory with --model; --format t4 needs none")
    from agentcompile.capture.cached import load_model
    from agentcompile.checkpoint.locate import find_model
    from agentcompile.ir.region import Regime
    from agentcompile.regions.partition import partition
    from agentcompile.system.store import Store
    from agentcompile.tuning.partitions import graph_of, regimes
    from agentcompile.tuning.prepared import templates_for

    assert state.target is not None, "a run that has trials has a target"
    checkpoint = find_model(options.model, options.cache)
    captured = load_model(checkpoint, options.context, Store(options.store), options.cache / "weights.json").captured
    here = {graph.phase: graph.digest() for graph in (captured.decode, captured.prefill)}
    for told in state.graphs:
        if here[told.phase] != told.digest:
            both = f"{here[told.phase][:SHORT]}, the run's {told.digest[:SHORT]}"
            hint = "give the run's checkpoint with --model, under the versions that it ran with; --format t4 needs none"
            text = f"{checkpoint}: its {told.phase} graph is {both}"
            raise AgentCompileError(text, exit_code=ExitCode.DRIFT, hint=hint)
    context, kind = captured.info.context, state.target.kind
    regions: dict[str, Region] = {}
    for regime in (*regimes(context, kind, options.batch), Regime(phase="prefill", context=(1, context))):
        graph, tokens = graph_of(captured, regime, kind)
        regions |= {region.id: region for region in partition(graph, regime, tokens=tokens).regions}
    return Kernels(regions=regions, templates=templates_for(options))


def _free(out: Path) -> None:
    """Refuse a place that is taken, because export never changes what is there."""  # noqa: DOC501
    try:
        if out.exists() and not (out.is_dir() and out.suffix != ".json" and not any(out.iterdir())):
            raise AgentCompileError(f"--out: {out}: exists already", hint="name a folder that is not there yet")
    except OSError as error:
        raise _unwritable(out, error) from error


def _write(out: Path, content: bytes | Mapping[str, bytes]) -> None:
    out = out.absolute()
    part = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        try:
            for name, data in {"": content}.items() if isinstance(content, bytes) else content.items():
                file = part / name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(data)
            part.rename(out)
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            part.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise _unwritable(out, error) from error


def _unwritable(out: Path, error: OSError) -> AgentCompileError:
    text = f"--out: {out}: cannot be written: {error.strerror or error}"
    hint = "name a place that can be written, on a disk with free space"
    return AgentCompileError(text, exit_code=ExitCode.ENVIRONMENT, hint=hint)
