"""Candidates that a person gives up or wants evaluated afresh, as one region's search carries it out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes import linear_region, measured, rows_template, target

from agentcompile.control.steering import Steering
from agentcompile.evaluation.jobs import EvaluationJob, Prepared
from agentcompile.evaluation.time_budget import any_time
from agentcompile.events import CandidateAsked, Event, Proposed, TrialFinished, TrialStarted
from agentcompile.ir.advice import Advice
from agentcompile.ir.template import Candidate
from agentcompile.ir.trial import (
    BuildFailed,
    Cancelled,
    Disturbed,
    Measured,
    Rejected,
    Trial,
    Verdict,
)
from agentcompile.planning.overrides import legal
from agentcompile.runs.progress import State, fold
from agentcompile.search import Budget, Proposal, SearchTask
from agentcompile.search.halving import Halving
from agentcompile.space import Space
from agentcompile.system.notes import Notes
from agentcompile.system.store import Store
from agentcompile.tuning.baselines import BaselineTimes
from agentcompile.tuning.jobs import JobMaker
from agentcompile.tuning.machine_trials import MachineTrials
from agentcompile.tuning.run_trials import RunTrials
from agentcompile.tuning.scheduler import TaskScheduler
from agentcompile.tuning.tasks import TuneTask
from agentcompile.tuning.trial_database import TrialDatabase
from agentcompile.tuning.tuner import Tuner
from tests.unit import runs


class AttemptEvaluator:
    """Builds nothing, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def prepare(
        self, jobs: Iterable[EvaluationJob], *, depth: str = "search"
    ) -> Iterator[tuple[EvaluationJob, Prepared | Verdict]]:
        for job in jobs:
            self.asked.append(job.candidate.id)
            yield job, BuildFailed(log="error: no")

    def build(self, jobs: Iterable[EvaluationJob]) -> Iterator[EvaluationJob]:
        for job in jobs:
            self.asked.append(job.candidate.id)
            yield job

    def time(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("nothing was prepared")


@pytest.fixture
def task() -> TuneTask:
    space = Space(linear_region(), [rows_template()], target())
    return TuneTask(region=space.region, space=space, advice=Advice(label="none"), residency="dram", floor_ns=1.0)


class Desk:
    """A tuner over a evaluator that remembers, with what it told."""

    def __init__(
        self,
        folder: Path,
        past: Sequence[Trial] = (),
        history: MachineTrials | None = None,
        earlier: State | None = None,
    ) -> None:
        self.evaluator, self.steering, self.told = AttemptEvaluator(), Steering(earlier), list[Event]()
        self.past = TrialDatabase(past, history, "p")
        notes = Notes(Store(folder / "store"))
        self.jobs = JobMaker(target())
        self.baselines = BaselineTimes(self.evaluator, notes, target(), "p", 0)  # type: ignore[arg-type]
        self.tuner = Tuner(
            self.jobs,
            self.evaluator,  # type: ignore[arg-type]
            self.past,
            self.baselines,
            notes,
            self.told.append,
            0,
            steering=self.steering,
            strategy="mcts:branching=3",
        )

    def scheduler(self, task: TuneTask) -> TaskScheduler:
        trials = RunTrials([task], self.jobs)
        return TaskScheduler(
            trials,
            self.tuner,
            self.baselines,
            "dram",
            lambda: 1.0,
            steering=self.steering,
            emit=self.told.append,
        )


def asked(what: str, candidate: str) -> CandidateAsked:
    return CandidateAsked(what=what, region="r", candidate=candidate)  # type: ignore[arg-type]


def test_a_candidate_that_was_given_up_is_not_evaluated(tmp_path: Path, task: TuneTask) -> None:
    desk = Desk(tmp_path)
    one, other, *_ = tuple(task.space)
    desk.steering.see(asked("cancel", one.id))
    trials = desk.tuner.evaluated(task, [one, other])
    assert [type(trial.verdict) for trial in trials] == [Cancelled, BuildFailed]
    assert desk.evaluator.asked == [other.id]
    told = {event.trial.candidate.id for event in desk.told if isinstance(event, TrialFinished)}
    assert told == {one.id, other.id}, "its verdict is an event as any"


def test_no_build_begins_when_time_is_up(tmp_path: Path, task: TuneTask) -> None:
    desk, candidates = Desk(tmp_path), tuple(task.space)
    assert len(candidates) > 3
    made = desk.tuner.built(task, candidates, lambda: 3.0 - len(desk.evaluator.asked))
    assert [job.candidate for job in made] == list(candidates[:3])
    assert desk.evaluator.asked == [one.id for one in candidates[:3]]


def test_what_is_evaluated_again_is_evaluated_as_if_it_had_never_been(tmp_path: Path, task: TuneTask) -> None:
    one, other, *_ = tuple(task.space)
    with MachineTrials(tmp_path / "history") as history:
        first = Desk(tmp_path, history=history)
        (known,) = first.tuner.evaluated(task, [one])
        desk = Desk(tmp_path, past=[known], history=history)
        assert desk.tuner.evaluated(task, [one]) == [known]
        assert desk.evaluator.asked == []
        assert isinstance(desk.tuner.evaluate_afresh(task, one)[0].verdict, BuildFailed)
        assert desk.evaluator.asked == [one.id]
        desk.tuner.evaluated(task, [one])
        assert desk.evaluator.asked == [one.id], "once is enough"
        desk.tuner.evaluated(task, [other])
        assert desk.evaluator.asked == [one.id, other.id]


def test_a_search_at_the_roofline_proposes_nothing_more(tmp_path: Path, task: TuneTask) -> None:
    desk, one = Desk(tmp_path), measured(next(iter(task.space)), 0.0)
    assert isinstance(one.verdict, Measured)
    at_floor = replace(task, floor_ns=float(one.verdict.measurement.median_ns))
    assert desk.tuner.search(at_floor, ByTwo(), Budget(trials=100), [one], any_time) == [one]
    assert desk.evaluator.asked == []
    assert len(desk.tuner.search(task, ByTwo(), Budget(trials=5), [one], any_time)) > 1


class ByTwo:
    def propose(self, task: SearchTask, trials: Sequence[Trial], budget: Budget) -> Proposal[Candidate]:
        left = [one for one in task.candidates if one.id not in {trial.candidate.id for trial in trials}]
        return Proposal(candidates=tuple(left[:2]), rounds=budget.rounds)


class Asking(ByTwo):
    """Consults about the first candidate before it proposes."""

    def propose(self, task: SearchTask, trials: Sequence[Trial], budget: Budget) -> Proposal[Candidate]:
        assert task.consult is not None
        task.consult((task.candidates[0].id,), 2)
        return super().propose(task, trials, budget)


def test_a_model_is_asked_only_while_there_is_time(tmp_path: Path, task: TuneTask) -> None:
    heard: list[tuple[str, tuple[str, ...], int, bool]] = []

    def consult(about: TuneTask, focus: tuple[str, ...], number: int, asks: bool) -> None:
        heard.append((about.region.id, focus, number, asks))

    desk, own, first = Desk(tmp_path), task.region.id, next(iter(task.space)).id
    notes = Notes(Store(tmp_path / "store"))
    parts = (desk.jobs, desk.evaluator, desk.past, desk.baselines, notes, desk.told.append, 0)
    tuner = Tuner(*parts, consult=consult)  # type: ignore[arg-type]
    times = iter([1.0, 1.0, 1.0, 1.0, 0.0, 0.0])
    tuner.search(task, Asking(), Budget(trials=100), [], lambda: next(times))
    assert heard == [(own, (first,), 2, True), (own, (first,), 2, True), (own, (first,), 2, False)]


def test_a_search_whose_time_is_up_goes_on_to_where_it_was(tmp_path: Path, task: TuneTask) -> None:
    first, looks = Desk(tmp_path), iter([1.0, 1.0, 0.0])
    made = first.tuner.search(task, ByTwo(), Budget(trials=100), [], lambda: next(looks))
    assert len(made) == len(first.evaluator.asked) == 4
    again = Desk(tmp_path, past=made)
    assert again.tuner.search(task, ByTwo(), Budget(trials=100), [], lambda: 0.0) == made
    assert again.evaluator.asked == []
    # A proposal of which something is new is not taken by half.
    part = Desk(tmp_path, past=made[:3])
    assert part.tuner.search(task, ByTwo(), Budget(trials=100), [], lambda: 0.0) == made[:2]
    assert part.evaluator.asked == []


def test_of_heads_beyond_what_there_is_time_for_only_known_ones_are_taken(tmp_path: Path, task: TuneTask) -> None:
    twin = replace(task.space.templates[0], id="linear/twin")
    space = Space(task.region, [*task.space.templates, twin], target())
    both = replace(task, space=space)
    known = Desk(tmp_path).tuner.first_trials(both, 8, 8)
    assert {trial.candidate.template for trial in known} == {"linear/rows", "linear/twin"}
    late = Desk(tmp_path)
    assert [trial.candidate for trial in late.tuner.first_trials(both, 8, 1)] == [known[0].candidate]
    assert len(late.evaluator.asked) == 1
    resumed = Desk(tmp_path, past=known)
    assert resumed.tuner.first_trials(both, 8, 1) == known
    assert resumed.tuner.first_trials(both, 1, 8) == known[:1]
    assert resumed.evaluator.asked == []


def test_what_a_person_gave_up_is_not_kept_for_other_runs(tmp_path: Path, task: TuneTask) -> None:
    with MachineTrials(tmp_path / "history") as history:
        past = TrialDatabase([], history, "p")
        one, other, *_ = tuple(task.space)
        past.keep(Trial(candidate=one, source="s", verdict=Cancelled(stage="build")))
        past.keep(Trial(candidate=other, source="s", verdict=runs.measured()))
        assert len(history) == 1


def test_what_somebody_else_killed_is_tried_again_by_a_resumed_run_and_by_later_ones(
    tmp_path: Path, task: TuneTask
) -> None:
    one, *_ = tuple(task.space)
    killed = Trial(candidate=one, source="s", verdict=Disturbed(stage="validate"), fidelity="confirm")
    with MachineTrials(tmp_path / "history") as history:
        TrialDatabase([], history, "p").keep(killed)
        assert len(history) == 0
        resumed = TrialDatabase([killed], history, "p")
        assert resumed.known(one, "s", "confirm", 1) is None
        assert resumed.failure(one, "s") is None


def test_the_source_that_goes_to_the_evaluator_can_be_read(tmp_path: Path, task: TuneTask) -> None:
    desk = Desk(tmp_path)
    one = next(iter(task.space))
    (trial,) = desk.tuner.evaluated(task, [one])
    (kept,) = (tmp_path / "store").rglob("*.source")
    assert kept.name == f"{trial.source}.source"
    assert "linear_rows" in kept.read_text()


def test_what_a_person_asks_for_is_evaluated_and_a_point_outside_the_space_rejected(
    tmp_path: Path, task: TuneTask
) -> None:
    desk = Desk(tmp_path)
    desk.steering.legal = legal({task.region.id: task.space})
    one, *_ = tuple(task.space)
    outside = replace(one, params=(("ROWS", 3), ("UNROLL", 1)))
    for point in (one, outside):
        desk.steering.see(CandidateAsked(what="edit", region=point.region, candidate=point.id, point=point))
    scheduler = desk.scheduler(task)
    scheduler.evaluate_requests()
    found = {event.trial.candidate: event.trial.verdict for event in desk.told if isinstance(event, TrialFinished)}
    assert isinstance(found[one], BuildFailed)
    assert isinstance(found[outside], Rejected)
    assert "ROWS" in found[outside].findings[0].text
    assert [trial.candidate for trial in scheduler.trials.of(task.region.id)] == [one]
    assert desk.steering.asked == ()


def test_trials_of_an_earlier_process_are_recalled_where_they_still_hold(tmp_path: Path, task: TuneTask) -> None:
    desk = Desk(tmp_path)
    one, other, third, *_ = tuple(task.space)
    good = Trial(candidate=one, source=desk.jobs.source(task, one).digest, verdict=runs.measured())
    stale = Trial(candidate=other, source="of another version", verdict=runs.measured())
    foreign = replace(good, candidate=replace(third, target="another machine"))
    trials = RunTrials([task], desk.jobs)
    trials.resume_from([good, stale, foreign])
    assert trials.by_region == {task.region.id: (good,)}
    assert desk.evaluator.asked == []


def test_what_was_prepared_ahead_is_prepared_once_and_has_its_trial_when_it_is_looked_at(
    tmp_path: Path, task: TuneTask
) -> None:
    desk = Desk(tmp_path)
    desk.tuner.prepare_first([task])
    (first,) = desk.evaluator.asked
    assert not [event for event in desk.told if isinstance(event, TrialFinished)], "nothing was timed beside it yet"
    trials = desk.tuner.first_trials(task, 1, 1)
    assert [(trial.candidate.id, type(trial.verdict)) for trial in trials] == [(first, BuildFailed)]
    assert desk.evaluator.asked == [first]
    resumed = Desk(tmp_path, past=trials)
    resumed.tuner.prepare_first([task])
    assert resumed.evaluator.asked == [], "what is known is not prepared"


def test_what_a_person_gave_up_is_given_up_though_it_was_prepared_ahead(tmp_path: Path, task: TuneTask) -> None:
    desk = Desk(tmp_path)
    desk.tuner.prepare_first([task])
    desk.steering.see(asked("cancel", desk.evaluator.asked[0]))
    assert [type(trial.verdict) for trial in desk.tuner.first_trials(task, 1, 1)] == [Cancelled]


def proposed(desk: Desk) -> list[Proposed]:
    return [event for event in desk.told if isinstance(event, Proposed)]


def goes_on(folder: Path, task: TuneTask, *before: Event) -> Desk:
    """A process that goes on with a run that reported these events."""
    past = [event.trial for event in before if isinstance(event, TrialFinished)]
    return Desk(folder, past=past, earlier=fold([replace(runs.FOUND, region=task.region.id), *before]))


def test_what_a_strategy_proposes_is_an_event_before_it_is_evaluated(tmp_path: Path, task: TuneTask) -> None:
    desk = Desk(tmp_path)
    trials = desk.tuner.search(task, Halving(), Budget(trials=10), [], any_time)
    first, second = proposed(desk)
    assert (first.region, first.strategy, first.rounds) == (task.region.id, "mcts:branching=3", 5)
    nodes = [*first.nodes, *second.nodes]
    assert [node.candidate for node in nodes] == [trial.candidate.id for trial in trials]
    assert {node.origin for node in nodes} == {"order"}
    places = {event: at for at, event in enumerate(desk.told)}
    assert places[first] < min(places[one] for one in desk.told if isinstance(one, (TrialStarted, TrialFinished)))


@pytest.mark.parametrize("cut", range(22))
def test_a_resumed_run_tells_of_each_proposal_once(cut: int, tmp_path: Path, task: TuneTask) -> None:
    whole = Desk(tmp_path)
    trials = whole.tuner.search(task, Halving(), Budget(trials=10), [], any_time)
    assert len(whole.told) > cut
    resumed = goes_on(tmp_path, task, *whole.told[:cut])
    assert resumed.tuner.search(task, Halving(), Budget(trials=10), [], any_time) == trials
    told = [*whole.told[:cut], *resumed.told]
    nodes = [node for event in told if isinstance(event, Proposed) for node in event.nodes]
    assert nodes == [node for event in proposed(whole) for node in event.nodes]


def test_trials_of_earlier_runs_are_proposed_in_this_one_too(tmp_path: Path, task: TuneTask) -> None:
    with MachineTrials(tmp_path / "history") as history:
        first = Desk(tmp_path, history=history)
        first.tuner.search(task, Halving(), Budget(trials=10), [], any_time)
        second = Desk(tmp_path, history=history)
        second.tuner.search(task, Halving(), Budget(trials=10), [], any_time)
    assert second.evaluator.asked == []
    assert proposed(second) == proposed(first)


def test_a_strategy_that_does_not_say_where_candidates_came_from_is_not_spoken_for(
    tmp_path: Path, task: TuneTask
) -> None:
    desk = Desk(tmp_path)
    desk.tuner.search(task, ByTwo(), Budget(trials=100), [], any_time)
    assert desk.evaluator.asked
    assert proposed(desk) == []
