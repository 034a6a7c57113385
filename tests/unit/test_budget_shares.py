"""How the budget of a search is shared out among regions: by what each can still gain, as far as anybody knows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agentcompile.events import silent
from agentcompile.ir.advice import Advice, Diagnosis
from agentcompile.ir.template import Candidate
from agentcompile.ir.trial import Trial
from agentcompile.search import Budget, Proposal, SearchTask
from agentcompile.space import Space
from agentcompile.system.notes import Notes
from agentcompile.system.store import Store
from agentcompile.tuning.baselines import BaselineTimes
from agentcompile.tuning.jobs import JobMaker
from agentcompile.tuning.run_trials import RunTrials
from agentcompile.tuning.scheduler import LEAST, TaskScheduler
from agentcompile.tuning.tasks import TuneTask
from agentcompile.tuning.trial_database import TrialDatabase
from agentcompile.tuning.tuner import Tuner
from tests.architecture.test_add_strategy import Timekeeper
from tests.unit.fakes import linear_region, rows_template, target

BASELINE_NS = 100_000.0


class Asked:
    """A strategy that proposes nothing and remembers how many trials each region might have."""

    def __init__(self) -> None:
        self.trials: dict[str, int] = {}

    def propose(self, task: SearchTask, trials: Sequence[Trial], budget: Budget) -> Proposal[Candidate]:
        self.trials[task.candidates[0].region] = budget.trials
        return Proposal()


def task(rows: int, diagnosis: Diagnosis | None = None, floor_ns: float = 1.0) -> TuneTask:
    space = Space(linear_region(rows=rows), [rows_template()], target())
    advice = Advice(label="a model", diagnosis=diagnosis)
    return TuneTask(region=space.region, space=space, advice=advice, residency="dram", floor_ns=floor_ns)


def shares(folder: Path, tasks: Sequence[TuneTask], budget: int = 60) -> list[int]:
    """The trials that each of the tasks, which nothing is known of, may have."""
    evaluator: Any = Timekeeper()
    notes, jobs = Notes(Store(folder)), JobMaker(target())
    baselines = BaselineTimes(evaluator, notes, target(), "p", 0)
    for one in tasks:
        baselines.note(one.region.id, round(BASELINE_NS))
    tuner = Tuner(jobs, evaluator, TrialDatabase((), None, "p"), baselines, notes, silent, 0)
    trials = RunTrials(tasks, jobs)
    for one in tasks:
        trials.put(one.region.id, [])
    scheduler = TaskScheduler(trials, tuner, baselines, "dram", lambda: math.inf)
    asked = Asked()
    scheduler.search(tasks, budget, asked)
    return [asked.trials[one.region.id] for one in tasks]


def expecting(us: float | None) -> Diagnosis:
    return Diagnosis(limit="memory", evidence="", attainable_us=us)


def test_equal_regions_get_equal_shares_whatever_a_diagnosis_says_that_expects_nothing(tmp_path: Path) -> None:
    assert len(set(shares(tmp_path, [task(512), task(1024)]))) == 1
    assert len(set(shares(tmp_path, [task(512), task(1024, expecting(None))]))) == 1


def test_a_region_that_cannot_become_much_faster_gets_less_and_the_other_more(tmp_path: Path) -> None:
    even, _ = shares(tmp_path, [task(512), task(1024)])
    limited, promising = shares(tmp_path, [task(512, expecting(99.0)), task(1024, expecting(10.0))])
    assert limited < even < promising
    assert limited >= LEAST


@pytest.mark.parametrize("us", [1e-6, 1.0])
def test_nobody_expects_less_than_the_roofline_allows(tmp_path: Path, us: float) -> None:
    plain = shares(tmp_path, [task(512, floor_ns=50_000.0), task(1024)])
    assert shares(tmp_path, [task(512, expecting(us), floor_ns=50_000.0), task(1024)]) == plain


def test_an_adviser_that_expects_nothing_of_all_regions_takes_nothing_away(tmp_path: Path) -> None:
    found = shares(tmp_path, [task(512, expecting(1e9)), task(1024, expecting(1e9))])
    assert found == shares(tmp_path, [task(512), task(1024)])
