"""A candidate that a person gives up: its worker is killed, it has a verdict of its own, and the others go on."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentcompile.control.steering import Steering
from agentcompile.evaluation.evaluator import Baseline, EvaluationJob, Limits, Prepared, WorkerEvaluator
from agentcompile.events import CandidateAsked
from agentcompile.ir.trial import Cancelled
from agentcompile.measure import Timing
from tests.cpu import jobs

HANG = 'for (;;) asm volatile("");'
LONG = Limits(validate_s=300.0, measure_s=300.0)
"""A test that waits for one of these has failed."""
GIVE_UP_S = 1.0


@pytest.fixture
def steering() -> Iterator[Steering]:
    made = Steering()
    made.listen()
    yield made
    made.close()


@pytest.fixture
def evaluator(tmp_path: Path, steering: Steering) -> Iterator[WorkerEvaluator]:
    with WorkerEvaluator(
        jobs.target(), store=tmp_path / "s", toolchain=jobs.toolchain(), workers=2, limits=LONG, steering=steering
    ) as made:
        yield made


def give_up(steering: Steering, job: EvaluationJob) -> None:
    asked = CandidateAsked(what="cancel", region=job.candidate.region, candidate=job.candidate.id)
    threading.Timer(GIVE_UP_S, steering.see, [asked]).start()


def test_a_candidate_that_hangs_is_given_up_and_the_other_is_prepared(
    evaluator: WorkerEvaluator, steering: Steering
) -> None:
    good, bad = jobs.job(), jobs.job(HANG)
    give_up(steering, bad)
    begin = time.monotonic()
    found = {job.candidate.id: result for job, result in evaluator.prepare([bad, good])}
    assert time.monotonic() - begin < 120
    assert isinstance(found[good.candidate.id], Prepared)
    assert isinstance(found[bad.candidate.id], Cancelled)
    assert [slot.worker for slot in evaluator._pool.slots if slot.worker is not None and slot.worker.busy] == []


def test_an_arm_that_is_given_up_while_it_is_timed_is_named_and_the_others_are_timed(
    evaluator: WorkerEvaluator, steering: Steering, tmp_path: Path
) -> None:
    fuse = tmp_path / "armed"
    armed = f'if (rank == 0 && access("{fuse}", F_OK) == 0) {{ {HANG} }} right(a, rank, size);'
    good, bad = jobs.job(), jobs.job(armed)
    ready = {job.candidate.id: result for job, result in evaluator.prepare([good, bad])}
    arms = [Baseline(), *(one for one in (ready[job.candidate.id] for job in (bad, good)) if isinstance(one, Prepared))]
    assert len(arms) == 3
    fuse.touch()
    give_up(steering, bad)
    begin = time.monotonic()
    timing = evaluator.time(good.region, arms, rounds=3, residency="cache", seed=0, processes=1)
    assert time.monotonic() - begin < 120
    assert isinstance(timing, Timing)
    assert timing.live == (0, 2)
    assert timing.failed == ((1, Cancelled(stage="measure")),)
