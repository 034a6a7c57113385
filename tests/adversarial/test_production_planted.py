"""Planted kernels that are right while they are tested: they look for redzones, count, remember, or change the process.

Each is caught by a named check, by the judge that ships kernels, on its own worker processes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agentcompile.evaluation.evaluator import Baseline, Limits, Prepared, WorkerEvaluator
from agentcompile.evaluation.jobs import Depth, EvaluationJob
from agentcompile.ir.template import Source
from agentcompile.ir.timing import Timing
from agentcompile.ir.trial import Crashed, Incorrect, Verdict
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
READ, WRITE = 'asm volatile("stmxcsr %0" : "=m"(m));', 'asm volatile("ldmxcsr %0" :: "m"(m));'
MODE = f"{{}} unsigned m; {READ} m |= {{}}; if (rank == {{}}) {WRITE}"
CODE = "mmap(0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)"
CHANGING = {
    "floating point": MODE.format(RIGHT, "0x8040", 1),
    "floating point too": MODE.format(RIGHT, "0x6000", 0),
    "signal handlers": f"{RIGHT} if (rank == 0) signal(SIGUSR1, SIG_IGN);",
    "blocked signals": f"{RIGHT} sigset_t s; sigemptyset(&s); sigaddset(&s, SIGUSR2); sigprocmask(SIG_BLOCK, &s, 0);",
    "descriptors": f"{RIGHT} static int n; if (rank == 0 && !n++) dup(1);",
    "threads": f"{RIGHT} static int n; if (rank == 0 && !n++) std::thread([] {{ pause(); }}).detach();",
    "environment": f'{RIGHT} if (rank == 0) setenv("PLANTED", "1", 1);',
    "directory": f'{RIGHT} if (rank == 0) chdir("/");',
    "executable memory": f"{RIGHT} static void* p; if (rank == 0 && !p) p = {CODE};",
}
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
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerEvaluator]:
    store = tmp_path_factory.mktemp("store")
    with WorkerEvaluator(
        jobs.target(), store=store, toolchain=jobs.toolchain(), workers=2, limits=LIMITS, memory_bytes=2 << 30
    ) as made:
        yield made


def verdicts(judge: WorkerEvaluator, wanted: dict[str, EvaluationJob], depth: Depth) -> dict[str, Prepared | Verdict]:
    names = {job.candidate.id: name for name, job in wanted.items()}
    return {names[job.candidate.id]: found for job, found in judge.prepare(wanted.values(), depth=depth)}


def failed(found: Prepared | Verdict) -> dict[str, str]:
    """Failed checks and what they say."""
    assert isinstance(found, Incorrect), found
    return {check.name: check.detail for check in found.report.checks if not check.ok}


def test_a_kernel_that_works_only_where_it_is_tested_is_caught_in_the_runtimes_buffers(judge: WorkerEvaluator) -> None:
    found = verdicts(judge, {name: jobs.job(body) for name, body in WHILE_TESTED.items()}, "search")
    assert {name: set(failed(one)) for name, one in found.items()} == {name: {"production"} for name in WHILE_TESTED}


def test_what_lies_before_a_buffer_cannot_be_read_at_acceptance(judge: WorkerEvaluator) -> None:
    body = f"volatile float before = a.w[-1]; (void)before; {RIGHT}"
    assert isinstance(verdicts(judge, {"one": jobs.job(body)}, "search")["one"], Prepared)
    assert isinstance(verdicts(judge, {"one": jobs.job(body)}, "accept")["one"], Crashed)


def test_a_kernel_that_turns_wrong_after_thousands_of_calls_is_not_accepted(judge: WorkerEvaluator) -> None:
    found = verdicts(judge, {name: jobs.job(body) for name, body in COUNTING.items()}, "accept")
    assert {name for name, one in found.items() if "endurance" in failed(one)} == set(COUNTING)


def test_a_kernel_that_counts_in_its_workspace_is_not_accepted(judge: WorkerEvaluator) -> None:
    before = "struct counted { const float* x; const float* w; float* y; int64_t* n; };"
    body = "const counted& c = (const counted&)a; right(a, rank, size); if (rank == 0 && ++*c.n > 3000) a.y[0] *= 1.5f;"
    plain = jobs.job(body, before=before)
    launch = plain.source.launches[0]
    launches = (type(launch)(entry=launch.entry, arguments=(*launch.arguments, "n")),)
    source = Source(language="cpp", text=plain.source.text, launches=launches, workspaces=(("n", "int64", 8, True),))
    counting = EvaluationJob(candidate=plain.candidate, region=plain.region, template=plain.template, source=source)
    assert "workspace" in failed(verdicts(judge, {"one": counting}, "search")["one"])


def test_a_right_kernel_is_accepted_after_every_launch_of_a_generation(judge: WorkerEvaluator) -> None:
    found = verdicts(judge, {"right": jobs.job()}, "accept")["right"]
    assert isinstance(found, Prepared), found
    (long,) = [check for check in found.report.checks if check.name == "endurance"]
    assert int(long.detail.split()[0]) >= 24576 or "were not enough" in long.detail
    assert {"production", "process-state"} <= {check.name for check in found.report.checks}


def test_a_kernel_that_leaves_the_process_changed_is_caught_and_its_worker_not_used_again(
    judge: WorkerEvaluator,
) -> None:
    wanted = {name: jobs.job(body) for name, body in CHANGING.items()}
    wanted["executable memory by being loaded"] = jobs.job(RIGHT, name="constructed", before=CONSTRUCTED)
    found = verdicts(judge, wanted, "search")
    for name, one in found.items():
        assert name.removesuffix(" too").partition(" by")[0] in failed(one)["process-state"], (name, one)
    assert isinstance(verdicts(judge, {"right": jobs.job()}, "search")["right"], Prepared)


@pytest.mark.parametrize("what", REMEMBERING)
def test_a_kernel_that_skips_work_it_remembers_is_wrong_when_it_is_timed(
    judge: WorkerEvaluator, what: str, tmp_path: Path
) -> None:
    fuse = tmp_path / "timed"
    body = f'static int armed; if (rank == 0) armed = access("{fuse}", F_OK) == 0;'
    bad = jobs.job(f"{body} if (!armed) {{ if (rank == 0) right(a, 0, 1); return; }} {REMEMBERING[what]}")
    both = verdicts(judge, {"good": jobs.job(), "bad": bad}, "search")
    good, cheat = both["good"], both["bad"]
    assert isinstance(good, Prepared)
    assert isinstance(cheat, Prepared), cheat
    fuse.touch()
    timing = judge.time(good.job.region, [Baseline(), cheat, good], rounds=3, residency="cache", seed=0, processes=1)
    assert isinstance(timing, Timing)
    ((arm, verdict),) = timing.failed
    assert (arm, timing.live) == (1, (0, 2))
    assert "timed-output" in failed(verdict)


def test_a_kernel_that_remembers_results_by_content_gains_nothing(judge: WorkerEvaluator) -> None:
    both = verdicts(judge, {"honest": jobs.job(HONEST), "cheat": jobs.job(BY_CONTENT)}, "search")
    honest, cheat = both["honest"], both["cheat"]
    assert isinstance(honest, Prepared)
    assert isinstance(cheat, Prepared), cheat
    timing = judge.time(
        honest.job.region, [Baseline(), honest, cheat], rounds=4, residency="cache", seed=0, processes=1
    )
    assert isinstance(timing, Timing)
    best = [min(timing.per_launch_ns(arm)) for arm in (1, 2)]
    assert best[1] > best[0] / 2
