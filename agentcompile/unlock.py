"""A lock with its model: found, compared with this machine, its plans lowered to programs. Nothing is built."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from agentcompile import catalog
from agentcompile.capture import Captured
from agentcompile.captures import Model, load_model
from agentcompile.chunks import Chunks, capacity
from agentcompile.cuts import graph_of
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.events import DriftFound, Emit, silent
from agentcompile.ir.graph import Graph
from agentcompile.ir.program import Program
from agentcompile.ir.region import Regime, Region
from agentcompile.ir.target import Target
from agentcompile.ir.template import Candidate, Template
from agentcompile.ir.trial import Choice, Fallback, Kernel, Part
from agentcompile.judge import Job
from agentcompile.layouts import LAYOUTS
from agentcompile.lockfile import Lock, LockChoice, LockPlan, ModelFacts, drift, ordered, read_lock, regime_of
from agentcompile.machine import Machine, this_machine
from agentcompile.materialize import specialise
from agentcompile.models import find_model, model_of_lock
from agentcompile.options import Options
from agentcompile.regions.downsets import CoverError
from agentcompile.regions.kinds import facts as kinds
from agentcompile.regions.partition import Partition, partition
from agentcompile.regions.schedule import Step as Placed
from agentcompile.regions.schedule import schedule
from agentcompile.runtime.lower import lower
from agentcompile.stages import stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A lock with its model, compared with this machine; programs and the sources that they call."""

    lock: Lock
    here: Machine
    model: Model
    decode: tuple[tuple[Regime, Program], ...]
    """By regime, as `cuts.regimes` orders them: of one sequence by context, then larger batches."""
    prefill: Program
    """Of any number of tokens; on a GPU of those that the plan was made at."""
    chunks: Chunks
    """The prefill plan at any length, on a GPU."""
    jobs: tuple[Job, ...]
    """Every kernel of the lock, once."""

    @property
    def capacity(self) -> int:
        """Tokens of the longest chunk of a prompt."""
        return capacity(self.model.captured)

    @property
    def alone(self) -> tuple[tuple[Regime, Program], ...]:
        """Decode programs of one sequence, by context."""
        return tuple((regime, program) for regime, program in self.decode if regime.batch == 1)

    @property
    def programs(self) -> tuple[Program, ...]:
        """All of them."""
        return (*(program for _, program in self.decode), self.prefill)


def open_lock(path: Path, options: Options, emit: Emit = silent, *, locked: bool = False) -> Opened:
    """Read a lock, find its model, compare both with what is here, and lower its plans."""
    lock = read_lock(path)
    here = this_machine(options, kind=lock.target.kind)
    checkpoint = _checkpoint(path, lock, options)
    with stage(emit, "capture"):
        model = load_model(checkpoint, lock.model.context, here.store, here.hashes)
    _compare(path, lock, here.target, model, emit, locked)
    # A kernel's workspaces are as many as the threads that it was made for: it is judged and run on just those.
    here = replace(here, target=replace(here.target, threads=lock.target.threads))
    templates = catalog.load(
        [catalog.default_root(), *(Path(folder) for folder in options.templates)], kinds=kinds(), layouts=LAYOUTS
    )
    jobs: dict[str, Job] = {}
    made = [_program(path, lock, plan, model.captured, templates, jobs) for plan in ordered(path, lock)]
    *decode, (prefill, cut, parts) = made
    chunks = Chunks(
        graph=model.captured.prefill,
        cut=cut,
        parts=parts,
        templates={template.id: template for template in templates.templates},
        target=lock.target.target(),
        layouts=tuple(sorted(lock.layouts.items())),
    )
    return Opened(
        lock=lock,
        here=here,
        model=model,
        decode=tuple((found.regime, program) for program, found, _ in decode),
        prefill=prefill,
        chunks=chunks,
        jobs=tuple(jobs.values()),
    )


def checkpoint_of(path: Path, options: Options) -> Path:
    """The checkpoint directory of a lock: the one that was named, else where the lock remembers it."""
    return _checkpoint(path, read_lock(path), options)


def _checkpoint(path: Path, lock: Lock, options: Options) -> Path:
    name = model_of_lock(options.model, lock.model.location, path, lock.model.config)
    return find_model(name, options.cache)


def _compare(path: Path, lock: Lock, target: Target, model: Model, emit: Emit, locked: bool) -> None:
    captured = model.captured
    facts = ModelFacts(
        config=captured.info.config_digest,
        graphs={graph.phase: graph.digest() for graph in (captured.decode, captured.prefill)},
        weights=captured.info.weights_digest,
    )
    found = drift(lock, target, facts)
    for row in found:
        emit(DriftFound(field=row.field, locked=row.locked, here=row.here, grade=row.grade, remedy=row.remedy))
    fatal = [row for row in found if locked or row.grade == "refuse"]
    if fatal:
        first = fatal[0]
        more = f" (and {len(fatal) - 1} more fields)" if len(fatal) > 1 else ""
        text = f"{path}: {first.field}: locked {first.locked}, here {first.here}{more}"
        raise AgentCompileError(text, exit_code=ExitCode.DRIFT, hint=first.remedy)


def _program(
    path: Path, lock: Lock, plan: LockPlan, captured: Captured, templates: catalog.Catalog, jobs: dict[str, Job]
) -> tuple[Program, Partition, tuple[Part, ...]]:
    """Lower one plan of the lock; every kernel it names is added to `jobs` by source digest."""
    graph, tokens = graph_of(captured, regime_of(plan), lock.target.kind)
    cut = partition(graph, regime_of(plan), tokens=tokens)
    regions = {region.id: region for region in cut.regions}
    parts = []
    for choice in plan.choices:
        if choice.region not in regions:
            text = f"{path}: plan.choices: the model has no region {choice.name}"
            raise AgentCompileError(text, exit_code=ExitCode.DRIFT, hint="compile again with this version")
        region = regions[choice.region]
        made = _choice(path, lock, choice, region, templates, jobs)
        parts.append(Part(region=region.id, choice=made, sites=choice.at))
    sources = {digest: job.source for digest, job in jobs.items()}
    return lower(graph, _schedule(path, graph, cut, parts), sources, lock.layouts), cut, tuple(parts)


def _schedule(path: Path, graph: Graph, cut: Partition, parts: Sequence[Part]) -> Sequence[Placed]:
    try:
        whole = [part if part.sites else _everywhere(cut, part) for part in parts]
        return schedule(graph, cut, whole)
    except CoverError as error:
        text = f"{path}: plan: {error}"
        raise AgentCompileError(text, exit_code=ExitCode.DRIFT, hint="compile again with this version") from error


def _everywhere(cut: Partition, part: Part) -> Part:
    return Part(region=part.region, choice=part.choice, sites=tuple(range(len(cut.region(part.region).sites))))


def _choice(
    path: Path, lock: Lock, choice: LockChoice, region: Region, templates: catalog.Catalog, jobs: dict[str, Job]
) -> Choice:
    if choice.use == "fallback":
        by: Literal["fallback", "human"] = "human" if choice.decided_by == "human" else "fallback"
        return Fallback(reason=choice.reason, decided_by=by, approval=choice.approval)
    template = _template(path, choice, templates)
    target = lock.target.target()
    params = tuple((param.name, choice.params[param.name]) for param in template.params if param.name in choice.params)
    source = specialise(template, region, params, target)
    if source.digest != choice.source:
        both = f"{source.digest[:12]}, locked {choice.source[:12]}"
        text = f"{path}: {choice.name}: {choice.template} now gives source {both}"
        raise AgentCompileError(text, exit_code=ExitCode.DRIFT, hint="compile again: the template has changed")
    candidate = Candidate(
        region=region.id,
        regime=region.regime,
        template=template.id,
        template_digest=template.digest,
        params=params,
        target=target.digest,
    )
    jobs[source.digest] = Job(candidate=candidate, region=region, template=template, source=source)
    return Kernel(
        candidate=candidate,
        source=source.digest,
        speedup=1.0,
        half_width=0.0,
        decided_by="measured" if choice.decided_by == "fallback" else choice.decided_by,
        reason=choice.reason,
        approval=choice.approval,
    )


def _template(path: Path, choice: LockChoice, templates: catalog.Catalog) -> Template:
    try:
        return templates.get(choice.template)
    except AgentCompileError as error:
        text = f"{path}: {choice.name}: {error.message}"
        hint = "give its folder with --templates, or compile again"
        raise AgentCompileError(text, exit_code=ExitCode.DRIFT, hint=hint) from error
