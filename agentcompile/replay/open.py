"""A lock with its model: found, compared with this machine, its plans lowered to programs; nothing is built."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from agentcompile import catalog
from agentcompile.capture import Captured
from agentcompile.capture.cached import Model, load_model
from agentcompile.checkpoint.convert import receipt_of
from agentcompile.checkpoint.names import model_of_lock
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.evaluation.jobs import EvaluationJob
from agentcompile.evaluation.machine import Machine, residency, this_machine
from agentcompile.evaluation.step_clock import policy_digest
from agentcompile.events import DriftFound, Emit, Warned, silent
from agentcompile.ir.graph import Graph
from agentcompile.ir.program import CHUNK, NativeCall, Program
from agentcompile.ir.region import Regime
from agentcompile.ir.target import Target
from agentcompile.ir.trial import Part
from agentcompile.lockfile.drift import Drift, ModelFacts, difference, drift
from agentcompile.lockfile.files import read_lock
from agentcompile.lockfile.order import ordered, regime_of
from agentcompile.lockfile.schema import Lock, LockPlan
from agentcompile.options import Options
from agentcompile.planning.chunks import Chunk, Chunks, capacity, usual
from agentcompile.regions.downsets import CoverError
from agentcompile.regions.partition import Partition, partition
from agentcompile.regions.schedule import ScheduledSite as Placed
from agentcompile.regions.schedule import schedule
from agentcompile.replay.pinned import Pins, check_layouts, check_ports
from agentcompile.replay.sources import LockSources
from agentcompile.runs.checkpoints import checkpoint_of as found
from agentcompile.runs.stages import stage
from agentcompile.runtime.lower import lower
from agentcompile.tuning.partitions import graph_of
from agentcompile.tuning.prepared import templates_for


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedLock:
    """A lock with its model, compared with this machine; programs and the sources that they call."""

    lock: Lock
    here: Machine
    model: Model
    decode: tuple[tuple[Regime, Program], ...]
    """Decode programs by regime, in the order of `partitions.regimes`: batch 1 by context, then larger batches."""
    prefill: Program
    """The prefill program: for up to `chunk` tokens on a CPU, on a GPU for the number that the plan was made at."""
    chunks: Chunks
    """The prefill plan at any chunk length."""
    jobs: tuple[EvaluationJob, ...]
    """Every kernel of the lock, once."""
    carried: tuple[EvaluationJob, ...] = ()
    """On a CPU, the kernels of chunks that are longer than those that the lock's kernels are made for."""
    steps_up_to: int = 0
    """The most tokens of a prompt that run through decode steps, as no more of it are left."""
    chunk: int = 0
    """On a CPU, the tokens of the chunks in which prompts run."""

    @property
    def capacity(self) -> int:
        """Tokens of the longest chunk of a prompt."""
        return capacity(self.model.captured)

    @property
    def called(self) -> tuple[EvaluationJob, ...]:
        """The kernels that the programs call, each once."""
        if not self.carried:
            return self.jobs
        wanted = {call.source for program in self.programs for call in program.calls if isinstance(call, NativeCall)}
        every = {job.source.digest: job for job in (*self.jobs, *self.carried)}
        return tuple(job for digest, job in every.items() if digest in wanted or job.source.language == "library")

    @property
    def alone(self) -> tuple[tuple[Regime, Program], ...]:
        """Decode programs of batch 1, by context."""
        return tuple((regime, program) for regime, program in self.decode if regime.batch == 1)

    @property
    def programs(self) -> tuple[Program, ...]:
        """All programs: decode, then prefill."""
        return (*(program for _, program in self.decode), self.prefill)


def open_lock(path: Path, options: Options, emit: Emit = silent, *, locked: bool = False) -> OpenedLock:
    """Read a lock, find its model, compare both with this machine, and lower its plans.

    The lock's own sources and templates are preferred to those here. They are no drift, even with `locked`, because
    they have the digests that the lock pins.
    """
    lock = read_lock(path)
    here = this_machine(options, kind=lock.target.kind)
    kept = LockSources.of(path, here.store)
    checkpoint = _checkpoint(path, lock, options, emit)
    with stage(emit, "capture"):
        model = load_model(checkpoint, lock.model.context, here.store, here.hashes)
    opened = opened_with(path, lock, here, model, templates_for(options, emit), kept, emit, locked=locked)
    kept.keep(opened.jobs)
    return opened


Cuts = Callable[[Captured, Regime, str], tuple[Graph, Partition]]
"""A function that returns the graph of a regime on a kind of device, and its partition into regions."""


def cuts_of(captured: Captured, regime: Regime, kind: str) -> tuple[Graph, Partition]:
    """Partition the graph of a regime, without a cache."""
    graph, tokens = graph_of(captured, regime, kind)
    return graph, partition(graph, regime, tokens=tokens)


def opened_with(
    path: Path,
    lock: Lock,
    here: Machine,
    model: Model,
    templates: catalog.Catalog,
    kept: LockSources,
    emit: Emit = silent,
    *,
    locked: bool = False,
    cuts: Cuts = cuts_of,
) -> OpenedLock:
    """Compare a lock with this machine, and lower its plans once everything that it names is found."""
    captured = model.captured
    found = _compared(lock, here.target, model)
    _report(path, [row for row in found if row.grade == "refuse"], emit, locked)
    # A kernel's workspaces are sized for the threads that it was compiled for: validate and run it with just those.
    here = replace(here, target=replace(here.target, threads=lock.target.threads))
    check_layouts(path, lock, (captured.decode, captured.prefill))
    pins = Pins(path=path, lock=lock, templates=templates, kept=kept)
    made = [_program(pins, plan, captured, cuts) for plan in ordered(path, lock)]
    _report(path, [*found, *pins.drift.values()], emit, locked)
    if pins.own:
        emit(
            Warned(text=f"Runs the lock's own sources; the templates here have changed: {', '.join(sorted(pins.own))}")
        )
    *decode, (prefill, cut, parts) = made
    chunks = Chunks(
        graph=captured.prefill,
        cut=cut,
        parts=parts,
        templates=pins.used,
        target=lock.target.target(),
        layouts=tuple(sorted(lock.layouts.items())),
        pinned={
            (job.candidate.region, job.candidate.template_digest, job.candidate.params): job.source
            for job in pins.jobs.values()
        },
    )
    plan = next(plan for plan in lock.plan if plan.phase == "prefill")
    longer = _longer(path, plan, chunks, capacity(captured))
    return OpenedLock(
        lock=lock,
        here=here,
        model=model,
        decode=tuple((found.regime, program) for program, found, _ in decode),
        prefill=prefill if longer is None else longer.program,
        chunks=chunks,
        jobs=tuple(pins.jobs.values()),
        carried=() if longer is None else longer.jobs,
        steps_up_to=plan.steps_up_to,
        chunk=plan.chunk or usual(captured),
    )


def checkpoint_of(path: Path, options: Options) -> Path:
    """Return the checkpoint directory of a lock: the one that the options name, else where the lock records it."""
    return _checkpoint(path, read_lock(path), options, silent)


def _checkpoint(path: Path, lock: Lock, options: Options, emit: Emit) -> Path:
    name = model_of_lock(options.model, lock.model.location, path, lock.model.config)
    return found(name, options.cache, emit)


def _compared(lock: Lock, target: Target, model: Model) -> tuple[Drift, ...]:
    captured = model.captured
    facts = ModelFacts(
        config=captured.info.config_digest,
        graphs={graph.phase: graph.digest() for graph in (captured.decode, captured.prefill)},
        weights=captured.info.weights_digest,
        gguf=gguf.sha256 if (gguf := receipt_of(captured.checkpoint)) is not None else "",
    )
    policy = policy_digest(residency(captured.decode, lock.target.target()))
    return drift(lock, target, facts, policy)


def _report(path: Path, found: Sequence[Drift], emit: Emit, locked: bool) -> None:
    for row in found:
        emit(DriftFound(field=row.field, locked=row.locked, here=row.here, grade=row.grade, remedy=row.remedy))
    fatal = [row for row in found if locked or row.grade == "refuse"]
    if fatal:
        first = fatal[0]
        more = f" (and {len(fatal) - 1} more fields)" if len(fatal) > 1 else ""
        text = f"{path}: {difference(first.field, first.locked, first.here)}{more}"
        raise AgentCompileError(text, exit_code=ExitCode.DRIFT, hint=first.remedy)


def _program(pins: Pins, plan: LockPlan, captured: Captured, cuts: Cuts) -> tuple[Program, Partition, tuple[Part, ...]]:
    graph, cut = cuts(captured, regime_of(plan), pins.lock.target.kind)
    regions = {region.id: region for region in cut.regions}
    parts = []
    for choice in plan.choices:
        if choice.region not in regions:
            text = f"{pins.path}: plan.choices: the model has no region {choice.name[:100]}"
            raise AgentCompileError(text, exit_code=ExitCode.DRIFT, hint="compile again with this version")
        region = regions[choice.region]
        parts.append(Part(region=region.id, choice=pins.choice(choice, region), sites=choice.at))
    steps = _schedule(pins.path, graph, cut, parts)
    check_ports(pins.path, pins.lock, graph, steps, pins.used)
    sources = {digest: job.source for digest, job in pins.jobs.items()}
    return lower(graph, steps, sources, pins.lock.layouts), cut, tuple(parts)


def _schedule(path: Path, graph: Graph, cut: Partition, parts: Sequence[Part]) -> Sequence[Placed]:
    try:
        whole = [part if part.sites else _everywhere(cut, part) for part in parts]
        return schedule(graph, cut, whole)
    except CoverError as error:
        text = f"{path}: plan: {error}"
        raise AgentCompileError(text, exit_code=ExitCode.DRIFT, hint="compile again with this version") from error


def _longer(path: Path, plan: LockPlan, chunks: Chunks, most: int) -> Chunk | None:
    """Return the prefill plan for chunks that are longer than those that its kernels are made for; None for others.

    Raises:
        AgentCompileError: the model has no chunks of more than `most` tokens, and the plan's have more (drift).
    """
    if plan.chunk > most:
        text = f"{path}: plan: chunk: {plan.chunk} tokens, and a chunk of this model has at most {most}"
        raise AgentCompileError(text, exit_code=ExitCode.DRIFT, hint="compile again with this version")
    return chunks.any_up_to(plan.chunk) if plan.chunk > CHUNK else None


def _everywhere(cut: Partition, part: Part) -> Part:
    return Part(region=part.region, choice=part.choice, sites=tuple(range(len(cut.region(part.region).sites))))
