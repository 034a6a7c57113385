"""The flow on one screen: model → graphs → regions → spaces → advice → trials → choices → cover → plan → lock."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import agentcompile
from agentcompile import catalog
from agentcompile.admit import Admitted, admit, admit_chunk
from agentcompile.advice import adviser_of
from agentcompile.advice.counsel import Counsel, prompts_of
from agentcompile.advice.prompt import prompt_of
from agentcompile.advising import Inquiry, check, counsel_of, is_remote, one_at_a_time
from agentcompile.captures import Model, load_model
from agentcompile.choose import Ranking
from agentcompile.chunks import Chunks, capacity
from agentcompile.cuts import Cut, advise, bound, cut, question_of
from agentcompile.errors import AgentCompileError
from agentcompile.events import ChoiceMade, Emit, LockWritten, PlanAdmitted, RunFinished, RunStarted, Warned, silent
from agentcompile.history import History
from agentcompile.ir.advice import Advice, Question, Usage
from agentcompile.ir.region import Region
from agentcompile.ir.target import Ceiling
from agentcompile.ir.trial import Choice, Kernel, Part, Plan, Rule, Trial
from agentcompile.judge import WorkerJudge
from agentcompile.layouts import LAYOUTS
from agentcompile.lockfile import Lock, reserve_lock, write_lock
from agentcompile.machine import Machine, ceilings, judge_of, this_machine
from agentcompile.models import find_model, location
from agentcompile.notes import Notes
from agentcompile.options import Options
from agentcompile.plans import NEAR, Planned, contenders, plan
from agentcompile.proving import StepClock, policy_digest
from agentcompile.regions.kinds import facts as kinds
from agentcompile.rivals import Everywhere, RunnersUp
from agentcompile.seal import Facts, seal
from agentcompile.stages import stage
from agentcompile.survey import Survey
from agentcompile.tune import Past, Subject, Tuner, lengths_key
from agentcompile.untimed import Estimates

TIMED: tuple[Rule, ...] = ("isolated", "admitted")
"""Rules of choice that candidates are timed for."""
IN_STEP = 0.5
"""Share of a search's time on a GPU that is for rivals in the step, where launches overlap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """A model cut into regions whose spaces are bounded and advised: all that a search starts from."""

    here: Machine
    model: Model
    ceiling: Ceiling
    decode: tuple[Cut, ...]
    """A cut a regime: ranges of contexts of one sequence, shortest first, then larger batches."""
    prefill: Cut
    subjects: tuple[Subject, ...]
    prompts: tuple[Subject, ...]
    """Those of the prefill, which has kernels on a GPU alone."""


def compile_model(
    options: Options, emit: Emit = silent, *, past: Sequence[Trial] = (), asked: Usage | None = None
) -> Lock:
    """Compile `options.model` and write the lock to `options.out`; `past` are trials that this run acknowledged before,
    `asked` what it had spent on asking a model.

    Raises AgentCompileError for whatever the user can fix.
    """
    begin, emit = time.monotonic(), one_at_a_time(emit)
    check(options)
    here = this_machine(options)
    emit(_started(options, here))
    reserve_lock(Path(options.out))
    with judge_of(here, options.seed) as judge, History(options.history) as history:
        if history.warning:
            emit(Warned(text=history.warning))
        ready = prepare(options, here, judge, emit)
        policy = policy_digest(ready.prefill.residency)
        known = Past(past, history, policy)
        with counsel(ready, options, emit, asked) as counsels:
            now = counsels.advice
            tuner = Tuner(
                here.target, judge, known, Notes(here.store), emit, options.seed, lambda one: now(one.region.id)
            )
            cuts, subjects = [*ready.decode, ready.prefill], [*ready.subjects, *ready.prompts]
            searching_s, in_step_s = _shares_of(options.seconds, here.target.kind)
            survey = Survey(cuts, subjects, tuner, _countdown(searching_s))
            if options.choose in TIMED:
                survey = search(ready, survey, options.budget * len(options.batch), emit)
            counsels.settle(survey.trials)
        rankings = choose(survey, options.choose, emit)
        planned = cover(ready, survey, rankings, options.choose, emit)
        if options.choose == "admitted":
            plans = prove(ready, survey, rankings, planned, judge, options.seed, emit, in_step_s)
        else:
            plans = taken(ready, planned, emit)
        lock = write(ready, survey, planned, plans, policy, options, emit, counsels.digests)
    emit(RunFinished(detail=options.out, seconds=time.monotonic() - begin))
    return lock


def _shares_of(seconds: float, kind: str) -> tuple[float, float]:
    """Of the time that a search may spend (0: any), what is for regions alone and what for rivals in the step: on a CPU
    these are no new candidates."""
    if not seconds:
        return math.inf, math.inf
    in_step = IN_STEP * seconds if kind == "cuda" else 0.0
    return seconds - in_step, in_step


def _countdown(seconds: float) -> Callable[[], float]:
    """Says how many seconds are left from now on."""
    end = time.monotonic() + seconds
    return lambda: end - time.monotonic()


def _started(options: Options, here: Machine) -> RunStarted:
    return RunStarted(
        model=options.model,
        target=here.target,
        options=options.digest,
        version=agentcompile.__version__,
        budget_trials=options.budget,
    )


def prepare(options: Options, here: Machine, judge: WorkerJudge, emit: Emit) -> Ready:
    """model ─capture→ Graph ─partition→ Regions ─templates×target→ Spaces ─advise→ order and hints."""
    adviser = adviser_of(options.advisor)
    roots = [catalog.default_root(), *(Path(folder) for folder in options.templates)]
    templates = catalog.load(roots, kinds=kinds(), layouts=LAYOUTS)
    with stage(emit, "capture") as say:
        model = load_model(find_model(options.model, options.cache), options.context, here.store, here.hashes)
        info = model.captured.info
        say(f"{info.architecture}, {info.layers} layers, {info.dtype}")
    with stage(emit, "probe") as say:
        ceiling = ceilings(here, judge)
        say(f"reads {ceiling.dram_bytes_per_s / 1e9:.1f} GB/s, {ceiling.cache_bytes_per_s / 1e9:.1f} GB/s from cache")
    with stage(emit, "partition") as say:
        decode, prefill = cut(model.captured, here.target, ceiling, emit, options.batch)
        regions = {id for one in decode for id in one.regions}
        say(f"{len(regions)} regions, weights in {prefill.residency}")
    with stage(emit, "space") as say:
        spaces = bound(decode, templates, here.target, emit)
        chunks = bound([prefill], templates, here.target, emit) if here.target.kind == "cuda" else ()
        say(f"{sum(len(space) for space in (*spaces, *chunks))} points in {len(spaces) + len(chunks)} regions")
    with stage(emit, "advise") as say:
        subjects, prompts = (advise(some, adviser, ceiling, prefill.residency, emit) for some in (spaces, chunks))
        say(f"heuristic, until {adviser.label} answers" if is_remote(options) else adviser.label)
    return Ready(
        here=here,
        model=model,
        ceiling=ceiling,
        decode=decode,
        prefill=prefill,
        subjects=subjects,
        prompts=prompts,
    )


def counsel(ready: Ready, options: Options, emit: Emit, asked: Usage | None = None) -> Counsel:
    """What is advised about each region from now on: the model, if one is to be asked, is asked in the background."""
    first = _questions(ready)
    found = counsel_of(options, first, emit, asked or Usage())
    if is_remote(options):
        found.begin(prompts_of([question for question, _ in first.values()], _hot(ready)))
    return found


def _questions(ready: Ready) -> dict[str, tuple[Question, Advice]]:
    """By region what is asked about it, and what the first adviser said."""
    subjects = [*ready.subjects, *ready.prompts]
    return {one.region.id: (question_of(one.space, ready.ceiling, one.residency), one.advice) for one in subjects}


def _hot(ready: Ready) -> set[str]:
    """Regions of the cheapest cover by floors."""
    return {row.id for cut in ready.decode for row in cut.summary.rows if row.covered}


def search(ready: Ready, survey: Survey, budget: int, emit: Emit) -> Survey:
    """Search regions that could enter the cover; check, build, validate, measure; confirm finalists afresh."""
    with stage(emit, "search") as say:
        survey.look(budget)
        chosen = contenders(ready.decode, ready.subjects, survey.best_ns(), survey.fallback_ns)
        survey.search(chosen, budget)
        near = contenders(ready.decode, ready.subjects, survey.best_ns(), survey.fallback_ns, NEAR)
        survey.confirm([*near, *ready.prompts])
        say(f"{survey.candidates} candidates, {len(chosen)} regions searched")
    return survey


def choose(survey: Survey, rule: Rule, emit: Emit) -> dict[str, Ranking]:
    """For every region its kernels that beat PyTorch, best first, or the reason why none does; untimed those that the
    rule takes."""
    with stage(emit, "choose") as say:
        match rule:
            case "pytorch":
                rankings = survey.untouched()
            case "first":
                rankings = survey.first()
            case "isolated" | "admitted":
                rankings = survey.rankings()
        for region, ranking in rankings.items():
            emit(ChoiceMade(region=region, choice=ranking.best))
        what = "a faster kernel" if rule in TIMED else "a kernel"
        say(f"{sum(bool(ranking.kernels) for ranking in rankings.values())} regions have {what}")
    return rankings


def cover(ready: Ready, survey: Survey, rankings: Mapping[str, Ranking], rule: Rule, emit: Emit) -> Planned:
    """The cheapest covers of all regimes whose kernels all pass the whole correctness suite. Where the rule has nothing
    timed they are the cheapest by the roofline, and the adviser's next follows one that does not pass."""
    rejected: set[tuple[str, Choice]] = set()

    def planned() -> Planned:
        ranked = survey.first(rejected) if rule == "first" else rankings
        about = Estimates(ceiling=ready.ceiling, residency=ready.prefill.residency, rankings=ranked)
        return plan(
            ready.decode,
            ready.prefill,
            [*ready.subjects, *ready.prompts],
            ranked,
            survey.trials,
            survey.fallback_ns if rule in TIMED else about.fallback_ns,
            ready.ceiling,
            ready.here.target.kind,
            rejected,
            None if rule in TIMED else about.kernel_ns,
        )

    with stage(emit, "cover") as say:
        found = planned()
        while failed := _failed(ready, survey, found):
            rejected.update(failed)
            found = planned()
        say(f"{len(found.decode[0])} regions cover the step, estimated at {found.decode_ns / 1e6:.3f} ms")
    return found


def _failed(ready: Ready, survey: Survey, found: Planned) -> tuple[tuple[str, Choice], ...]:
    """Choices of a plan that may not ship; those of a prompt must be right at every length that it may run at."""
    if failed := survey.accept([part for parts in (*found.decode, found.prefill) for part in parts]):
        return failed
    if not ready.prompts:
        return ()
    chunks = Chunks(
        graph=ready.model.captured.prefill,
        cut=ready.prefill.partition,
        parts=found.prefill,
        templates={template.id: template for subject in ready.prompts for template in subject.space.templates},
        target=ready.here.target,
        layouts=found.layouts,
    )
    jobs = chunks.everywhere(capacity(ready.model.captured))
    wrong = {(candidate.template, candidate.params) for candidate in survey.refused(list(jobs.values()))}
    return tuple(
        (part.region, part.choice)
        for part in found.prefill
        if isinstance(part.choice, Kernel) and (part.choice.candidate.template, part.choice.candidate.params) in wrong
    )


def prove(
    ready: Ready,
    survey: Survey,
    rankings: Mapping[str, Ranking],
    planned: Planned,
    judge: WorkerJudge,
    seed: int,
    emit: Emit,
    seconds: float = math.inf,
) -> tuple[Plan, ...]:
    """Tune the plan of every regime inside its whole step and measure it beside PyTorch, that of a prompt, which has
    kernels on a GPU alone, in its whole chunk. What the step of a shorter context chose holds for longer ones too,
    where the region is the same, unless another does better beside a neighbour that is the longer one's own. `seconds`
    may be spent on rivals that are new, by how many regions a step has left to choose."""
    plans: list[Plan] = []
    settled: dict[str, Choice] = {}
    with stage(emit, "admit") as say:
        kind = ready.here.target.kind
        rivals = RunnersUp(survey, rankings) if kind == "cpu" else Everywhere(survey, ready.here.target.threads)
        clock = StepClock(ready.here, judge, ready.model, rivals.sources)
        begin, spent = time.monotonic(), 0.0
        for cut, parts, share in zip(ready.decode, planned.decode, _shares(planned.decode), strict=True):
            spent += share
            if kind != "cpu":
                survey.left = _countdown(begin + spent * seconds - time.monotonic() if spent else 0.0)
            admitted = admit(cut, parts, planned, rivals, clock, emit, seed, kind, settled)
            # What one step gave back to PyTorch, another may be faster with.
            settled |= {part.region: part.choice for part in admitted.parts if isinstance(part.choice, Kernel)}
            plans.append(_told(admitted, emit))
        if kind == "cpu":
            regime = ready.prefill.partition.regime
            plans.append(Plan(regime=regime, parts=planned.prefill, exact=planned.exact))
        else:
            plans.append(_told(admit_chunk(ready.prefill, planned, rivals, clock, emit, seed, kind), emit))
        say(f"{plans[0].step_ns / 1e6:.3f} ms a step, PyTorch {plans[0].baseline_ns / 1e6:.3f} ms")
    return tuple(plans)


def taken(ready: Ready, planned: Planned, emit: Emit) -> tuple[Plan, ...]:
    """The plans as they were covered: no step is timed, and none is given back to PyTorch."""
    with stage(emit, "admit") as say:
        covers = zip((*ready.decode, ready.prefill), (*planned.decode, planned.prefill), strict=True)
        plans = tuple(Plan(regime=cut.partition.regime, parts=parts, exact=planned.exact) for cut, parts in covers)
        for one in plans:
            emit(PlanAdmitted(plan=one))
        say("not asked for: the plans are as they were covered")
    return plans


def _shares(decode: Sequence[Sequence[Part]]) -> list[float]:
    """Of all regions that steps choose, the share that each is the first to choose."""
    seen: set[str] = set()
    fresh = []
    for parts in decode:
        own = {part.region for part in parts}
        fresh.append(len(own - seen))
        seen |= own
    return [count / max(len(seen), 1) for count in fresh]


def _told(admitted: Admitted, emit: Emit) -> Plan:
    """The plan, once what was found on the way to it and the plan itself are on disk."""
    for note in admitted.notes:
        emit(Warned(text=note))
    emit(PlanAdmitted(plan=admitted.plan))
    return admitted.plan


def write(
    ready: Ready,
    survey: Survey,
    planned: Planned,
    plans: Sequence[Plan],
    policy: str,
    options: Options,
    emit: Emit,
    exchanges: tuple[str, ...] = (),
) -> Lock:
    """Seal all plans, the prompt's last, and write the lock."""
    out = Path(options.out)
    with stage(emit, "lock") as say:
        about = Facts(
            target=ready.here.target,
            captured=ready.model.captured,
            location=location(options.model, out),
            policy=policy,
            choose=options.choose,
            advice=exchanges,
        )
        lock = seal(about, [*ready.decode, ready.prefill], plans, planned.layouts, survey.trials)
        hashed = write_lock(out, lock)
        if ready.prompts:  # the cover was accepted at every length: a replay here need not look again
            Notes(ready.here.store).put(lengths_key(hashed, ready.here.target.digest), 1)
        emit(LockWritten(path=str(out), digest=hashed))
        say(str(out))
    return lock


def advise_model(options: Options, emit: Emit, asked: Inquiry) -> tuple[tuple[str, str], ...]:
    """Capture, cut, bound, and ask the adviser about every region, or about those of one name; answers come as events.

    Returns system and user message of every prompt. Raises AgentCompileError (usage) for a name that no region has.
    """
    if not asked.show_prompt:
        check(options)
    here, emit = this_machine(options), one_at_a_time(emit)
    emit(_started(options, here))
    with judge_of(here, options.seed) as judge:
        ready = prepare(options, here, judge, emit)
    first = _questions(ready)
    wanted = [
        replace(question, history=tuple(trial for trial in asked.history if trial.candidate.region == region))
        for region, (question, _) in first.items()
        if _is_called(question.region, asked.region)
    ]
    if not wanted:
        known = ", ".join(question.region.name for question, _ in first.values())
        raise AgentCompileError(f"--region {asked.region}: no region is called that", hint=f"regions: {known}")
    if asked.region:
        prompts = tuple(prompt_of([question]) for question in wanted)
    else:
        prompts = prompts_of(wanted, _hot(ready))
    if not asked.show_prompt and is_remote(options):
        record, who = asked.record, asked.answered_by
        with counsel_of(options, first, emit, Usage(), record=record, recalls=False, answered_by=who) as found:
            found.begin(prompts)
            found.wait(options.advisor_seconds)
    return tuple((prompt.system, prompt.user) for prompt in prompts)


def _is_called(region: Region, name: str) -> bool:
    return not name or name in (region.name, region.kind) or region.id.startswith(name)


def inspect_model(options: Options, emit: Emit = silent) -> None:
    """Capture, cut and bound; only the ceilings are measured. Regions and spaces come as events."""
    here = this_machine(options)
    roots = [catalog.default_root(), *(Path(folder) for folder in options.templates)]
    templates = catalog.load(roots, kinds=kinds(), layouts=LAYOUTS)
    emit(_started(options, here))
    with judge_of(here, options.seed) as judge:
        model = load_model(find_model(options.model, options.cache), options.context, here.store, here.hashes)
        decode, _ = cut(model.captured, here.target, ceilings(here, judge), emit, options.batch)
        bound(decode, templates, here.target, emit)
