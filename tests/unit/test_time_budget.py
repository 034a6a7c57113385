"""The wall time of a search and of the tuning of its steps, shared out; and what is said of it on the way."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest

from agentcompile.evaluation.time_budget import TimeBudget, any_time, floor_of, part_of
from agentcompile.events import Event, SearchProgress, StepsTimed, TrialFinished, Warned
from agentcompile.runs.tables import pace_line
from agentcompile.tuning.pace import Pace
from tests.unit import fakes
from tests.unit.runs import TIMING, measured, trial


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
        (20, 0, "about 24 s on a quiet machine$"),
        (60, 2, ""),
        (50, 2, "about 24 s on a quiet machine, 48 s beside the 2 threads of others that run now$"),
        (20, 1, ", 36 s beside the thread of others that run now$"),
        (math.inf, 9, ""),
    ],
)
def test_what_a_search_takes_at_least_is_said_as_the_machine_is_now(left_s: float, others: int, said: str) -> None:
    text = floor_of(20, left_s, others, cores=2)
    assert bool(text) == bool(said)
    assert re.search(said, text)
    assert not said or "one candidate of each of 20 regions" in text


def told(disturbed: float) -> list[Event]:
    clock, events = Clock(), list[Event]()
    pace = Pace(events.append, TimeBudget(60, fakes.target(), clock=clock), lambda best: sum(best.values()))
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
    pace = Pace(events.append, TimeBudget(60, fakes.target(), clock=clock), lambda best: sum(best.values()))
    pace(StepsTimed(steps="x", timing=TIMING))
    pace.improved({"a": 5.0})
    clock.now += 2
    pace.say()
    last = events[-1]
    assert isinstance(last, SearchProgress)
    assert (last.measured, last.step_ns) == (True, 10)
