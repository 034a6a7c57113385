"""The flow on one screen: model → graphs → regions → spaces → advice → trials → choices → cover → plan → lock."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from agentcompile.advice.configure import check
from agentcompile.control.steering import Steering
from agentcompile.errors import AgentCompileError
from agentcompile.evaluation.evaluator import WorkerEvaluator
from agentcompile.evaluation.machine import evaluator_of, this_machine
from agentcompile.evaluation.step_clock import StepClock, policy_digest
from agentcompile.evaluation.time_budget import TimeBudget
from agentcompile.events import Emit, RunFinished, Warned, silent
from agentcompile.ir.trial import Plan, Trial
from agentcompile.lockfile.files import reserve_lock
from agentcompile.lockfile.schema import Lock
from agentcompile.options import Options
from agentcompile.planning.alternatives import alternatives_of
from agentcompile.planning.covering import TIMED, choose, cover, finishing, search
from agentcompile.planning.overrides import known_plan, legal
from agentcompile.planning.plans import Planned, estimate
from agentcompile.planning.steps import confirm_steps, tune_steps, untimed_steps
from agentcompile.replay.write import write
from agentcompile.runs.stages import shared
from agentcompile.search import SearchMethod, strategy_of
from agentcompile.tuning.machine_trials import MachineTrials
from agentcompile.tuning.memory import recall
from agentcompile.tuning.pace import Pace
from agentcompile.tuning.prepared import PreparedModel, consulting, counsel, prepare, started
from agentcompile.tuning.session import TuningSession, tuning_session
from agentcompile.tuning.trial_database import Renamed, TrialDatabase
from agentcompile.verification.decisions import decided

if TYPE_CHECKING:
    import torch

GRACE_S = 1.5
"""Seconds to wait, after the search, for answers of the adviser model that are still open: what they claim is compared
with what was found. With `choose = "first"` they decide, and the wait is `options.advisor_seconds`."""


def compile_model(
    options: Options,
    emit: Emit = silent,
    *,
    past: Sequence[Trial] = (),
    steering: Steering | None = None,
    module: torch.nn.Module | None = None,
) -> Lock:
    """Compile `options.model`, write the lockfile to `options.out` and return it.

    `past` are trials that earlier processes of this run reported. `steering` holds a person's requests and what the run
    has spent on asking a model. `module`, where given, is the module that was saved as `options.model`: the compiled
    program is compared with it.

    Raises:
        AgentCompileError: anything that the user can fix; with the code "undecided" when the lock waits for review.
    """
    if options.review and steering is None:
        raise AgentCompileError(
            "review: nobody can be asked here",
            hint="compile with the command line, whose run waits for review, or set review to false",
        )
    check(options)
    strategy = strategy_of(options.strategy)
    begin, steering, emit = time.monotonic(), steering or Steering(), shared(emit)[0]
    here = this_machine(options)
    emit(started(options, here))
    reserve_lock(Path(options.out))
    with evaluator_of(here, options.seed, steering) as evaluator, MachineTrials(options.history) as history:
        if history.warning:
            emit(Warned(text=history.warning))
        prepared = prepare(options, here, evaluator, emit)
        budget = TimeBudget(options.seconds, here.target, spent_s=steering.earlier.searched_s, clock=steering.clock)
        emit = pace = Pace(emit, budget, lambda best: estimate(prepared.decode[0], best), evaluator.waiting)
        policy, tasks = policy_digest(prepared.prefill.residency), [*prepared.tasks, *prepared.prompt_tasks]
        cuts, spaces = [*prepared.decode, prepared.prefill], {task.region.id: task.space for task in tasks}
        planned, plans = known_plan(steering.earlier, cuts, spaces), steering.earlier.plans
        renamed = Renamed(spaces.values())
        past = [renamed.now(trial) for trial in past]
        known, fresh = TrialDatabase(past, history, policy, renamed), planned is None or bool(steering.asked)
        recalled = recall(tasks, history, policy, emit, asked=fresh and options.memory and options.choose in TIMED)
        with counsel(
            prepared, options, emit, steering.earlier.spent, recalled.memories,
            known if fresh and options.choose != "pytorch" else None,
        ) as counsels:  # fmt: skip
            tuning = tuning_session(
                prepared, evaluator, known, budget, recalled.advised(counsels.advice), steering, emit,
                options.seed, pace.improved, options.strategy, consulting(prepared, counsels, known, strategy.tries),
                partial(finishing, prepared, options.choose),
            )  # fmt: skip
            steering.know_spaces(legal(spaces))
            if planned is not None:
                tuning.trials.resume_from(past)
            if fresh and options.choose in TIMED:
                tried = 0 if planned else options.budget * len(options.batch)
                search(prepared, tuning.scheduler, tried, strategy.regions, budget, emit)
            counsels.wait(options.advisor_seconds if options.choose == "first" else GRACE_S)
            counsels.settle(tuning.trials.by_region)
        if fresh or planned is None:
            planned, plans = settle(prepared, tuning, strategy, options, evaluator, steering, emit, budget)
        elif any(plan.contended for plan in plans):
            clock = StepClock(here, evaluator, prepared.model, tuning.trials.sources, steering)
            plans = confirm_steps(prepared, planned, plans, tuning.trials, clock, options.seed, emit, tuning.acceptance)
        planned, plans, found = decided(
            prepared, tuning.scheduler, tuning.acceptance, planned, plans,
            evaluator, options.seed, emit, steering, module,
        )  # fmt: skip
        lock = write(
            prepared, tuning.trials, tuning.acceptance, planned, plans, policy, options, emit, counsels.digests, found
        )
    emit(RunFinished(detail=options.out, seconds=time.monotonic() - begin))
    return lock


def settle(
    prepared: PreparedModel,
    tuning: TuningSession,
    strategy: SearchMethod,
    options: Options,
    evaluator: WorkerEvaluator,
    steering: Steering,
    emit: Emit,
    budget: TimeBudget,
) -> tuple[Planned, tuple[Plan, ...]]:
    """Return the cover that the rule `options.choose` makes of the trials, and a plan for each regime.

    Under the rule "admitted" alternatives are tried inside the whole step and plans are timed; else no step is timed.
    """
    rankings = choose(tuning.ranker, options.choose, emit)
    planned = cover(prepared, tuning.scheduler, tuning.ranker, tuning.acceptance, rankings, options.choose, emit)
    if options.choose != "admitted":
        return planned, untimed_steps(prepared, planned, emit)
    alternatives = alternatives_of(prepared, tuning, rankings)
    clock = StepClock(prepared.here, evaluator, prepared.model, alternatives.sources, steering, budget.finishing)
    return planned, tune_steps(
        prepared, planned, alternatives, strategy.step, clock, options.seed, emit, budget, tuning.acceptance
    )
