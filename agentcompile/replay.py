"""From a lock to a model that runs: find, compare, rebuild, validate, bind. No adviser, no network, no timing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from agentcompile import catalog
from agentcompile.build import compile_executor
from agentcompile.captures import Model, load_model
from agentcompile.cuts import CHUNK, graph_of
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.events import DriftFound, Emit, silent
from agentcompile.ir.graph import Graph
from agentcompile.ir.program import Program
from agentcompile.ir.region import Regime, Region
from agentcompile.ir.target import Target
from agentcompile.ir.template import Candidate, Template
from agentcompile.ir.trial import BuildFailed, Choice, Fallback, Kernel, Part, reason
from agentcompile.judge import Job, Prepared
from agentcompile.layouts import LAYOUTS
from agentcompile.lockfile import Lock, LockChoice, LockPlan, ModelFacts, drift, ordered, read_lock, regime_of
from agentcompile.machine import Machine, judge_of, this_machine
from agentcompile.materialize import specialise
from agentcompile.models import find_model, model_of_lock
from agentcompile.notes import Notes
from agentcompile.options import Options, resolve
from agentcompile.proving import binaries as build
from agentcompile.regions.downsets import CoverError
from agentcompile.regions.kinds import facts as kinds
from agentcompile.regions.partition import Partition, partition
from agentcompile.regions.schedule import Step as Placed
from agentcompile.regions.schedule import schedule
from agentcompile.runtime.lower import lower
from agentcompile.stages import stage
from agentcompile.tune import accepted_key

if TYPE_CHECKING:
    from agentcompile.runtime.memory import Memory
    from agentcompile.runtime.model import CompiledModel, Decode, Prefill


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A lock with its model, compared with this machine; programs and the sources that they call."""

    lock: Lock
    here: Machine
    model: Model
    decode: tuple[tuple[Regime, Program], ...]
    """By regime, as `cuts.regimes` orders them: of one sequence by context, then larger batches."""
    prefill: Program
    jobs: tuple[Job, ...]
    """Every kernel of the lock, once."""

    @property
    def alone(self) -> tuple[tuple[Regime, Program], ...]:
        """Decode programs of one sequence, by context."""
        return tuple((regime, program) for regime, program in self.decode if regime.batch == 1)

    @property
    def programs(self) -> tuple[Program, ...]:
        """All of them."""
        return (*(program for _, program in self.decode), self.prefill)


def load(lock: str | Path, *, model: str | Path = "", options: Options | None = None) -> CompiledModel:
    """Load a lock for generation: `load("lock.toml").generate("def f(")`.

    `model` is the checkpoint, when it is not where the lock remembers it. Kernels that were not validated on this
    machine and toolchain before are validated now. Raises AgentCompileError for what the user can fix.
    """
    flags = {"model": str(model)} if model else {}
    settled = options or resolve(flags).options
    return replay_lock(Path(lock), settled)


def replay_lock(path: Path, options: Options, emit: Emit = silent, *, locked: bool = False) -> CompiledModel:
    """Rebuild and validate what `path` pins, and bind it; `locked` refuses any drift.

    Raises AgentCompileError: DRIFT when the lock does not hold here, ENVIRONMENT when a kernel does not build,
    CORRECTNESS when one fails.
    """
    opened = open_lock(path, options, emit, locked=locked)
    with stage(emit, "rebuild") as say:
        validated = _validate(opened, options)
        say(f"{len(opened.jobs)} kernels, {validated} validated now")
    with stage(emit, "load") as say:
        made = bind(opened)
        say(f"{opened.model.captured.info.name}: ready")
    return made


def open_lock(path: Path, options: Options, emit: Emit = silent, *, locked: bool = False) -> Opened:
    """Read a lock, find its model, compare both with what is here, and lower its plans."""
    lock = read_lock(path)
    here = this_machine(options, kind=lock.target.kind)
    checkpoint = _checkpoint(path, lock, options)
    with stage(emit, "capture"):
        model = load_model(checkpoint, lock.model.context, here.store, here.hashes)
    _compare(path, lock, here.target, model, emit, locked)
    templates = catalog.load(
        [catalog.default_root(), *(Path(folder) for folder in options.templates)], kinds=kinds(), layouts=LAYOUTS
    )
    jobs: dict[str, Job] = {}
    programs = [
        (regime_of(plan), _program(path, lock, plan, graph_of(model.captured, regime_of(plan)), templates, jobs))
        for plan in ordered(path, lock)
    ]
    *decode, (_, prefill) = programs
    return Opened(lock=lock, here=here, model=model, decode=tuple(decode), prefill=prefill, jobs=tuple(jobs.values()))


def checkpoint_of(path: Path, options: Options) -> Path:
    """The checkpoint directory of a lock: the one that was named, else where the lock remembers it."""
    return _checkpoint(path, read_lock(path), options)


def _checkpoint(path: Path, lock: Lock, options: Options) -> Path:
    name = model_of_lock(options.model, lock.model.location, path, lock.model.config)
    return find_model(name, options.cache)


def bind(opened: Opened) -> CompiledModel:
    """Bind the programs of an opened lock to memory."""
    from agentcompile.runtime.model import CompiledModel
    from agentcompile.runtime.text import Tokenizer

    here, captured = opened.here, opened.model.captured
    sources = {job.source.digest: job.source for job in opened.jobs if job.source.language != "library"}
    paths = {digest: Path(binary.path) for digest, binary in build(here, sources, sorted(sources)).items()}
    decode, prefill, memory = (_on_gpu if here.device != "cpu" else _on_cpu)(opened, paths)
    has_tokenizer = (captured.checkpoint / "tokenizer.json").is_file()
    tokenizer = Tokenizer(captured.checkpoint) if has_tokenizer else None
    return CompiledModel(captured.info, decode, prefill, memory, tokenizer=tokenizer, checkpoint=captured.checkpoint)


def _on_cpu(opened: Opened, binaries: Mapping[str, Path]) -> tuple[Decode, Prefill, Memory]:
    from agentcompile.checkpoint import Checkpoint
    from agentcompile.runtime.memory import Memory
    from agentcompile.runtime.native import Executor, Library
    from agentcompile.runtime.regimes import Regimes
    from agentcompile.runtime.step import Step

    here, captured = opened.here, opened.model.captured
    libraries = {digest: Library(path) for digest, path in binaries.items()}
    executor = Executor(compile_executor(here.store, toolchain=here.toolchain), opened.lock.target.threads)
    memory = Memory(opened.programs, Checkpoint.open(captured.checkpoint).tensor, captured.constants)
    steps = [(regime.context[1], Step(one, memory, executor, libraries)) for regime, one in opened.alone]
    prefill = Step(opened.prefill, memory, executor, libraries, capacity=_chunk(opened, CHUNK))
    return (steps[0][1] if len(steps) == 1 else Regimes(steps, memory)), prefill, memory


def _on_gpu(opened: Opened, binaries: Mapping[str, Path]) -> tuple[Decode, Prefill, Memory]:
    import torch

    from agentcompile.checkpoint import Checkpoint
    from agentcompile.runtime.device_decode import LENGTHS, DeviceDecode, DevicePrefill
    from agentcompile.runtime.device_errors import on_device
    from agentcompile.runtime.device_sampling import MAX_VOCAB, sampler_source
    from agentcompile.runtime.device_step import DeviceStep, advance_source, overlaps_launches
    from agentcompile.runtime.driver import Module
    from agentcompile.runtime.memory import Memory
    from agentcompile.runtime.regimes import Regimes

    here, captured, context = opened.here, opened.model.captured, opened.lock.model.context
    arch = here.target.arch
    overlap, own = overlaps_launches(arch), [advance_source(arch)]
    if captured.info.vocab <= MAX_VOCAB:
        first = opened.alone[0][1]
        logits = next(one for one in first.buffers if one.name == first.logits)
        own.append(sampler_source(captured.info.vocab, logits.dtype, arch))
    built = build(here, {source.digest: source for source in own}, [source.digest for source in own])
    with on_device(f"loading {captured.info.name} on {here.device}"):
        torch.cuda.set_device(here.device)
        runs = [Module(Path(built[source.digest].path)) for source in own]
        modules = {digest: Module(path) for digest, path in binaries.items()}
        memory = Memory(opened.programs, Checkpoint.open(captured.checkpoint).tensor, captured.constants, here.device)
        sampler = (own[1], runs[1]) if len(own) > 1 else None
        steps = []
        for regime, program in opened.alone:
            step = DeviceStep(program, memory, modules, overlap=overlap)
            made = DeviceDecode(step, memory, runs[0], sampler, context=context, overlap=overlap)
            steps.append((regime.context[1], made))
        decode = steps[0][1] if len(steps) == 1 else Regimes(steps, memory)
        prefill = DevicePrefill(opened.prefill, memory, decode, capacity=_chunk(opened, LENGTHS[-1]))
    return decode, prefill, memory


def _chunk(opened: Opened, most: int) -> int:
    """Tokens of a prefill chunk; one where the decoder could not be traced for any number of them."""
    symbolic = any("T" in value.shape for value in opened.model.captured.prefill.values)
    return min(most, opened.model.captured.info.context) if symbolic else 1


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
    path: Path, lock: Lock, plan: LockPlan, graph: Graph, templates: catalog.Catalog, jobs: dict[str, Job]
) -> Program:
    """Lower one plan of the lock; every kernel it names is added to `jobs` by source digest."""
    cut = partition(graph, regime_of(plan), tokens=CHUNK)
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
    return lower(graph, _schedule(path, graph, cut, parts), sources, lock.layouts)


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
        return Fallback(reason=choice.reason)
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
        decided_by="human" if choice.decided_by == "human" else "measured",
        reason=choice.reason,
    )


def _template(path: Path, choice: LockChoice, templates: catalog.Catalog) -> Template:
    try:
        return templates.get(choice.template)
    except AgentCompileError as error:
        text = f"{path}: {choice.name}: {error.message}"
        hint = "give its folder with --templates, or compile again"
        raise AgentCompileError(text, exit_code=ExitCode.DRIFT, hint=hint) from error


def _validate(opened: Opened, options: Options) -> int:
    """Validate every kernel that was not validated before with this compiler and under these tolerances."""
    notes = Notes(opened.here.store)
    fresh = [job for job in opened.jobs if notes.get(accepted_key(job, opened.here.target)) is None]
    if not fresh:
        return 0
    with judge_of(opened.here, options.seed) as judge:
        for job, result in judge.prepare(fresh, depth="accept"):
            if not isinstance(result, Prepared):
                text = f"{job.region.name}: {job.candidate.label}: {result.kind} here: {reason(result)}"
                hint = "compile again on this machine, which leaves such kernels out"
                code = ExitCode.ENVIRONMENT if isinstance(result, BuildFailed) else ExitCode.CORRECTNESS
                raise AgentCompileError(text, exit_code=code, hint=hint)
            notes.put(accepted_key(job, opened.here.target), 1)
    return len(fresh)
