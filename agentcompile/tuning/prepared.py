"""The start of a search: a model cut into regions, whose spaces are bounded and advised."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import agentcompile
from agentcompile import catalog
from agentcompile.advice.advisers import adviser_of
from agentcompile.advice.configure import counsel_of, is_remote
from agentcompile.advice.counsel import Counsel, prompts_of
from agentcompile.build import resources_of
from agentcompile.capture.cached import Model, load_model
from agentcompile.evaluation.evaluator import WorkerEvaluator
from agentcompile.evaluation.machine import Machine, ceilings
from agentcompile.events import Emit, RunStarted, Warned, silent
from agentcompile.ir.advice import Advice, Question, Usage
from agentcompile.ir.search_events import RecalledPoint
from agentcompile.ir.target import Ceiling
from agentcompile.ir.template import Candidate, Source
from agentcompile.materialize import specialise
from agentcompile.ops.layouts import LAYOUTS
from agentcompile.options import Options
from agentcompile.regions.kinds import facts as kinds
from agentcompile.runs.checkpoints import checkpoint_of
from agentcompile.runs.stages import stage
from agentcompile.system.store import Store
from agentcompile.tuning.partitions import Cut, advise, bound, cut, question_of
from agentcompile.tuning.tasks import Consulting, TuneTask
from agentcompile.tuning.trial_database import TrialDatabase


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedModel:
    """A model cut into regions whose spaces are bounded and advised: all that a search starts from."""

    here: Machine
    model: Model
    ceiling: Ceiling
    decode: tuple[Cut, ...]
    """One cut for each regime: ranges of contexts of one sequence, shortest first, then larger batches."""
    prefill: Cut
    tasks: tuple[TuneTask, ...]
    prompt_tasks: tuple[TuneTask, ...]
    """The tasks of the prefill."""


def templates_for(options: Options, emit: Emit = silent) -> catalog.Catalog:
    """Return the templates of the package, of the folders that the options name, and those written on this machine.

    A wrong template of the package is an error. In the other folders it is left out with a warning, so that one that a
    model or a person wrote badly does not stop a compile.
    """
    named = [Path(folder) for folder in options.templates]
    if options.user_templates and options.written.is_dir():
        named.append(options.written)
    own = list({folder.resolve(): folder for folder in named}.values())
    found = catalog.load([catalog.default_root(), *own], kinds=kinds(), layouts=LAYOUTS, lenient=own)
    for one in found.quarantined:
        emit(Warned(text=one.text))
    return found


def started(options: Options, here: Machine) -> RunStarted:
    """Return the event with which a run begins."""
    return RunStarted(
        model=options.model,
        target=here.target,
        options=options.digest,
        version=agentcompile.__version__,
        budget_trials=options.budget,
    )


def prepare(options: Options, here: Machine, evaluator: WorkerEvaluator, emit: Emit) -> PreparedModel:
    """Capture a model's graphs, cut them into regions, bound the space of each, and ask the adviser about it."""
    adviser = adviser_of(options.advisor)
    templates = templates_for(options, emit)
    checkpoint = checkpoint_of(options.model, options.cache, emit)
    with stage(emit, "capture") as say:
        model = load_model(checkpoint, options.context, here.store, here.hashes)
        info = model.captured.info
        say(f"{info.architecture}, {info.layers} layers, {info.dtype}")
    with stage(emit, "probe") as say:
        ceiling = ceilings(here, evaluator)
        say(f"reads {ceiling.dram_bytes_per_s / 1e9:.1f} GB/s, {ceiling.cache_bytes_per_s / 1e9:.1f} GB/s from cache")
    with stage(emit, "partition") as say:
        decode, prefill = cut(model.captured, here.target, ceiling, emit, options.batch)
        regions = {id for one in decode for id in one.regions}
        say(f"{len(regions)} regions, weights in {prefill.residency}")
    with stage(emit, "space") as say:
        spaces = bound(decode, templates, here.target, emit)
        chunks = bound([prefill], templates, here.target, emit)
        say(f"{sum(len(space) for space in (*spaces, *chunks))} points in {len(spaces) + len(chunks)} regions")
    with stage(emit, "advise") as say:
        tasks, prompts = (advise(some, adviser, ceiling, prefill.residency, emit) for some in (spaces, chunks))
        say(f"heuristic, until {adviser.label} answers" if is_remote(options) else adviser.label)
    return PreparedModel(
        here=here,
        model=model,
        ceiling=ceiling,
        decode=decode,
        prefill=prefill,
        tasks=tasks,
        prompt_tasks=prompts,
    )


def counsel(
    prepared: PreparedModel,
    options: Options,
    emit: Emit,
    spent: Usage,
    memories: Mapping[str, tuple[RecalledPoint, ...]],
    past: TrialDatabase | None,
) -> Counsel:
    """Return the source of advice about each region; a remote model, if one is configured, is asked in the background.

    The request tells the model the trials that `past` has of each region at this moment, and the `memories` of like
    regions, by region id. Without `past` there is nothing left to order: no model is asked, and earlier answers hold.

    The trials are part of the request's text and of the exchange's digest, but not of the key that an answer is
    recorded under (`PromptRegion.key`): they depend on where a process was killed and on what the machine ran before,
    and an answer that orders the same candidates stays applicable whatever else is known. So a first compile asks as if
    nothing had been tried; a resume reuses earlier answers and asks about the other regions with all trials of the run;
    a replay finds the same exchanges whatever its machine has tried, asks no model, and looks no trials up.
    """
    first = questions(prepared)
    found = counsel_of(options, first, emit, spent, asks=past is not None)
    if is_remote(options):
        asked = [question for question, _ in first.values()]
        if found.asks and past is not None:
            asked = [informed(question, past, prepared.here.store) for question in asked]
            asked = [replace(one, memories=memories.get(one.region.id, ())) for one in asked]
        found.begin(prompts_of(asked, hot(prepared)))
    return found


def consulting(prepared: PreparedModel, counsels: Counsel, past: TrialDatabase, tries: int = 0) -> Consulting | None:
    """Return what asks a model, in the middle of a search, what to try next; None where nobody answers.

    `tries` is how many candidates a round of the search tries.
    """
    if not counsels.consultable:
        return None

    def consult(task: TuneTask, focus: tuple[str, ...], number: int, asks: bool) -> tuple[tuple[str, ...], ...] | None:
        question = informed(question_of(task.space, prepared.ceiling, task.residency), past, prepared.here.store)
        question = replace(question, focus=focus, round=number, tries=tries if number else 0)
        advice = counsels.consult(question, asks=asks)
        return None if advice is None else tuple(sequence.points for sequence in advice.sequences)

    return consult


def informed(question: Question, past: TrialDatabase, store: Store | None = None) -> Question:
    """Return `question` with the trials of its candidates that `past` knows.

    With `store` it also holds the resources that the assembler reported when it built them there.
    """
    templates = {template.id: template for template in question.templates}

    def source_of(candidate: Candidate) -> Source:
        template = templates[candidate.template]
        return specialise(template, question.region, candidate.params, question.target)

    history = past.shown_to_adviser(question.candidates, lambda candidate: source_of(candidate).digest)
    if store is None:
        return replace(question, history=history)
    tried = {trial.candidate.id: trial.candidate for trial in history}
    reports = (
        (id, resources_of(source_of(one), store, question.target.toolchain))
        for id, one in tried.items()
        if templates[one.template].language == "cuda"
    )
    return replace(question, history=history, resources=tuple((id, found) for id, found in reports if found))


def questions(prepared: PreparedModel) -> dict[str, tuple[Question, Advice]]:
    """Return by region id the question about it, and the advice of the first adviser."""
    tasks = [*prepared.tasks, *prepared.prompt_tasks]
    return {one.region.id: (question_of(one.space, prepared.ceiling, one.residency), one.advice) for one in tasks}


def hot(prepared: PreparedModel) -> set[str]:
    """Return the ids of the decode regions in the cheapest cover by roofline floors."""
    return {row.region.id for cut in prepared.decode for row in cut.summary.rows if row.covered}
