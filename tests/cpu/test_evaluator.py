"""The evaluator with real processes: whatever a kernel does, it becomes a verdict, and the run goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.evaluation.evaluator import Baseline, EvaluationJob, Limits, Prepared, WorkerEvaluator
from agentcompile.ir.trial import BuildFailed, Crashed, Incorrect, TimedOut, Verdict
from agentcompile.measure import POLICY, Timing, contrast, measurement
from tests.cpu import jobs

ROOT = Path(__file__).parents[2]
LIMITS = Limits(build_s=30.0, validate_s=20.0, measure_s=20.0, per_gigabyte_s=20.0)
HANG = 'for (;;) asm volatile("");'


@pytest.fixture(scope="module")
def evaluator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerEvaluator]:
    with jobs.evaluator(tmp_path_factory.mktemp("store"), LIMITS) as made:
        yield made


def verdict(evaluator: WorkerEvaluator, job: EvaluationJob) -> Prepared | Verdict:
    ((same, found),) = evaluator.prepare([job])
    assert same is job
    return found


def prepared(evaluator: WorkerEvaluator, *wanted: EvaluationJob) -> list[Prepared]:
    found = dict(evaluator.prepare(wanted))
    made = [found[job] for job in wanted]
    assert all(isinstance(one, Prepared) for one in made), made
    return [one for one in made if isinstance(one, Prepared)]


def test_a_right_kernel_and_a_library_call_are_prepared(evaluator: WorkerEvaluator) -> None:
    for job in (jobs.job(), jobs.library("mv")):
        found = verdict(evaluator, job)
        assert isinstance(found, Prepared), found
        assert found.report.ok


def test_a_wrong_kernel_is_incorrect_and_says_which_check(evaluator: WorkerEvaluator) -> None:
    found = verdict(evaluator, jobs.job("right(a, rank, size); if (rank == 0) a.y[3] *= 1.001f;"))
    assert isinstance(found, Incorrect)
    assert any(not check.ok for check in found.report.checks)


def test_text_that_does_not_compile_is_a_failed_build_with_the_compilers_words(evaluator: WorkerEvaluator) -> None:
    found = verdict(evaluator, jobs.job("this is no C++"))
    assert isinstance(found, BuildFailed)
    assert "error" in found.log
    assert "/" not in found.log.split("kernel.cpp")[0]


DEATHS = [
    ("*(volatile int*)16 = 1;", signal.SIGSEGV, "SIGSEGV"),
    ("std::abort();", signal.SIGABRT, "SIGABRT"),
    ("__builtin_trap();", signal.SIGILL, "SIGILL"),
    ("std::raise(SIGFPE);", signal.SIGFPE, "SIGFPE"),
    ("std::raise(SIGBUS);", signal.SIGBUS, "SIGBUS"),
    ("_exit(0);", 0, "exit code 0"),
    ("_exit(3);", 0, "exit code 3"),
    ('std::fprintf(stderr, "last \\x1bwords"); std::fflush(stderr); std::abort();', signal.SIGABRT, "last words"),
    # Memory without end: the limit turns it into a null pointer, and never into a machine out of memory.
    (
        "for (;;) { auto p = (volatile char*)std::malloc(1 << 26); for (int i = 0; i < 1 << 26; i += 4096) p[i] = 1; }",
        signal.SIGSEGV,
        "SIGSEGV",
    ),
]


@pytest.mark.parametrize(("body", "number", "words"), DEATHS, ids=[words for _, _, words in DEATHS])
def test_a_kernel_that_takes_its_process_down_has_crashed(
    evaluator: WorkerEvaluator, body: str, number: int, words: str
) -> None:
    found = verdict(evaluator, jobs.job(body))
    assert isinstance(found, Crashed), found
    assert (found.stage, found.signal) == ("validate", number)
    assert words in found.detail
    assert isinstance(verdict(evaluator, jobs.job()), Prepared)


def test_a_kernel_that_calls_exit_has_crashed_however_the_destructors_end(evaluator: WorkerEvaluator) -> None:
    assert isinstance(verdict(evaluator, jobs.job("std::exit(0);")), Crashed)


@pytest.mark.alone
def test_a_kernel_that_hangs_has_timed_out_and_the_run_goes_on(evaluator: WorkerEvaluator) -> None:
    begin = time.monotonic()
    found = dict(evaluator.prepare([jobs.job(HANG), jobs.job()]))
    assert {type(one) for one in found.values()} == {TimedOut, Prepared}
    assert time.monotonic() - begin < LIMITS.validate_s + 60, "on a busy machine the other takes a while too"


def test_a_kernel_that_prints_breaks_no_frame(evaluator: WorkerEvaluator) -> None:
    body = 'if (rank == 0) { std::printf("acf1 garbage\\n"); std::fflush(stdout); write(1, "acf1", 4); } ' + jobs.RIGHT
    assert isinstance(verdict(evaluator, jobs.job(body)), Prepared)


def test_a_kernel_that_floods_its_log_is_still_evaluated(evaluator: WorkerEvaluator) -> None:
    body = 'if (rank == 0) for (int i = 0; i < 200; ++i) std::fprintf(stderr, "%01000d\\n", i); ' + jobs.RIGHT
    assert isinstance(verdict(evaluator, jobs.job(body)), Prepared)


@pytest.mark.parametrize("text", ["garbage that is no frame", "acf1"])
def test_a_kernel_that_writes_into_every_pipe_has_crashed(evaluator: WorkerEvaluator, text: str) -> None:
    body = f'for (int fd = 3; fd < 64; ++fd) write(fd, "{text}", {len(text)}); right(a, rank, size);'
    found = verdict(evaluator, jobs.job(body))
    assert isinstance(found, (Crashed, TimedOut)), found
    assert isinstance(verdict(evaluator, jobs.job()), Prepared)


def test_a_kernel_that_closes_every_pipe_has_crashed(evaluator: WorkerEvaluator) -> None:
    found = verdict(evaluator, jobs.job("for (int fd = 0; fd < 64; ++fd) close(fd); right(a, rank, size);"))
    assert isinstance(found, (Crashed, TimedOut)), found
    assert isinstance(verdict(evaluator, jobs.job()), Prepared)


def test_what_a_kernel_starts_dies_with_its_worker(evaluator: WorkerEvaluator, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    fork = f'if (rank == 0 && fork() == 0) {{ FILE* f = std::fopen("{note}", "w"); std::fprintf(f, "%d", getpid());'
    found = verdict(evaluator, jobs.job(fork + " std::fclose(f); for (;;) pause(); } std::abort();"))
    assert isinstance(found, Crashed)
    deadline = time.monotonic() + 5
    while note.exists() and _lives(int(note.read_text() or "0")) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not note.exists() or not _lives(int(note.read_text() or "0"))


def test_every_job_gets_one_verdict_whatever_the_others_do(evaluator: WorkerEvaluator) -> None:
    wanted = [jobs.job(), jobs.job("std::abort();"), jobs.job("nonsense"), jobs.library(), jobs.job("a.y[0] = 1;")]
    wanted += [jobs.job(name=f"again {i}") for i in range(4)]
    found = dict(evaluator.prepare(iter(wanted)))
    assert set(found) == set(wanted)
    assert sum(isinstance(one, Prepared) for one in found.values()) == 6


def test_a_reader_who_stops_early_leaves_no_work_behind(evaluator: WorkerEvaluator) -> None:
    results = evaluator.prepare([jobs.job(name=f"early {i}") for i in range(6)])
    next(results)
    results.close()  # type: ignore[attr-defined]
    assert isinstance(verdict(evaluator, jobs.job()), Prepared)


@pytest.mark.alone
def test_timing_may_interrupt_preparing(evaluator: WorkerEvaluator) -> None:
    (ready,) = prepared(evaluator, jobs.job())
    results = evaluator.prepare([jobs.job(name=f"paused {i}") for i in range(4)])
    first = next(results)
    timing = evaluator.time(ready.job.region, [Baseline(), ready], rounds=2, residency="cache", seed=0, processes=1)
    assert isinstance(timing, Timing)
    assert len([first, *results]) == 4


@pytest.mark.alone
def test_a_kernel_is_timed_beside_pytorch_in_fresh_processes(evaluator: WorkerEvaluator) -> None:
    ready, library = prepared(evaluator, jobs.job(), jobs.library("mv"))
    arms = [Baseline(), ready, library]
    timing = evaluator.time(ready.job.region, arms, rounds=4, residency="cache", seed=1, processes=3)
    assert isinstance(timing, Timing)
    assert timing.arms == ("pytorch", ready.job.candidate.label, library.job.candidate.label)
    assert (timing.live, timing.failed, len(timing.processes)) == ((0, 1, 2), (), 3)
    most = round((1 + POLICY.more_rounds) * 4)  # those that others on the machine disturb are replaced by more
    assert all(4 <= len(process.rounds) <= most for process in timing.processes)
    found = measurement(timing, 1, 0, bytes=ready.job.region.cost.bytes, claim=0.005)
    assert 0 < found.median_ns < found.baseline_ns


@pytest.mark.alone
def test_weights_in_memory_are_timed_on_copies_that_no_cache_holds(evaluator: WorkerEvaluator) -> None:
    (ready,) = prepared(evaluator, jobs.job(hidden=512, rows=1024))
    arms = [Baseline(), ready]
    hot = evaluator.time(ready.job.region, arms, rounds=5, residency="cache", seed=1, processes=1)
    cold = evaluator.time(ready.job.region, arms, rounds=5, residency="dram", seed=1, processes=1)
    assert isinstance(hot, Timing)
    assert isinstance(cold, Timing)
    assert (hot.residency, cold.residency) == ("cache", "dram")


ARMED = 'if (rank == 0 && access("{}", F_OK) == 0) {{ {} }} right(a, rank, size);'


@pytest.mark.alone
@pytest.mark.parametrize(("deed", "kind"), [("std::abort();", Crashed), (HANG, TimedOut)])
def test_an_arm_that_dies_while_it_is_timed_is_named_and_the_others_are_timed(
    tmp_path: Path, deed: str, kind: type[Verdict]
) -> None:
    fuse = tmp_path / "armed"
    limits = Limits(measure_s=3.0, per_gigabyte_s=0.0)
    with WorkerEvaluator(
        jobs.target(), store=tmp_path / "s", toolchain=jobs.toolchain(), workers=2, limits=limits
    ) as evaluator:
        good, bad = prepared(evaluator, jobs.job(), jobs.job(ARMED.format(fuse, deed)))
        fuse.touch()
        timing = evaluator.time(
            good.job.region, [Baseline(), bad, good], rounds=3, residency="cache", seed=0, processes=1
        )
        assert isinstance(timing, Timing)
        ((index, verdict),) = timing.failed
        assert (index, timing.live) == (1, (0, 2))
        assert isinstance(verdict, kind)
        assert contrast(timing, 2, 0, claim=0.005).rounds >= 0
        assert all(len(round.intervals_ns) == 2 for process in timing.processes for round in process.rounds)


def test_a_worker_that_is_killed_from_outside_is_replaced(evaluator: WorkerEvaluator) -> None:
    prepared(evaluator, jobs.job())
    for worker in [slot.worker for slot in evaluator._pool.slots if slot.worker]:
        os.kill(worker.pid, signal.SIGKILL)
    time.sleep(0.2)
    assert isinstance(verdict(evaluator, jobs.job()), Prepared)


def test_a_zygote_that_is_killed_is_replaced(evaluator: WorkerEvaluator) -> None:
    prepared(evaluator, jobs.job())
    zygote = evaluator._pool._zygote._process
    zygote.kill()
    zygote.wait()
    time.sleep(0.2)
    assert isinstance(verdict(evaluator, jobs.job()), Prepared)


def test_a_store_that_cannot_be_written_is_an_environment_error(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("", encoding="utf-8")
    with (
        WorkerEvaluator(jobs.target(), store=tmp_path / "store", toolchain=jobs.toolchain(), workers=1) as evaluator,
        pytest.raises(AgentCompileError) as caught,
    ):
        list(evaluator.prepare([jobs.job()]))
    assert caught.value.exit_code is ExitCode.ENVIRONMENT
    assert caught.value.hint


PARENT = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(ROOT)!r})
from agentcompile.evaluation.evaluator import Limits, Prepared, WorkerEvaluator
from tests.cpu import jobs
evaluator = WorkerEvaluator(jobs.target(), store=Path(sys.argv[1]), toolchain=jobs.toolchain(), workers=2,
                    limits=Limits(validate_s=300))
list(evaluator.prepare([jobs.job(), jobs.library()]))
pids = [evaluator._pool._zygote._process.pid] + [slot.worker.pid for slot in evaluator._pool.slots if slot.worker]
print(*pids, flush=True)
list(evaluator.prepare([jobs.job({HANG!r})]))
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_no_process_outlives_the_evaluator(tmp_path: Path, how: signal.Signals) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert parent.stdout is not None
    pids = [int(word) for word in parent.stdout.readline().split()]
    assert len(pids) >= 2
    time.sleep(0.3)
    parent.send_signal(how)
    parent.wait(20)
    parent.stdout.close()
    deadline = time.monotonic() + 10
    while any(_lives(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert [pid for pid in pids if _lives(pid)] == []


def _lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except OSError:
        return False
    return state != "Z"


@pytest.mark.alone
def test_workers_in_stock_are_used_once_each_and_not_when_they_died(evaluator: WorkerEvaluator) -> None:
    pool = evaluator._pool
    pool.stock(3)
    spares = [worker.pid for worker in pool._spares]
    assert len(set(spares)) == 3
    os.killpg(spares[2], signal.SIGKILL)
    deadline = time.monotonic() + 10
    while pool._spares[2].alive and time.monotonic() < deadline:
        time.sleep(0.01)
    used = [pool.worker(pool.clock, fresh=True).pid for _ in range(3)]
    assert used[:2] == [spares[1], spares[0]]
    assert used[2] not in spares
    (ready,) = prepared(evaluator, jobs.job())
    timing = evaluator.time(ready.job.region, [Baseline(), ready], rounds=2, residency="cache", seed=0, processes=1)
    assert isinstance(timing, Timing)


def test_stock_is_killed_with_the_evaluator(tmp_path: Path) -> None:
    evaluator = WorkerEvaluator(jobs.target(), store=tmp_path, toolchain=jobs.toolchain(), workers=1, limits=LIMITS)
    evaluator._pool.stock(2)
    (one, two) = (worker.pid for worker in evaluator._pool._spares)
    evaluator.close()
    for pid in (one, two):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_what_is_built_alone_is_neither_run_nor_evaluated(evaluator: WorkerEvaluator) -> None:
    wrong, crashing = jobs.job("a.y[0] = 1;"), jobs.job("std::abort();")
    built = set(evaluator.build([jobs.job("this is no C++"), wrong, crashing]))
    assert built == {wrong, crashing}
