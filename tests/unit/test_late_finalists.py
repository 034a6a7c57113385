"""Finalists that are timed when time is up: in one process, unless a trial of several processes is known."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentcompile.build import Binary
from agentcompile.evaluation.jobs import EvaluationJob, Prepared
from agentcompile.ir.advice import Advice
from agentcompile.ir.trial import Crashed, NumericReport, Trial, Verdict
from agentcompile.measure import POLICY
from agentcompile.space import Space
from agentcompile.tuning.tasks import TuneTask
from tests.unit import runs
from tests.unit.fakes import linear_region, rows_template, target
from tests.unit.test_steered_tuning import Desk


@pytest.fixture
def task() -> TuneTask:
    space = Space(linear_region(), [rows_template()], target())
    return TuneTask(region=space.region, space=space, advice=Advice(label="none"), residency="dram", floor_ns=1.0)


def prepare(jobs: Iterable[EvaluationJob], *, depth: str = "search") -> Iterator[tuple[EvaluationJob, Prepared]]:
    report = NumericReport(checks=(), error_ratio=1.0, cases=1, repeats=1)
    for job in jobs:
        yield job, Prepared(job=job, binary=Binary(digest="d"), report=report)


@pytest.mark.parametrize(("left_s", "processes"), [(1.0, POLICY.confirm_processes), (0.0, 1), (-3.0, 1)])
def test_finalists_are_timed_in_one_process_once_time_is_up(
    tmp_path: Path, task: TuneTask, left_s: float, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk, asked, seconds = Desk(tmp_path), list[int](), list[float]()

    def time(*_: Any, **kept: Any) -> Verdict:
        asked.append(kept["processes"])
        seconds.append(kept["seconds"])
        return Crashed(stage="measure", signal=11)

    monkeypatch.setattr(desk.evaluator, "prepare", prepare)
    monkeypatch.setattr(desk.evaluator, "time", time)
    desk.tuner.confirmed(task, tuple(task.space)[:1], lambda: left_s)
    assert asked == [processes]
    assert seconds == [1.0]
    desk.tuner.evaluated(task, tuple(task.space)[1:2])
    assert asked == [processes, 1], "a search trial is made in one process at any time"


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_trial_of_several_processes_counts_before_a_late_one(
    tmp_path: Path, task: TuneTask, order: tuple[int, int]
) -> None:
    one, *_ = tuple(task.space)
    source, verdict = Desk(tmp_path).jobs.source(task, one).digest, runs.measured()

    def confirmed(processes: int) -> Trial:
        rounds = processes * POLICY.confirm_rounds
        timed = replace(verdict.measurement, rounds=rounds, asked=rounds, dropped=0, processes=processes)
        return replace(
            runs.trial(), candidate=one, source=source, fidelity="confirm", verdict=replace(verdict, measurement=timed)
        )

    both = [confirmed(1), confirmed(POLICY.confirm_processes)]
    desk = Desk(tmp_path, past=[both[at] for at in order])
    assert desk.tuner.confirmed(task, [one], lambda: 0.0) == [both[1]]
    late = Desk(tmp_path, past=both[:1])
    assert late.tuner.confirmed(task, [one], lambda: 0.0) == both[:1], "a late one is not timed again while it is late"


def test_finalists_take_one_process_where_the_last_ones_took_longer_than_is_left(
    tmp_path: Path, task: TuneTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk, asked, now = Desk(tmp_path), list[int](), [0.0]

    def time(*_: Any, **kept: Any) -> Verdict:
        asked.append(kept["processes"])
        now[0] += 4.0
        return Crashed(stage="measure", signal=11)

    monkeypatch.setattr(desk.evaluator, "prepare", prepare)
    monkeypatch.setattr(desk.evaluator, "time", time)
    for at, end_s in enumerate((1.0, 7.0, 13.0)):
        desk.tuner.confirmed(task, tuple(task.space)[at : at + 1], lambda end_s=end_s: end_s - now[0])  # type: ignore[misc]
    assert asked == [POLICY.confirm_processes, 1, POLICY.confirm_processes], "1 s and nothing known; 3 s; 5 s"
