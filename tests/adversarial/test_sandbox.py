"""Kernels that try to get out of the fence: each attempt is refused behind it, and works without it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from agentcompile.evaluation.evaluator import Baseline, Limits, Prepared, WorkerEvaluator
from agentcompile.ir.trial import BuildFailed, Crashed, Incorrect, TimedOut, Verdict
from agentcompile.measure import Timing
from agentcompile.sandbox import for_worker, methods
from tests.adversarial import escapes
from tests.cpu import jobs

LIMITS = Limits(build_s=60.0, validate_s=30.0, measure_s=30.0, per_gigabyte_s=20.0)
HASTY = replace(LIMITS, validate_s=8.0)

pytestmark = [
    pytest.mark.usefixtures("processes_themselves"),
    pytest.mark.skipif(
        not all(method.works for method in methods()), reason="; ".join(method.problem for method in methods())
    ),
]


@dataclass(frozen=True, kw_only=True)
class Place:
    """The folders of this test, and what an evaluator is made with."""

    home: Path
    outside: Path
    scratch: Path
    store: Path
    workers: int = 1

    def evaluator(self, *, fenced: bool, limits: Limits = LIMITS) -> WorkerEvaluator:
        return WorkerEvaluator(
            jobs.target(),
            store=self.store,
            # The compiler itself: what stands before it in tests is a script that writes to a folder of its own.
            toolchain=jobs.toolchain(os.environ.get("CXX_REAL", "")),
            workers=self.workers,
            limits=limits,
            memory_bytes=2 << 30,
            fence=for_worker(self.scratch) if fenced else None,
        )


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    root = tmp_path_factory.mktemp("sandbox")
    made = Place(home=root / "home", outside=root / "outside", scratch=root / "scratch", store=root / "store")
    for folder in (made.home, made.outside, made.scratch):
        folder.mkdir()
    for path in (made.home / "secret", made.outside / "file", made.outside / "doomed"):
        path.write_text("secret", encoding="ascii")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PLANTED_API_KEY", "a-secret-that-nobody-may-read")
        yield made


@pytest.fixture(scope="module")
def evaluator(place: Place) -> Iterator[WorkerEvaluator]:
    with place.evaluator(fenced=True) as made:
        assert isinstance(verdict(made, jobs.job()), Prepared)
        yield made


@pytest.fixture(scope="module")
def free(place: Place, evaluator: WorkerEvaluator) -> Iterator[WorkerEvaluator]:
    with place.evaluator(fenced=False) as made:
        yield made


@pytest.fixture(scope="module")
def behind(place: Place, evaluator: WorkerEvaluator) -> dict[str, int]:
    """What every attempt got behind the fence."""
    got = attempts(evaluator, place)
    time.sleep(1.0)
    assert not (place.outside / "daemon").exists()
    assert not list(place.scratch.iterdir())  # a worker's scratch is its own, and ends with it
    return got


@pytest.fixture(scope="module")
def without(place: Place, behind: dict[str, int], free: WorkerEvaluator) -> dict[str, int]:
    """What every attempt got without one, after all that were behind it."""
    return attempts(free, place)


def attempts(evaluator: WorkerEvaluator, place: Place) -> dict[str, int]:
    paths = {"HOME": place.home, "OUTSIDE": place.outside, "SCRATCH": place.scratch, "STORE": place.store}
    before = escapes.before({name: str(path) for name, path in paths.items()})
    found = verdict(evaluator, jobs.job(escapes.body(), name="escapes", before=before))
    assert isinstance(found, Crashed), found
    return escapes.table(found.detail)


def verdict(evaluator: WorkerEvaluator, job: jobs.EvaluationJob) -> Prepared | Verdict:
    ((_, found),) = evaluator.prepare([job])
    return found


@pytest.mark.parametrize("escape", escapes.ESCAPES, ids=lambda escape: escape.name)
def test_a_kernel_behind_the_fence_is_refused_what_works_without_it(
    escape: escapes.Escape, behind: dict[str, int], without: dict[str, int]
) -> None:
    assert (behind[escape.name], without[escape.name]) == (escape.fenced, escape.free)


def test_what_worked_left_its_traces_and_nothing_else_did(place: Place, without: dict[str, int]) -> None:
    assert not (place.outside / "doomed").exists()
    assert (place.outside / "new").exists()
    assert (place.store / "planted").exists()
    time.sleep(1.0)
    assert (place.outside / "daemon").exists()  # it outlived the worker, its group and the verdict


def test_a_right_kernel_has_the_same_verdict_on_both_sides(evaluator: WorkerEvaluator, free: WorkerEvaluator) -> None:
    fenced, plain = verdict(evaluator, jobs.job()), verdict(free, jobs.job())
    assert isinstance(fenced, Prepared)
    assert isinstance(plain, Prepared)
    assert (fenced.binary, fenced.report) == (plain.binary, plain.report)


def test_a_right_kernel_is_timed_behind_the_fence(evaluator: WorkerEvaluator) -> None:
    ((job, prepared),) = evaluator.prepare([jobs.job()], depth="accept")
    assert isinstance(prepared, Prepared), prepared
    found = evaluator.time(
        job.region, [Baseline(), prepared], rounds=2, residency="cache", seed=0, processes=1, claim=0.5
    )
    assert isinstance(found, Timing)
    assert found.live == (0, 1)


def test_a_kernel_that_kills_its_parent_is_refused_and_its_process_goes_on(evaluator: WorkerEvaluator) -> None:
    body = "if (rank == 0 && kill(getppid(), SIGKILL) == 0) std::abort(); right(a, rank, size);"
    assert isinstance(verdict(evaluator, jobs.job(body)), Prepared)


def test_a_kernel_that_takes_more_memory_than_its_limit_dies_alone(evaluator: WorkerEvaluator) -> None:
    body = """
        right(a, rank, size);
        if (rank == 0) {
            char* room = (char*)std::malloc(3l << 30);
            if (!room) std::abort();
            room[0] = a.x[0] > 0;
            std::free(room);
        }
    """
    found = verdict(evaluator, jobs.job(body))
    assert isinstance(found, Crashed), found
    assert found.detail.startswith("killed by SIGABRT")


def test_a_kernel_that_starts_a_background_thread_is_incorrect(evaluator: WorkerEvaluator) -> None:
    body = "right(a, rank, size); static bool once; if (rank == 0 && !once) { once = true; "
    body += "std::thread([] { for (;;) usleep(1000); }).detach(); }"
    found = verdict(evaluator, jobs.job(body))
    assert isinstance(found, Incorrect), found
    assert "process-state" in [check.name for check in found.report.checks if not check.ok]


def test_a_kernel_that_loops_for_ever_has_timed_out(place: Place, evaluator: WorkerEvaluator) -> None:
    with place.evaluator(fenced=True, limits=HASTY) as hasty:
        assert isinstance(verdict(hasty, jobs.job()), Prepared)
        found = verdict(hasty, jobs.job('for (;;) asm volatile("" ::: "memory");'))
        assert isinstance(found, TimedOut), found
        assert isinstance(verdict(hasty, jobs.job()), Prepared)


def test_every_job_gets_one_verdict_where_building_and_running_are_apart(
    place: Place, evaluator: WorkerEvaluator
) -> None:
    wrong = jobs.job("right(a, rank, size); if (rank == 0) a.y[0] += 1;")
    wanted = [jobs.job(), jobs.job("std::abort();"), wrong, jobs.library(), jobs.job("no text")]
    with replace(place, workers=2).evaluator(fenced=True) as pair:
        found = {job.candidate.id: found for job, found in pair.prepare(wanted)}
        assert [type(found[job.candidate.id]) for job in wanted] == [
            Prepared,
            Crashed,
            Incorrect,
            Prepared,
            BuildFailed,
        ]
        assert len(list(pair.build(wanted[:3]))) == 3
