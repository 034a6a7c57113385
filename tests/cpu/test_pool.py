"""Processes in which finalists are timed: fresh, and kept from one region to the next where making them takes long."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentcompile.evaluation.evaluator import Baseline, Prepared, WorkerEvaluator
from agentcompile.measure import Timing
from agentcompile.measure.clock import waited_s
from agentcompile.worker.process import Expired
from agentcompile.worker.protocol import Alive, Canary
from tests.cpu import jobs


@pytest.fixture
def evaluator(tmp_path: Path) -> Iterator[WorkerEvaluator]:
    with WorkerEvaluator(jobs.target(), store=tmp_path, toolchain=jobs.toolchain(), workers=1) as made:
        yield made


def timed(evaluator: WorkerEvaluator, processes: int) -> list[int]:
    """Times a kernel beside PyTorch; the processes that it leaves: of the clock, then of the witnesses."""
    ((job, prepared),) = evaluator.prepare([jobs.job()])
    assert isinstance(prepared, Prepared)
    found = evaluator.time(
        job.region, [Baseline(), prepared], rounds=2, residency="cache", seed=0, processes=processes, claim=0.5
    )
    assert isinstance(found, Timing)
    assert len(found.processes) == processes
    slots = [evaluator._pool.clock, *evaluator._pool._witnesses]
    return [slot.worker.pid if slot.worker else 0 for slot in slots]


def test_witnesses_of_a_device_are_kept_apart_from_the_search_and_replaced_when_they_die(
    evaluator: WorkerEvaluator,
) -> None:
    evaluator._fragile = True  # as on a GPU
    searching, *none = timed(evaluator, 1)
    assert searching
    assert none == []
    clock, *first = timed(evaluator, 2)
    assert clock == searching
    assert len({clock, *first}) == 3
    assert timed(evaluator, 2) == [clock, *first]
    dead = evaluator._pool.witness(0).worker
    assert dead is not None
    dead.kill()
    _, fresh, same = timed(evaluator, 2)
    assert fresh not in (0, first[0])
    assert same == first[1]


def test_a_cpu_times_its_finalists_in_processes_of_their_own(evaluator: WorkerEvaluator) -> None:
    before = timed(evaluator, 1)
    after = timed(evaluator, 2)
    assert len(before) == len(after) == 1
    assert before != after


def spinning() -> subprocess.Popen[bytes]:
    code = "import os\nos.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\nwhile True: pass"
    return subprocess.Popen([sys.executable, "-c", code])


def test_a_process_that_shares_a_processor_waits_for_it() -> None:
    ours, other = spinning(), spinning()
    try:
        time.sleep(2.0)
        assert waited_s(ours.pid) > 0.3
    finally:
        for one in (ours, other):
            one.kill()
            one.wait()
    assert waited_s(ours.pid) == 0.0, "it is gone"


@pytest.mark.parametrize(("share", "least_s", "most_s"), [(0.0, 1.0, 1.9), (0.5, 2.0, 2.9), (1.0, 3.0, 5.0)])
def test_a_limit_leaves_out_what_a_worker_waited_for_a_processor(
    evaluator: WorkerEvaluator, monkeypatch: pytest.MonkeyPatch, share: float, least_s: float, most_s: float
) -> None:
    """A limit of 1 s, of a worker that waits for such a share of the time: 1 ÷ (1 - share) s, and 3 s at most."""
    worker = evaluator._pool.worker(evaluator._pool.slots[0])
    assert isinstance(worker.answer(Canary(), limit_s=60.0), Alive)
    monkeypatch.setattr("agentcompile.worker.process.waited_s", lambda pid: share * time.monotonic())
    os.kill(worker.pid, signal.SIGSTOP)
    begin = time.monotonic()
    assert worker.answer(Canary(), limit_s=1.0) == Expired(limit_s=1.0)
    assert least_s <= time.monotonic() - begin < most_s
