"""A search strategy is one class and one row: one that the test brings along searches through scheduler and tuner."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from agentcompile.build.binary import Binary
from agentcompile.evaluation.jobs import Baseline, EvaluationJob, Prepared
from agentcompile.events import silent
from agentcompile.ir.advice import Advice
from agentcompile.ir.template import Candidate
from agentcompile.ir.timing import Clock, Round, Samples, Timing
from agentcompile.ir.trial import Trial
from agentcompile.search import (
    STRATEGIES,
    Budget,
    Move,
    Proposal,
    SearchMethod,
    SearchTask,
    StepTask,
    StepTrial,
    strategy_of,
)
from agentcompile.space import Space
from agentcompile.system.notes import Notes
from agentcompile.system.store import Store
from agentcompile.tuning.baselines import BaselineTimes
from agentcompile.tuning.jobs import JobMaker
from agentcompile.tuning.ranker import Ranker
from agentcompile.tuning.run_trials import RunTrials
from agentcompile.tuning.scheduler import TaskScheduler
from agentcompile.tuning.tasks import TuneTask
from agentcompile.tuning.trial_database import TrialDatabase
from agentcompile.tuning.tuner import Tuner
from tests.unit.fakes import RIGHT, linear_region, rows_template, target
from tests.unit.test_admission import Fakes, StepClock, admitted, cut_of, flat, variant_of

PYTORCH_NS, BATCH = 100_000, 4


class Backwards:
    """Two candidates at a time, the last of the space first."""

    def propose(self, task: SearchTask, trials: Sequence[Trial], budget: Budget) -> Proposal[Candidate]:
        tried = {trial.candidate.id for trial in trials}
        left = [one for one in reversed(task.candidates) if one.id not in tried]
        return Proposal(candidates=tuple(left[: min(2, budget.trials - len(tried))]), rounds=budget.rounds)


class Timekeeper:
    """Every kernel is right, and takes less the higher its parameters are."""

    def __init__(self) -> None:
        self.timed: list[str] = []

    def prepare(self, jobs: Iterable[EvaluationJob], **_: Any) -> Iterator[tuple[EvaluationJob, Prepared]]:
        for job in jobs:
            yield job, Prepared(job=job, binary=Binary(digest=job.source.digest), report=RIGHT)

    def time(self, _: Any, arms: Sequence[Prepared | Baseline], *, rounds: int, processes: int, **__: Any) -> Timing:
        own = [arm.job.candidate for arm in arms if isinstance(arm, Prepared)]
        self.timed += [one.id for one in own]
        launches = [PYTORCH_NS, *(PYTORCH_NS // (1 + math.prod(int(v) for _, v in one.params)) for one in own)]
        once = Round(intervals_ns=tuple((BATCH * ns, BATCH * ns) for ns in launches), waited_ns=(0,) * len(launches))
        clock = Clock(quantum_ns=1, doubling=(2.0,) * len(launches))
        samples = Samples(batch=BATCH, clock=clock, rounds=(once,) * rounds)
        live = tuple(range(len(launches)))
        return Timing(arms=tuple(map(str, live)), live=live, processes=(samples,) * processes, residency="dram")


class BackwardMoves:
    """Every move of a step once, the last first."""

    def propose(self, task: StepTask, trials: Sequence[StepTrial], budget: Budget) -> Proposal[Move]:
        tried = {trial.candidate.id for trial in trials}
        left = [one for one in reversed(task.candidates) if one.id not in tried]
        return Proposal(candidates=tuple(left[:1]), rounds=budget.rounds)


ROWS = {**STRATEGIES, "backwards": SearchMethod(regions=Backwards(), step=BackwardMoves())}


@pytest.mark.parametrize("name", ROWS)
def test_a_strategy_is_a_class_and_a_row(name: str, tmp_path: Path) -> None:
    strategy = strategy_of(name, ROWS).regions
    space = Space(linear_region(), [rows_template()], target())
    task = TuneTask(region=space.region, space=space, advice=Advice(label="none"), residency="dram", floor_ns=1.0)
    evaluator: Any = Timekeeper()
    notes, jobs = Notes(Store(tmp_path)), JobMaker(target())
    baselines = BaselineTimes(evaluator, notes, target(), "p", 0)
    tuner = Tuner(jobs, evaluator, TrialDatabase((), None, "p"), baselines, notes, silent, 0)
    trials = RunTrials([task], jobs)
    scheduler = TaskScheduler(trials, tuner, baselines, "dram", lambda: math.inf)
    scheduler.try_first_candidates(len(space))
    first = len(evaluator.timed)
    scheduler.search([task], len(space), strategy)
    if name == "backwards":
        order = [one.id for one in reversed(tuple(space)) if one.id not in evaluator.timed[:first]]
        assert evaluator.timed[first:] == order
    scheduler.confirm([task])
    nobody: Any = None  # accepts: what was timed is ranked without
    ranking = Ranker(trials, jobs, nobody, lambda task: task.advice).by_time()[task.region.id]
    (_, (best, *_)), *_ = ranking.kernels
    assert dict(best.candidate.params) == {"ROWS": 8, "UNROLL": 4}
    assert best.speedup == pytest.approx(33, rel=0.01)


@pytest.mark.parametrize("name", ROWS)
def test_its_row_searches_the_step_too(name: str) -> None:
    cut = cut_of((1, 32))
    alternatives = Fakes(cut.regions)
    found = admitted(cut, alternatives, StepClock(flat(best=3)), strategy=strategy_of(name, ROWS).step)
    assert {variant_of(part.choice) for part in found.parts} == {3}
    assert set(alternatives.asked) == {part.region for part in found.parts}
    if name == "backwards":
        by_descent = Fakes(cut.regions)
        admitted(cut, by_descent, StepClock(flat(best=3)))
        once = list(dict.fromkeys(by_descent.asked))
        assert alternatives.asked == once[::-1]
