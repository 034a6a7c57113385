"""What looks like the machine's fault and is the candidate's, and what looks like the candidate's and is not."""

from __future__ import annotations

import math
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agentcompile.build import find_toolchain
from agentcompile.build.toolchain import Toolchain
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.evaluation.evaluator import Baseline, EvaluationJob, Limits, Prepared, WorkerEvaluator
from agentcompile.ir.trial import Crashed, Disturbed, Incorrect, TimedOut, Verdict
from agentcompile.measure import Timing
from tests.cpu import jobs

LIMITS = Limits(build_s=30.0, validate_s=10.0, measure_s=20.0, per_gigabyte_s=20.0)
HASTY = replace(LIMITS, validate_s=3.0)
"""For kernels that hang."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that holds the executor and the canary."""
    path = tmp_path_factory.mktemp("store")
    with WorkerEvaluator(jobs.target(), store=path, toolchain=jobs.toolchain(), workers=1) as evaluator:
        assert isinstance(verdict(evaluator, jobs.job()), Prepared)
        assert isinstance(verdict(evaluator, jobs.job("std::abort();")), Crashed)
        assert isinstance(verdict(evaluator, jobs.job()), Prepared)
    return path


@pytest.fixture(scope="module")
def evaluator(store: Path) -> Iterator[WorkerEvaluator]:
    with made(store) as evaluator:
        yield evaluator


@pytest.fixture(scope="module")
def hasty(store: Path) -> Iterator[WorkerEvaluator]:
    with made(store, limits=HASTY) as evaluator:
        yield evaluator


def made(store: Path, toolchain: Toolchain | None = None, limits: Limits = LIMITS) -> WorkerEvaluator:
    toolchain = toolchain or jobs.toolchain()
    return WorkerEvaluator(
        jobs.target(), store=store, toolchain=toolchain, workers=1, limits=limits, memory_bytes=2 << 30
    )


def verdict(evaluator: WorkerEvaluator, job: EvaluationJob) -> Prepared | Verdict:
    ((_, found),) = evaluator.prepare([job])
    return found


UNLOADABLE = {
    "40 GB of BSS": ('static char room[40l << 30]; extern "C" char* see() { return room; }', "cannot be loaded"),
    "TLS too large": (
        '__attribute__((tls_model("initial-exec"))) thread_local char room[64 << 20]; '
        'extern "C" char* see() { return room; }',
        "TLS",
    ),
    "a constructor that leaves": ("__attribute__((constructor)) static void go() { _exit(3); }", "exit code 3"),
    "a constructor that aborts": ("__attribute__((constructor)) static void go() { std::abort(); }", "SIGABRT"),
}


@pytest.mark.parametrize("name", UNLOADABLE)
def test_a_library_that_cannot_be_loaded_is_a_verdict_with_the_loaders_words(
    evaluator: WorkerEvaluator, name: str
) -> None:
    before, words = UNLOADABLE[name]
    found = verdict(evaluator, jobs.job(before=before, name=name))
    assert isinstance(found, Crashed), found
    assert words in found.detail
    assert isinstance(verdict(evaluator, jobs.job()), Prepared)


@pytest.mark.alone
def test_a_constructor_that_does_not_end_has_timed_out(hasty: WorkerEvaluator) -> None:
    loop = '__attribute__((constructor)) static void go() { for (;;) asm volatile(""); }'
    assert isinstance(verdict(hasty, jobs.job(before=loop, name="loop")), TimedOut)


def test_a_library_without_its_entry_is_a_verdict(evaluator: WorkerEvaluator) -> None:
    hidden = '#define kernel other\nextern "C" void other(const args&, int, int);\n'
    found = verdict(evaluator, jobs.job(before=hidden, name="no entry"))
    assert isinstance(found, Crashed), found
    assert "has no entry 'kernel'" in found.detail


def test_a_file_that_lost_its_end_is_named_when_it_is_timed_and_the_others_are_timed(
    evaluator: WorkerEvaluator,
) -> None:
    found = [one for _, one in evaluator.prepare([jobs.job(), jobs.job(jobs.RIGHT + "/* cut */", name="cut")])]
    good, cut = (one for one in found if isinstance(one, Prepared))
    Path(cut.binary.path).write_bytes(Path(cut.binary.path).read_bytes()[:100])
    timing = evaluator.time(
        good.job.region, [Baseline(), cut, good], rounds=2, residency="cache", seed=0, processes=1, claim=0.5
    )
    assert isinstance(timing, Timing)
    ((at, death),) = timing.failed
    assert (at, timing.live) == (1, (0, 2))
    assert isinstance(death, Crashed)
    assert "cannot be loaded" in death.detail


def test_a_machine_whose_canary_fails_too_is_to_blame_itself(store: Path, tmp_path: Path) -> None:
    """The executor that candidates and canary run on is damaged."""
    damaged = shutil.copytree(store, tmp_path / "store")
    for library in damaged.glob("??/*.so"):
        if b"ac_decode_steps" in library.read_bytes():
            library.write_bytes(b"\x7fELF")
    with made(damaged) as evaluator, pytest.raises(AgentCompileError) as caught:
        verdict(evaluator, jobs.job())
    assert caught.value.exit_code is ExitCode.ENVIRONMENT
    assert "cannot be loaded" in caught.value.message


def soon(act: Callable[[], None], when: Callable[[], bool]) -> threading.Thread:
    """Do it in a thread as soon as something holds."""

    def wait() -> None:
        until = time.monotonic() + 20
        while not when() and time.monotonic() < until:
            time.sleep(0.005)
        act()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


ONCE = 'if (rank == 0 && access("{0}", F_OK)) {{ close(creat("{0}", 0600)); for (;;) pause(); }} right(a, rank, size);'
"""Waits for somebody who kills it, the first time alone."""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_candidate_whose_worker_somebody_killed_is_tried_again(
    evaluator: WorkerEvaluator, tmp_path: Path, number: signal.Signals
) -> None:
    mark, pool = tmp_path / "mark", evaluator._pool
    head = "#include <fcntl.h>\n"

    def kill() -> None:
        worker = pool.slots[0].worker
        assert worker is not None
        os.kill(worker.pid, number)

    thread = soon(kill, mark.exists)
    found = verdict(evaluator, jobs.job(ONCE.format(mark), before=head))
    thread.join()
    assert isinstance(found, Prepared), found


def test_a_candidate_whose_workers_ancestor_somebody_killed_is_tried_again(
    evaluator: WorkerEvaluator, tmp_path: Path
) -> None:
    mark = tmp_path / "mark"
    thread = soon(evaluator._pool._zygote._process.kill, mark.exists)
    found = verdict(evaluator, jobs.job(ONCE.format(mark), before="#include <fcntl.h>\n"))
    thread.join()
    assert isinstance(found, Prepared), found


@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM"])
def test_a_candidate_whose_workers_always_die_from_outside_is_disturbed_and_the_run_goes_on(
    evaluator: WorkerEvaluator, name: str
) -> None:
    found = verdict(evaluator, jobs.job(f"kill(getpid(), {name});"))
    assert isinstance(found, Disturbed), found
    assert name in found.detail
    assert isinstance(verdict(evaluator, jobs.job()), Prepared)


def test_an_arm_that_is_disturbed_while_it_is_timed_is_named_and_the_others_are_timed(
    evaluator: WorkerEvaluator, tmp_path: Path
) -> None:
    fuse = tmp_path / "armed"
    body = f'if (rank == 0 && !access("{fuse}", F_OK)) kill(getpid(), SIGKILL); right(a, rank, size);'
    found = [one for _, one in evaluator.prepare([jobs.job(), jobs.job(body)])]
    good, bad = (one for one in found if isinstance(one, Prepared))
    fuse.touch()
    arms = [Baseline(), bad, good]
    timing = evaluator.time(good.job.region, arms, rounds=2, residency="cache", seed=0, processes=1, claim=0.5)
    assert isinstance(timing, Timing)
    ((at, death),) = timing.failed
    assert (at, timing.live) == (1, (0, 2))
    assert isinstance(death, Disturbed)


def compiler(folder: Path, text: str) -> Toolchain:
    """A compiler that is a script."""
    path = folder / "c++"
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    return Toolchain(compiler=str(path), name="script")


def test_a_compiler_that_somebody_killed_is_run_again(tmp_path: Path) -> None:
    real, mark = find_toolchain().compiler, tmp_path / "mark"
    script = f'case "$*" in *kernel.cpp*) [ -e {mark} ] || {{ touch {mark}; kill -9 $$; }};; esac\nexec {real} "$@"'
    with made(tmp_path / "store", compiler(tmp_path, script)) as evaluator:
        assert list(evaluator.build([wanted := jobs.job()])) == [wanted]
    assert mark.exists()


def test_a_compiler_whose_programs_always_die_from_outside_is_no_failed_build(tmp_path: Path) -> None:
    words = "c++: fatal error: Killed signal terminated program cc1plus"
    with made(tmp_path / "store", compiler(tmp_path, f"echo '{words}' >&2; exit 1")) as evaluator:
        found = verdict(evaluator, jobs.job())
    assert isinstance(found, Disturbed), found
    assert found.stage == "build"
    assert words in found.detail


def test_an_error_without_bounds_is_incorrect_with_its_check(evaluator: WorkerEvaluator) -> None:
    nothing = "long zeros = 0; for (long k = 0; k < hidden; ++k) zeros += a.x[k] == 0;"
    body = f"right(a, rank, size); {nothing} if (rank == 0 && zeros == hidden) a.y[0] += 1;"
    ((_, found),) = evaluator.prepare([jobs.job(body)], depth="accept")
    assert isinstance(found, Incorrect), found
    assert math.isinf(found.report.error_ratio)
    assert "element" in [check.name for check in found.report.checks if not check.ok]


@pytest.mark.alone
def test_the_limit_of_an_acceptance_is_for_each_of_its_launches(hasty: WorkerEvaluator) -> None:
    assert isinstance(verdict(hasty, jobs.job()), Prepared)  # the worker has PyTorch by now
    slow = jobs.job("if (rank == 0) usleep(5000); right(a, rank, size);")
    hangs = jobs.job('static int calls = 0; if (rank == 0 && ++calls > 300) for (;;) asm volatile(""); ' + jobs.RIGHT)
    begin = time.monotonic()
    ((_, found),) = hasty.prepare([slow], depth="accept")
    assert isinstance(found, Prepared), found
    assert time.monotonic() - begin > HASTY.validate_s
    ((_, found),) = hasty.prepare([hangs], depth="accept")
    assert isinstance(found, TimedOut), found
