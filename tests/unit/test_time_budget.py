"""The wall time of a search and of the tuning of its steps, shared out; and what is said of it on the way."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from agentcompile.evaluation.stopwatch import Stopwatch
from agentcompile.evaluation.time_budget import TimeBudget, acceptance_s, any_time, floor_of, part_of
from agentcompile.events import Event, PlanAdmitted, SearchProgress, StageFinished, StepsTimed, TrialFinished, Warned
from agentcompile.ir.codec import decode
from agentcompile.ir.graph import Phase
from agentcompile.runs.tables import overhead_line, pace_line
from agentcompile.tuning.pace import Pace
from tests.unit import fakes
from tests.unit.runs import PLAN, TIMING, measured, trial


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_search_confirmation_and_tuning_end_one_after_another_within_the_time() -> None:
    clock = Clock()
    budget = TimeBudget(100, fakes.target(), clock=clock)
    lasts = (budget.searching(), budget.confirming(), budget.tuning(), budget.left())
    assert 0 < lasts[0] < lasts[1] < lasts[2] < lasts[3] == 100
    clock.now += 95
    assert budget.tuning() < 0 < budget.left()
    assert budget.elapsed_s == 95


def test_what_earlier_processes_of_the_run_used_is_used() -> None:
    assert TimeBudget(100, fakes.target(), spent_s=30, clock=Clock()).left() == 70


def test_no_seconds_are_any() -> None:
    budget = TimeBudget(0, fakes.target(), clock=Clock())
    assert budget.left() == budget.searching() == budget.tuning() == math.inf


def test_a_part_of_the_time_ends_when_its_share_is_used() -> None:
    clock = Clock()
    budget = TimeBudget(100, fakes.target(), clock=clock)
    quarter = part_of(budget.left, 0.25)
    assert quarter() == pytest.approx(25)
    clock.now += 30
    assert quarter() == pytest.approx(-5)
    assert part_of(any_time, 0.5)() == math.inf
    clock.now += 100
    assert part_of(budget.left, 0.5)() <= 0


@pytest.mark.parametrize(
    ("left_s", "others", "said"),
    [
        (60, 0, ""),
        (20, 0, "about 40 s on a quiet machine$"),
        (60, 2, ""),
        (50, 2, ""),
        (39, 2, "about 40 s on a quiet machine, 80 s beside the 2 threads of others that run now$"),
        (20, 1, ", 60 s beside the thread of others that run now$"),
        (math.inf, 9, ""),
    ],
)
def test_what_a_search_takes_at_least_is_said_as_the_machine_is_now(left_s: float, others: int, said: str) -> None:
    text = floor_of(20, left_s, others, 2, "cpu")
    assert bool(text) == bool(said)
    assert re.search(said, text)
    assert not said or "one candidate of each of 20 regions" in text


def test_large_kernels_that_will_be_accepted_count_to_what_a_search_takes_at_least() -> None:
    kernels: list[tuple[Phase, int]] = [("decode", 200_000_000)] * 10
    assert floor_of(20, 60, 0, 2, "cpu") == floor_of(20, math.inf, 0, 2, "cpu", kernels) == ""
    text = floor_of(20, 60, 2, 2, "cpu", kernels)
    said = re.search(r"about (\d+) s on a quiet machine, (\d+) s beside the 2", text)
    assert said
    assert 40 < int(said[1]) <= int(said[2]) / 1.9


def test_a_search_for_a_gpu_says_how_long_acceptance_takes() -> None:
    assert "about 152 s on a quiet machine" in floor_of(19, 0.4 * 25, 0, 16, "cuda")
    assert floor_of(19, 0.4 * 160, 0, 16, "cuda") == ""


def told(disturbed: float) -> list[Event]:
    clock, events = Clock(), list[Event]()
    budget = TimeBudget(60, fakes.target(), clock=clock)
    pace = Pace(events.append, budget, lambda best: sum(best.values()), Stopwatch(clock))
    for number in range(30):
        clock.now += 0.5
        verdict = measured()
        verdict = replace(verdict, measurement=replace(verdict.measurement, rounds=5, disturbed=disturbed))
        pace(TrialFinished(trial=trial(number, verdict)))
    pace.improved({"a": 300.0, "b": 700.0})
    clock.now += 2
    pace.say()
    return events


def test_progress_says_time_candidates_and_the_best_step_at_most_once_a_second() -> None:
    said = [event for event in told(0.0) if isinstance(event, SearchProgress)]
    assert 14 <= len(said) <= 17
    last = said[-1]
    assert (last.elapsed_s, last.eta_s, last.candidates, last.step_ns) == (17.0, 43.0, 30, 1000)
    assert pace_line(last) == "43 s left, 30 candidates, step about 1 µs"


def test_a_busy_machine_is_called_so_once_and_in_every_line() -> None:
    events = told(0.61)
    (warning,) = [event for event in events if isinstance(event, Warned)]
    assert warning.text.startswith("machine busy: 61% of the rounds disturbed")
    assert events.index(warning) < 6
    last = [event for event in events if isinstance(event, SearchProgress)][-1]
    assert pace_line(last).endswith("machine busy: 61% of the rounds disturbed")


def test_a_step_as_it_was_measured_stands_over_estimates() -> None:
    clock, events = Clock(), list[Event]()
    budget = TimeBudget(60, fakes.target(), clock=clock)
    pace = Pace(events.append, budget, lambda best: sum(best.values()), Stopwatch(clock))
    pace(StepsTimed(steps="x", timing=TIMING))
    pace.improved({"a": 5.0})
    clock.now += 2
    pace.say()
    last = events[-1]
    assert isinstance(last, SearchProgress)
    assert (last.measured, last.step_ns) == (True, 10)


def test_the_step_that_progress_tells_is_the_first_plan_s_and_never_a_chunk() -> None:
    events = list[Event]()
    pace = Pace(events.append, TimeBudget(60, fakes.target(), clock=Clock()), lambda best: 0.0, Stopwatch(Clock()))
    regime = PLAN.regime
    longer = replace(regime, context=(regime.context[1] + 1, 4 * regime.context[1]))
    pace(PlanAdmitted(plan=replace(PLAN, step_ns=70)))
    pace(StepsTimed(steps="of a chunk", timing=TIMING))
    pace(PlanAdmitted(plan=replace(PLAN, regime=longer, step_ns=90)))
    pace(PlanAdmitted(plan=replace(PLAN, regime=replace(regime, phase="prefill"), step_ns=5000)))
    pace(StageFinished(stage="admit"))
    (*_, last) = (event for event in events if isinstance(event, SearchProgress))
    assert (last.measured, last.step_ns) == (True, 70)
    pace(PlanAdmitted(plan=replace(PLAN, step_ns=60)))
    pace(StageFinished(stage="admit"))
    (*_, last) = (event for event in events if isinstance(event, SearchProgress))
    assert last.step_ns == 60, "it was timed again"


class Evaluator:
    """Takes 2 s for every job, as a stopwatch sees it; a job that it takes from its source takes 5 s to make."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.waiting = clock, Stopwatch(clock)

    def jobs(self) -> Iterator[int]:
        for job in range(3):
            self.clock.now += 5
            yield job

    def prepare(self) -> Iterator[int]:
        def results(jobs: Iterator[int]) -> Iterator[int]:
            for job in jobs:
                self.clock.now += 2
                yield job

        return self.waiting.during(results(self.waiting.during(self.jobs(), runs=False)))


def reports(spent_s: float = 0.0) -> list[SearchProgress]:
    """What a search says that waits for 6 s, makes jobs for 15 s and uses their results for 3 s, and long after it."""
    clock, events = Clock(), list[Event]()
    evaluator = Evaluator(clock)
    with evaluator.waiting.running():
        clock.now += 40
    budget = TimeBudget(0, fakes.target(), spent_s=spent_s, clock=clock)
    pace = Pace(events.append, budget, lambda best: 0.0, evaluator.waiting)
    for _ in evaluator.prepare():
        clock.now += 1
    pace(StageFinished(stage="admit"))
    clock.now += 100
    pace.say()
    return [event for event in events if isinstance(event, SearchProgress)]


def test_the_overhead_of_a_search_is_all_but_the_time_of_the_evaluators_calls() -> None:
    told = reports()[0]
    assert (told.elapsed_s, told.overhead_s) == (24.0, 18.0)
    assert overhead_line(told) == "search and step tuning: 24.0 s, 18.0 s of it (75.0%) beside building and timing"


def test_what_earlier_processes_of_the_run_used_is_no_overhead_of_this_one() -> None:
    told = reports(spent_s=100)[0]
    assert (told.elapsed_s, told.overhead_s) == (124.0, 18.0)


def test_what_comes_after_step_tuning_is_no_overhead_of_the_search() -> None:
    assert [told.overhead_s for told in reports()] == [18.0, 18.0]


def test_an_overhead_is_never_negative_even_when_the_clock_is_set_back() -> None:
    clock, events = Clock(), list[Event]()
    watch = Stopwatch(clock)
    pace = Pace(events.append, TimeBudget(60, fakes.target(), clock=clock), lambda best: 0.0, watch)
    with watch.running():
        clock.now += 10
    clock.now -= 9
    pace.say()
    assert isinstance(events[0], SearchProgress)
    assert events[0].overhead_s == 0.0


def test_a_stopwatch_goes_on_as_before_after_a_block_and_after_an_error() -> None:
    clock = Clock()
    watch = Stopwatch(clock)

    def fails() -> None:
        with watch.running():
            clock.now += 1
            with watch.running(False):
                clock.now += 10
            clock.now += 1
            assert watch.seconds == 2
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fails()
    clock.now += 100
    assert watch.seconds == 2
    assert list(watch.during([])) == []


def test_progress_from_before_overhead_was_measured_is_read_and_has_none() -> None:
    old = {"kind": "search-progress", "elapsed_s": 3.0, "budget_s": 0.0, "candidates": 1, "step_ns": 0}
    told: SearchProgress = decode(SearchProgress, old)  # type: ignore[arg-type]
    assert told.overhead_s is None
    assert overhead_line(told) == ""


def test_the_time_of_acceptance_is_estimated_alike_beside_other_processes() -> None:
    """Products of several threads, which wait for one another there, took a hundred times as long."""
    work = [("decode", 50_000_000), ("prefill", 3_000_000_000)]
    quiet = acceptance_s(work, 0, 2)  # type: ignore[arg-type]
    code = "while True: pass"
    spinning = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(2 * len(os.sched_getaffinity(0)))]
    try:
        time.sleep(0.5)
        busy = acceptance_s(work, 0, 2)  # type: ignore[arg-type]
    finally:
        for one in spinning:
            one.kill()
            one.wait()
    assert quiet / 4 < busy < 4 * quiet
    assert acceptance_s(work, 2, 2) > acceptance_s(work[:1], 0, 2) > 0.2  # type: ignore[arg-type]
    assert acceptance_s([], 0, 2) == 0.0
