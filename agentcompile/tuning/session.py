"""The objects of one run's search, made from a prepared model and an evaluator; they share the run's trials."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from agentcompile.control.steering import Steering
from agentcompile.evaluation.evaluator import Evaluator
from agentcompile.evaluation.time_budget import TimeBudget
from agentcompile.events import Emit
from agentcompile.ir.advice import Advice
from agentcompile.system.notes import Notes
from agentcompile.tuning.acceptance import Acceptance
from agentcompile.tuning.baselines import BaselineTimes
from agentcompile.tuning.jobs import JobMaker
from agentcompile.tuning.prepared import PreparedModel
from agentcompile.tuning.ranker import Ranker
from agentcompile.tuning.run_trials import RunTrials
from agentcompile.tuning.scheduler import FinishTime, TaskScheduler, nothing_more
from agentcompile.tuning.step_candidates import StepCandidates
from agentcompile.tuning.tasks import Consulting, TuneTask
from agentcompile.tuning.trial_database import TrialDatabase
from agentcompile.tuning.tuner import Tuner
from agentcompile.tuning.untimed import Estimates


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningSession:
    """The objects that search regions, accept kernels that ship, rank kernels, and evaluate candidates for the step."""

    trials: RunTrials
    scheduler: TaskScheduler
    acceptance: Acceptance
    ranker: Ranker
    candidates: StepCandidates


def tuning_session(
    prepared: PreparedModel,
    evaluator: Evaluator,
    known: TrialDatabase,
    budget: TimeBudget,
    advised: Callable[[TuneTask], Advice],
    steering: Steering,
    emit: Emit,
    seed: int,
    say: Callable[[Mapping[str, float]], None] = lambda best: None,
    strategy: str = "",
    consult: Consulting | None = None,
    finishing: FinishTime = nothing_more,
) -> TuningSession:
    """Return a session without trials.

    `advised` returns the advice that holds for a task now. `say` receives the best times of regions in ns, by id,
    whenever they may have changed. `strategy` is the name of the search strategy, with its settings, for events.
    `consult` asks a model what to try next. `finishing` returns how long a plan will be accepted and timed.
    """
    target, notes = prepared.here.target, Notes(prepared.here.store)
    jobs = JobMaker(target)
    trials = RunTrials([*prepared.tasks, *prepared.prompt_tasks], jobs)
    acceptance = Acceptance(trials, jobs, evaluator, known, notes, target, emit, steering)
    baselines = BaselineTimes(evaluator, notes, target, known.policy, seed)
    tuner = Tuner(jobs, evaluator, known, baselines, notes, emit, seed, advised, steering, strategy, consult)
    ranker = Ranker(trials, jobs, acceptance, advised)
    scheduler = TaskScheduler(
        trials,
        tuner,
        baselines,
        prepared.prefill.residency,
        budget.searching,
        budget.confirming,
        budget.left,
        steering=steering,
        emit=emit,
        say=say,
        seed=seed,
        advised=advised,
        estimate=Estimates(ceiling=prepared.ceiling, residency=prepared.prefill.residency, rankings={}).fallback_ns,
        finishing=finishing,
    )
    candidates = StepCandidates(trials, tuner, ranker, advised)
    return TuningSession(
        trials=trials, scheduler=scheduler, acceptance=acceptance, ranker=ranker, candidates=candidates
    )
