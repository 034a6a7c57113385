"""The flow on one screen: model → graphs → regions → spaces → advice → trials → choices → cover → plan → lock."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from agentcompile.advice.configure import check
from agentcompile.checkpoint.locate import location
from agentcompile.control.steering import Steering
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.evaluation.evaluator import WorkerJudge
from agentcompile.evaluation.machine import judge_of, this_machine
from agentcompile.evaluation.step_clock import StepClock, policy_digest
from agentcompile.evaluation.time_budget import TimeBudget, floor_of, part_of
from agentcompile.events import (
    ChoiceMade,
    Emit,
    LockWritten,
    PlanAdmitted,
    ReviewOpened,
    RunFinished,
    Warned,
    silent,
)
from agentcompile.ir.trial import Choice, Kernel, Part, Plan, Rule, Trial
from agentcompile.ir.whole import ModelCheck
from agentcompile.lockfile import Lock, reserve_lock, write_lock
from agentcompile.options import Options
from agentcompile.planning.admission import admit, admit_chunk, confirm
from agentcompile.planning.alternatives import Everywhere, RunnersUp
from agentcompile.planning.chunks import Chunks, capacity
from agentcompile.planning.overrides import Bench, known_plan, legal, obey
from agentcompile.planning.plans import NEAR, Planned, contenders, estimate, plan
from agentcompile.planning.step_timer import Admitted
from agentcompile.replay.sources import Kept
from agentcompile.replay.write import Facts, seal
from agentcompile.runs.stages import shared, stage
from agentcompile.system.notes import Notes
from agentcompile.system.probe import cpus_at_once, others_running
from agentcompile.tuning.machine_trials import History
from agentcompile.tuning.pace import Pace
from agentcompile.tuning.ranking import LEAVING_NS, Ranking
from agentcompile.tuning.renamed import Renamed
from agentcompile.tuning.scheduler import Survey
from agentcompile.tuning.tasks import Ready, counsel, prepare, started
from agentcompile.tuning.trial_database import Past, lengths_key
from agentcompile.tuning.tuner import Tuner
from agentcompile.tuning.untimed import Estimates
from agentcompile.verification.shipping import hold

if TYPE_CHECKING:
    import torch

TIMED: tuple[Rule, ...] = ("isolated", "admitted")
"""Rules of choice that candidates are timed for."""
GRACE_S = 1.5
"""How long answers that are still open when the search ends are waited for: what they claim is held against it. Where
nothing is timed they decide, and are waited for as long as they may take."""
CONFIRM_S = 3.0
"""What the finalists of a region take at least to be timed afresh, in three processes."""


def compile_model(
    options: Options,
    emit: Emit = silent,
    *,
    past: Sequence[Trial] = (),
    steering: Steering | None = None,
    module: torch.nn.Module | None = None,
) -> Lock:
    """Compile `options.model` and write the lock to `options.out`; `past` are trials that this run acknowledged before,
    `steering` is what a person asked of it, and what it had spent on asking a model. `module` is the one that was saved
    as `options.model`, where it is at hand: what is compiled is held against it.

    Raises AgentCompileError for whatever the user can fix, with the code for undecided when the lock waits for review.
    """
    if options.review and steering is None:
        raise AgentCompileError(
            "review: nobody can be asked here",
            hint="compile with the command line, whose run waits for a person, or set review to false",
        )
    check(options)
    begin, steering, emit = time.monotonic(), steering or Steering(), shared(emit)[0]
    here = this_machine(options)
    emit(started(options, here))
    reserve_lock(Path(options.out))
    with judge_of(here, options.seed, steering) as judge, History(options.history) as history:
        if history.warning:
            emit(Warned(text=history.warning))
        ready = prepare(options, here, judge, emit)
        budget = TimeBudget(options.seconds, here.target, spent_s=steering.earlier.searched_s, clock=steering.clock)
        emit = pace = Pace(emit, budget, lambda best: estimate(ready.decode[0], best))
        policy, subjects = policy_digest(ready.prefill.residency), [*ready.subjects, *ready.prompts]
        cuts, spaces = [*ready.decode, ready.prefill], {subject.region.id: subject.space for subject in subjects}
        renamed = Renamed(spaces.values())
        past = [renamed.now(trial) for trial in past]
        known = Past(past, history, policy, renamed)
        planned, plans = known_plan(steering.earlier, cuts, spaces), steering.earlier.plans
        fresh = planned is None or bool(steering.asked)
        with counsel(
            ready, options, emit, steering.earlier.spent, known if fresh and options.choose != "pytorch" else None
        ) as counsels:
            now = counsels.advice
            tuner = Tuner(
                here.target, judge, known, Notes(here.store), emit, options.seed, lambda one: now(one.region.id),
                steering,
            )  # fmt: skip
            steering.legal = legal(spaces)
            survey = Survey(
                cuts, subjects, tuner, budget.searching, budget.confirming, pace.improved
            )  # fmt: skip
            if planned is not None:
                survey.recall(past)
            if fresh and options.choose in TIMED:
                survey = search(ready, survey, 0 if planned else options.budget * len(options.batch), emit)
            counsels.wait(options.advisor_seconds if options.choose == "first" else GRACE_S)
            counsels.settle(survey.trials)
        if fresh or planned is None:
            planned, plans = settle(ready, survey, options, judge, emit, budget)
        elif any(plan.contended for plan in plans):
            plans = confirmed(ready, survey, planned, plans, judge, options.seed, emit)
        planned, plans, found = heed(ready, survey, planned, plans, judge, options.seed, emit, steering, module)
        lock = write(ready, survey, planned, plans, policy, options, emit, counsels.digests, found)
    emit(RunFinished(detail=options.out, seconds=time.monotonic() - begin))
    return lock


def search(ready: Ready, survey: Survey, budget: int, emit: Emit) -> Survey:
    """Search regions that could enter the cover; check, build, validate, measure; confirm finalists afresh."""
    with stage(emit, "search") as say:
        if least := floor_of(len(ready.subjects), survey.left(), others_running(), cpus_at_once()):
            emit(Warned(text=least))
        survey.obey()
        survey.look(budget)
        chosen = contenders(ready.decode, ready.subjects, survey.best_ns(), survey.fallback_ns) if budget else ()
        survey.search(chosen, budget)
        near = contenders(ready.decode, ready.subjects, survey.best_ns(), survey.fallback_ns, NEAR)
        if survey.confirm_left() < CONFIRM_S * len(near):  # then what the cheapest cover has now
            near = contenders(ready.decode, ready.subjects, survey.best_ns(), survey.fallback_ns, 1.0)
        survey.confirm([*near, *ready.prompts])
        say(f"{survey.candidates} candidates, {len(chosen)} regions searched")
    return survey


def settle(
    ready: Ready, survey: Survey, options: Options, judge: WorkerJudge, emit: Emit, budget: TimeBudget
) -> tuple[Planned, tuple[Plan, ...]]:
    """The cover that the rule of choice makes of what was searched, and its plans as the step admits them."""
    rankings = choose(survey, options.choose, emit)
    planned = cover(ready, survey, rankings, options.choose, emit)
    if options.choose != "admitted":
        return planned, taken(ready, planned, emit)
    return planned, prove(ready, survey, rankings, planned, judge, options.seed, emit, budget)


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
            LEAVING_NS if rule == "admitted" and ready.here.target.kind == "cpu" else 0.0,
        )

    with stage(emit, "cover") as say:
        found = planned()
        while failed := _failed(ready, survey, found):
            rejected.update(failed)
            found = planned()
        for part in {part.region: part for parts in found.decode for part in parts}.values():
            if part.region in rankings and rankings[part.region].is_near(part.choice):
                emit(ChoiceMade(region=part.region, choice=part.choice))
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
        templates={template.digest: template for subject in ready.prompts for template in subject.space.templates},
        target=ready.here.target,
        layouts=found.layouts,
    )
    jobs = chunks.everywhere(capacity(ready.model.captured))
    wrong = {(candidate.template_digest, candidate.params) for candidate in survey.refused(list(jobs.values()))}
    return tuple(
        (part.region, part.choice)
        for part in found.prefill
        if isinstance(part.choice, Kernel)
        and (part.choice.candidate.template_digest, part.choice.candidate.params) in wrong
    )


def prove(
    ready: Ready,
    survey: Survey,
    rankings: Mapping[str, Ranking],
    planned: Planned,
    judge: WorkerJudge,
    seed: int,
    emit: Emit,
    budget: TimeBudget,
) -> tuple[Plan, ...]:
    """Tune the plan of every regime inside its whole step and measure it beside PyTorch, that of a prompt, which has
    kernels on a GPU alone, in its whole chunk. What the step of a shorter context chose holds for longer ones too,
    where the region is the same, unless another does better beside a neighbour that is the longer one's own. What is
    left of the time is shared out by how many regions a step has left to choose."""
    plans: list[Plan] = []
    settled: dict[str, Choice] = {}
    with stage(emit, "admit") as say:
        kind = ready.here.target.kind
        rivals = RunnersUp(survey, rankings) if kind == "cpu" else Everywhere(survey, ready.here.target.threads)
        steering = survey.steering
        clock = StepClock(ready.here, judge, ready.model, rivals.sources, steering, budget.left)
        to_come = 1.0
        for cut, parts, share in zip(ready.decode, planned.decode, _shares(planned.decode), strict=True):
            left = part_of(budget.tuning, share / to_come if to_come > 0 else 0.0)
            to_come -= share
            survey.left = left
            admitted = admit(cut, parts, planned, rivals, clock, emit, seed, kind, settled, left)
            # What one step gave back to PyTorch, another may be faster with.
            settled |= {part.region: part.choice for part in admitted.parts if isinstance(part.choice, Kernel)}
            plans.append(_told(admitted, planned, emit))
        if kind == "cpu":
            plan = Plan(regime=ready.prefill.partition.regime, parts=planned.prefill, exact=planned.exact)
            plans.append(_told(Admitted(plan=plan, parts=plan.parts, notes=()), planned, emit))
        else:
            chunk = admit_chunk(ready.prefill, planned, rivals, clock, emit, seed, kind, budget.left)
            plans.append(_told(chunk, planned, emit))
        say(f"{plans[0].step_ns / 1e6:.3f} ms a step, PyTorch {plans[0].baseline_ns / 1e6:.3f} ms")
    return tuple(plans)


def confirmed(
    ready: Ready, survey: Survey, planned: Planned, plans: Sequence[Plan], judge: WorkerJudge, seed: int, emit: Emit
) -> tuple[Plan, ...]:
    """The plans of an earlier process of the run, those whose timing others disturbed timed again."""
    with stage(emit, "admit") as say:
        kind, clock = ready.here.target.kind, StepClock(ready.here, judge, ready.model, survey.sources, survey.steering)
        found = [
            _told(confirm(cut, plan, planned, survey, clock, emit, seed, kind), planned, emit)
            if plan.contended
            else plan
            for cut, plan in zip([*ready.decode, ready.prefill], plans, strict=True)
        ]
        still = sum(plan.contended for plan in found)
        say(f"{still} of {sum(plan.contended for plan in plans)} contended plans are still contended")
    return tuple(found)


def taken(ready: Ready, planned: Planned, emit: Emit) -> tuple[Plan, ...]:
    """The plans as they were covered: no step is timed, and none is given back to PyTorch."""
    with stage(emit, "admit") as say:
        covers = zip((*ready.decode, ready.prefill), (*planned.decode, planned.prefill), strict=True)
        plans = tuple(Plan(regime=cut.partition.regime, parts=parts, exact=planned.exact) for cut, parts in covers)
        for one in plans:
            emit(PlanAdmitted(plan=one, layouts=planned.layouts))
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


def _told(admitted: Admitted, planned: Planned, emit: Emit) -> Plan:
    """The plan, once what was found on the way to it and the plan itself are on disk."""
    for note in admitted.notes:
        emit(Warned(text=note))
    emit(PlanAdmitted(plan=admitted.plan, layouts=planned.layouts))
    return admitted.plan


def heed(
    ready: Ready,
    survey: Survey,
    planned: Planned,
    plans: Sequence[Plan],
    judge: WorkerJudge,
    seed: int,
    emit: Emit,
    steering: Steering,
    module: torch.nn.Module | None = None,
) -> tuple[Planned, tuple[Plan, ...], ModelCheck]:
    """The cover and the plans as a person wants them, as far as the whole model is right with them.

    Raises AgentCompileError (undecided) when a review was asked for and something of it is open.
    """
    left = tuple(steering.undecided())
    if steering.review and left:
        emit(ReviewOpened(regions=left))
        raise AgentCompileError(
            f"{len(left)} regions wait for review, and no lock is written before",
            exit_code=ExitCode.UNDECIDED,
            hint="decide on them with `agentcompile decide` or in `agentcompile tui`, then compile --resume",
        )
    rulings = steering.rulings()
    for region in (region for region in left if region in rulings):
        emit(Warned(text=f"region {region[:12]}: what was decided is stale and counts no more"))
    bench = Bench(
        survey=survey,
        clock=StepClock(ready.here, judge, ready.model, survey.sources, steering),
        emit=emit,
        seed=seed,
        kind=ready.here.target.kind,
        refused=lambda found: _failed(ready, survey, found),
    )
    valid = {region: ruling for region, ruling in rulings.items() if region not in left}
    try:
        planned, plans = obey([*ready.decode, ready.prefill], planned, plans, valid, bench, steering.earlier.ruled)
    except AgentCompileError as error:
        if error.exit_code is ExitCode.UNDECIDED:
            emit(Warned(text=error.message))
            emit(ReviewOpened(regions=tuple(steering.undecided())))
        raise
    return hold(ready, planned, plans, bench, judge, steering.earlier, module)


def write(
    ready: Ready,
    survey: Survey,
    planned: Planned,
    plans: Sequence[Plan],
    policy: str,
    options: Options,
    emit: Emit,
    exchanges: tuple[str, ...] = (),
    found: ModelCheck | None = None,
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
            check=found,
        )
        lock = seal(about, [*ready.decode, ready.prefill], plans, planned.layouts, survey.trials)
        Kept(store=ready.here.store).keep(survey.jobs(part for plan in plans for part in plan.parts))
        hashed = write_lock(out, lock)
        if ready.prompts:  # the cover was accepted at every length: a replay here need not look again
            Notes(ready.here.store).put(lengths_key(hashed, ready.here.target.digest), 1)
        emit(LockWritten(path=str(out), digest=hashed))
        say(str(out))
    return lock
