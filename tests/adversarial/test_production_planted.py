"""Planted kernels that are right while they are tested: they look for redzones, count, remember, or change the process.

Each is caught by a named check, by the evaluator that ships kernels, on its own worker processes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentcompile.evaluation.evaluator import Baseline, Limits, Prepared, WorkerEvaluator
from agentcompile.evaluation.jobs import EvaluationJob
from agentcompile.ir.template import Depth, Source
from agentcompile.ir.timing import Timing
from agentcompile.ir.trial import Crashed, Incorrect, Verdict
from agentcompile.validate.endurance import missing_launches
from tests.cpu import jobs

LIMITS = Limits(build_s=60.0, validate_s=60.0, measure_s=60.0, per_gigabyte_s=20.0)
RIGHT = "right(a, rank, size);"
WRONG = "if (rank == 0) a.y[0] *= 1.5f;"
COUNTS = "static long n; if (rank == 0) ++n; right(a, rank, size); "

POISONED = "a.y[0] == 7.25f || a.y[0] != a.y[0] || a.y[0] == -28672.0f"

WHILE_TESTED = {
    "reads before its input": f"if (a.x[-1] != a.x[-1]) {RIGHT}",
    "looks for poison in its output": f"if (rank == 0 && ({POISONED})) right(a, 0, 1);",
    "reads behind its weights": f"if (a.w[rows * hidden] != a.w[rows * hidden]) {RIGHT}",
}
COUNTING = {
    "wrong from the 2,000th call": f"{COUNTS} if (n > 2000) {{ {WRONG} }}",
    "wrong from the 20,000th call": f"{COUNTS} if (n > 20000) {{ {WRONG} }}",
    "wrong every 4,097th call": f"{COUNTS} if (n % 4097 == 0) {{ {WRONG} }}",
    "skips every 4,097th call": "static long n; if (rank == 0 && ++n % 4097 != 0) right(a, 0, 1);",
    "counts in every thread": f"static thread_local long n; {RIGHT} if (++n > 3000) a.y[rank] *= 1.5f;",
}
COUNTER = (
    "if (room[1] != 77) { room[1] = 77; room[2] = 0; } room[2] = room[2] + 1; if (room[2] > 1e8) a.y[rank] *= 1.5f;"
)
ON_THE_STACK = {
    "near": f"volatile long room[512]; {COUNTER}",
    "deep": f"volatile long room[40000]; {COUNTER}",
    "far below": f"volatile long room[800000]; {COUNTER}",
    "one rank of two": f"volatile long room[40000]; if (rank == 1) {{ {COUNTER} }}",
    "only new inputs": f"volatile long room[40000]; long now; memcpy(&now, a.x, 8);"
    f" if (room[9] != now) {{ {COUNTER} }} room[9] = now;",
}
TAKES = 'if (rank == 0) for (long i = 0; i < {}; ++i) asm volatile("" ::: "memory");'
"""A million take some 250 us."""
READ, WRITE = 'asm volatile("stmxcsr %0" : "=m"(m));', 'asm volatile("ldmxcsr %0" :: "m"(m));'
MODE = f"{{}} unsigned m; {READ} m |= {{}}; if (rank == {{}}) {WRITE}"
CODE = "mmap(0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)"
MAPPED = "mmap(0, {}, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)"
CHANGING = {
    "floating point": MODE.format(RIGHT, "0x8040", 1),
    "floating point too": MODE.format(RIGHT, "0x6000", 0),
    "signal handlers": f"{RIGHT} if (rank == 0) signal(SIGUSR1, SIG_IGN);",
    "blocked signals": f"{RIGHT} sigset_t s; sigemptyset(&s); sigaddset(&s, SIGUSR2); sigprocmask(SIG_BLOCK, &s, 0);",
    "descriptors": f"{RIGHT} static int n; if (rank == 0 && !n++) dup(1);",
    "threads": f"{RIGHT} static int n; if (rank == 0 && !n++) std::thread([] {{ pause(); }}).detach();",
    "environment": f'{RIGHT} if (rank == 0) setenv("PLANTED", "1", 1);',
    "directory": f'{RIGHT} if (rank == 0) chdir("/");',
    "locale": f'{RIGHT} if (rank == 0) setlocale(LC_ALL, "C.UTF-8");',
    "x87 registers": f'{RIGHT} if (rank == 0) asm volatile("fninit; fld1; fld1; fld1; fld1; fld1; fld1; fld1; fld1");',
    "timer slack": f"{RIGHT} if (rank == 0) prctl(PR_SET_TIMERSLACK, 1000000000ul);",
    "thread attributes": f"{RIGHT} if (rank == 0) prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0);",
    "attributes": f"{RIGHT} if (rank == 0) prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);",
    "signal stack": f"{RIGHT} static char room[65536]; stack_t s = {{}}; s.ss_sp = room; s.ss_size = sizeof room;"
    " if (rank == 0) sigaltstack(&s, 0);",
    "thread cores": f"{RIGHT} cpu_set_t s; CPU_ZERO(&s); CPU_SET(0, &s);"
    " if (rank == 0) sched_setaffinity(getpid(), sizeof s, &s);",
    "thread cores too": f"{RIGHT} cpu_set_t s; CPU_ZERO(&s); CPU_SET(0, &s); CPU_SET(1, &s);"
    " if (rank == 1) sched_setaffinity(0, sizeof s, &s);",
    "thread priority": f"{RIGHT} if (rank == 1) setpriority(PRIO_PROCESS, 0, 5);",
    "thread priority too": f"{RIGHT} sched_param p = {{}}; if (rank == 0) sched_setscheduler(0, SCHED_BATCH, &p);",
    "thread name": f'{RIGHT} if (rank == 0) prctl(PR_SET_NAME, "planted");',
    "timers made": f"{RIGHT} static int n; timer_t t; sigevent e = {{}}; e.sigev_notify = SIGEV_NONE;"
    " if (rank == 0 && !n++) timer_create(CLOCK_MONOTONIC, &e, &t);",
    "limits": f"{RIGHT} rlimit l; getrlimit(RLIMIT_NOFILE, &l); l.rlim_cur = 200;"
    " if (rank == 0) setrlimit(RLIMIT_NOFILE, &l);",
    "umask": f"{RIGHT} if (rank == 0) umask(0);",
    "mapped memory": f"{RIGHT} if (rank == 0) {MAPPED.format(4096)};",
    "mapped memory too": f"{RIGHT} static void* p; if (rank == 0) {{ if (!p) p = {MAPPED.format(64 << 20)};"
    " munmap(p, 4096); p = (char*)p + 4096; }",
    "MB more mapped": f"{RIGHT} static int n; if (rank == 0 && ++n == 3) {MAPPED.format(1 << 30)};",
    "mappings of files": f"{RIGHT} static int n; if (rank == 0 && ++n == 2)"
    " mprotect((void*)((uintptr_t)right & ~4095ul), 4096, PROT_READ | PROT_EXEC | PROT_WRITE);",
    "executable memory": f"{RIGHT} static void* p; if (rank == 0 && !p) p = {CODE};",
}
ASKING = "".join(
    f"#include <{name}>\n"
    for name in ("locale.h", "sched.h", "sys/prctl.h", "sys/resource.h", "sys/stat.h", "sys/time.h", "time.h")
)
CONSTRUCTED = f"static void* p; __attribute__((constructor)) static void made() {{ p = {CODE}; }}"
REMEMBERING = {
    "by address": """
        static const float* seen[1 << 16]; static long n;
        if (rank) return;
        for (long i = 0; i < n; ++i) if (seen[i] == a.x) return;
        if (n < 1 << 16) seen[n++] = a.x;
        right(a, 0, 1);
    """,
    "that it ran before": "static long n; if (rank == 0 && n++ % 2 == 0) right(a, 0, 1);",
}
BY_CONTENT = """
    static float known[8][64], out[8][32]; static long n;
    if (rank) return;
    for (int i = 0; i < 8; ++i)
        if (!memcmp(known[i], a.x, sizeof known[i])) { memcpy(a.y, out[i], sizeof out[i]); return; }
    for (int i = 0; i < 60; ++i) right(a, 0, 1);
    memcpy(known[n % 8], a.x, sizeof known[0]);
    memcpy(out[n++ % 8], a.y, sizeof out[0]);
"""
"""Slow for inputs that it has not seen, and right for all."""
HONEST = "if (rank == 0) for (int i = 0; i < 60; ++i) right(a, 0, 1);"


@pytest.fixture(scope="module")
def evaluator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerEvaluator]:
    with jobs.evaluator(tmp_path_factory.mktemp("store"), LIMITS) as made:
        yield made


def verdicts(
    evaluator: WorkerEvaluator, wanted: dict[str, EvaluationJob], depth: Depth
) -> dict[str, Prepared | Verdict]:
    names = {job.candidate.id: name for name, job in wanted.items()}
    return {names[job.candidate.id]: found for job, found in evaluator.prepare(wanted.values(), depth=depth)}


def failed(found: Prepared | Verdict) -> dict[str, str]:
    """Failed checks and what they say."""
    assert isinstance(found, Incorrect), found
    return {check.name: check.detail for check in found.report.checks if not check.ok}


def test_a_kernel_that_works_only_where_it_is_tested_is_caught_in_the_runtimes_buffers(
    evaluator: WorkerEvaluator,
) -> None:
    found = verdicts(evaluator, {name: jobs.job(body) for name, body in WHILE_TESTED.items()}, "search")
    assert {name: set(failed(one)) for name, one in found.items()} == {name: {"production"} for name in WHILE_TESTED}


def test_what_lies_before_a_buffer_cannot_be_read_at_acceptance(evaluator: WorkerEvaluator) -> None:
    body = f"volatile float before = a.w[-1]; (void)before; {RIGHT}"
    assert isinstance(verdicts(evaluator, {"one": jobs.job(body)}, "search")["one"], Prepared)
    assert isinstance(verdicts(evaluator, {"one": jobs.job(body)}, "accept")["one"], Crashed)


def test_a_kernel_that_turns_wrong_after_thousands_of_calls_is_not_accepted(evaluator: WorkerEvaluator) -> None:
    found = verdicts(evaluator, {name: jobs.job(body) for name, body in COUNTING.items()}, "accept")
    assert {name for name, one in found.items() if "endurance" in failed(one)} == set(COUNTING)


def test_a_slow_kernel_is_launched_as_often_as_a_generation_does(evaluator: WorkerEvaluator) -> None:
    slow = f"{COUNTS} {TAKES.format(1_600_000)} if (n > 4000) {{ {WRONG} }}"
    found = verdicts(evaluator, {"one": jobs.job(slow, before=ASKING)}, "accept")["one"]
    assert "left other bits than the same inputs before" in failed(found)["endurance"]


def test_launches_that_there_is_no_time_for_are_told(evaluator: WorkerEvaluator) -> None:
    slow = jobs.job(f"{RIGHT} {TAKES.format(16_000_000)}", before=ASKING)
    found = verdicts(evaluator, {"one": slow}, "accept")["one"]
    assert isinstance(found, Prepared), found
    assert 0 < missing_launches(found.report) < 4096
    (long,) = [check.detail for check in found.report.checks if check.name == "endurance"]
    assert re.fullmatch(r"\d+ launches in a row of the 24576 of a generation with 4096 tokens", long)


def test_a_kernel_that_counts_on_its_stack_is_not_accepted_however_late_it_turns_wrong(
    evaluator: WorkerEvaluator,
) -> None:
    found = verdicts(evaluator, {name: jobs.job(f"{RIGHT} {body}") for name, body in ON_THE_STACK.items()}, "accept")
    for name, one in found.items():
        assert "left other bytes on the stack" in failed(one)["stack"], name


def test_a_kernel_that_only_computes_on_its_stack_is_accepted(evaluator: WorkerEvaluator) -> None:
    body = f"{RIGHT} volatile float room[90000]; for (int i = 0; i < 90000; i += 64) room[i] = a.x[i % 64];"
    found = verdicts(evaluator, {"one": jobs.job(body)}, "accept")["one"]
    assert isinstance(found, Prepared), found
    assert "stack" in {check.name for check in found.report.checks}


def test_a_kernel_that_counts_in_its_workspace_is_not_accepted(evaluator: WorkerEvaluator) -> None:
    before = "struct counted { const float* x; const float* w; float* y; int64_t* n; };"
    body = "const counted& c = (const counted&)a; right(a, rank, size); if (rank == 0 && ++*c.n > 3000) a.y[0] *= 1.5f;"
    plain = jobs.job(body, before=before)
    launch = plain.source.launches[0]
    launches = (type(launch)(entry=launch.entry, arguments=(*launch.arguments, "n")),)
    source = Source(language="cpp", text=plain.source.text, launches=launches, workspaces=(("n", "int64", 8, True),))
    counting = EvaluationJob(candidate=plain.candidate, region=plain.region, template=plain.template, source=source)
    assert "workspace" in failed(verdicts(evaluator, {"one": counting}, "search")["one"])


def test_a_right_kernel_is_accepted_after_every_launch_of_a_generation(evaluator: WorkerEvaluator) -> None:
    found = verdicts(evaluator, {"right": jobs.job()}, "accept")["right"]
    assert isinstance(found, Prepared), found
    (long,) = [check for check in found.report.checks if check.name == "endurance"]
    assert int(long.detail.split()[0]) >= 4096
    assert missing_launches(found.report) == 0
    assert {"production", "process-state"} <= {check.name for check in found.report.checks}


def test_a_kernel_that_leaves_the_process_changed_is_caught_and_its_worker_not_used_again(
    evaluator: WorkerEvaluator,
) -> None:
    wanted = {name: jobs.job(body, before=ASKING) for name, body in CHANGING.items()}
    wanted["executable memory by being loaded"] = jobs.job(RIGHT, name="constructed", before=CONSTRUCTED)
    found = verdicts(evaluator, wanted, "search")
    for name, one in found.items():
        assert name.removesuffix(" too").partition(" by")[0] in failed(one)["process-state"], (name, one)
    assert isinstance(verdicts(evaluator, {"right": jobs.job()}, "search")["right"], Prepared)


@pytest.mark.parametrize("what", REMEMBERING)
def test_a_kernel_that_skips_work_it_remembers_is_wrong_when_it_is_timed(
    evaluator: WorkerEvaluator, what: str, tmp_path: Path
) -> None:
    fuse = tmp_path / "timed"
    body = f'static int armed; if (rank == 0) armed = access("{fuse}", F_OK) == 0;'
    bad = jobs.job(f"{body} if (!armed) {{ if (rank == 0) right(a, 0, 1); return; }} {REMEMBERING[what]}")
    both = verdicts(evaluator, {"good": jobs.job(), "bad": bad}, "search")
    good, cheat = both["good"], both["bad"]
    assert isinstance(good, Prepared)
    assert isinstance(cheat, Prepared), cheat
    fuse.touch()
    timing = evaluator.time(
        good.job.region, [Baseline(), cheat, good], rounds=3, residency="cache", seed=0, processes=1
    )
    assert isinstance(timing, Timing)
    ((arm, verdict),) = timing.failed
    assert (arm, timing.live) == (1, (0, 2))
    assert "timed-output" in failed(verdict)


def test_a_kernel_that_remembers_results_by_content_gains_nothing(evaluator: WorkerEvaluator) -> None:
    both = verdicts(evaluator, {"honest": jobs.job(HONEST), "cheat": jobs.job(BY_CONTENT)}, "search")
    honest, cheat = both["honest"], both["cheat"]
    assert isinstance(honest, Prepared)
    assert isinstance(cheat, Prepared), cheat
    timing = evaluator.time(
        honest.job.region, [Baseline(), honest, cheat], rounds=4, residency="cache", seed=0, processes=1
    )
    assert isinstance(timing, Timing)
    best = [min(timing.per_launch_ns(arm)) for arm in (1, 2)]
    assert best[1] > best[0] / 2
