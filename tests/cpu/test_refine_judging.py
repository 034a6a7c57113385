"""The gates with real builds and processes: whatever a model writes becomes a verdict with feedback."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentcompile.catalog import default_root, load
from agentcompile.evaluation.evaluator import Limits, WorkerEvaluator
from agentcompile.ir.attempt import Judge, Judged, Written
from agentcompile.ir.trial import BuildFailed, Crashed, Incorrect, Measured, Rejected, TimedOut
from agentcompile.ops.layouts import LAYOUTS
from agentcompile.refine.incumbent import Bar, bar_of
from agentcompile.refine.judging import RegionJudge
from agentcompile.regions.kinds import facts as kinds
from agentcompile.tuning.jobs import JobMaker
from tests.cpu import jobs
from tests.cpu.written import KERNEL, MANIFEST, SLOW, contract, task, written

LIMITS = Limits(build_s=60.0, validate_s=20.0, measure_s=30.0, per_gigabyte_s=20.0)


@pytest.fixture(scope="module")
def evaluator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerEvaluator]:
    store = tmp_path_factory.mktemp("store")
    with WorkerEvaluator(
        jobs.target(), store=store, toolchain=jobs.toolchain(), workers=1, limits=LIMITS, memory_bytes=2 << 30
    ) as made:
        yield made


@pytest.fixture
def judge(evaluator: WorkerEvaluator) -> Judge:
    asked = task()
    return RegionJudge(asked, contract(asked), evaluator, Bar(times=SLOW), confirms=False)


def told(judged: Judged) -> dict[str, Any]:
    assert isinstance(judged.feedback, dict)
    return judged.feedback


@pytest.mark.alone
def test_a_kernel_written_from_the_contract_alone_is_measured_and_accepted(judge: Judge) -> None:
    judged = judge.judge(written())
    assert isinstance(judged.verdict, Measured), judged
    assert 0 < judged.ns < math.inf
    found = told(judged)
    assert found["accepted"] is True
    assert found["us"] == round(judged.ns / 1e3, 3)
    assert {"gb_per_s", "times_the_floor", "incumbent_us", "pytorch_us"} <= found.keys()
    assert "element" in found["passed_checks"]


def test_wrong_numbers_are_incorrect_and_the_feedback_names_check_and_element(judge: Judge) -> None:
    wrong = KERNEL.replace("a.y[r] = row(a.x, a.w + r * hidden);", "a.y[r] = row(a.x, a.w + r * hidden) * 1.001f;")
    judged = judge.judge(written(wrong))
    assert isinstance(judged.verdict, Incorrect)
    assert judged.ns == math.inf
    (check, *_) = told(judged)["failed_checks"]
    assert check["check"] == "element"
    assert check["times_allowed"] > 1
    assert "y[" in check["where"]
    assert "expected" in check["where"]


def test_a_kernel_that_loops_for_ever_has_timed_out(tmp_path: Path) -> None:
    asked, hasty = task(), replace(LIMITS, validate_s=6.0)
    with WorkerEvaluator(
        jobs.target(), store=tmp_path, toolchain=jobs.toolchain(), workers=1, limits=hasty, memory_bytes=2 << 30
    ) as evaluator:
        judge = RegionJudge(asked, contract(asked), evaluator, Bar(times=SLOW), confirms=False)
        judged = judge.judge(
            written(KERNEL.replace("{\n    for (long r", '{\n    for (;;) asm volatile("");\n    for (long r'))
        )
    assert isinstance(judged.verdict, TimedOut), judged
    assert told(judged)["stage"] == "validate"


def test_a_kernel_that_writes_where_nothing_is_has_crashed(judge: Judge) -> None:
    judged = judge.judge(
        written(KERNEL.replace("{\n    for (long r", "{\n    *(volatile int*)16 = 1;\n    for (long r"))
    )
    assert isinstance(judged.verdict, Crashed), judged
    assert told(judged)["signal"] == 11


def test_text_that_does_not_compile_is_a_failed_build_with_the_compilers_log(judge: Judge) -> None:
    judged = judge.judge(written(KERNEL.replace("float s[8] = {};", "float s[8] = {}")))
    assert isinstance(judged.verdict, BuildFailed), judged
    assert "kernel.cpp:3" in told(judged)["log"] or "kernel.cpp:2" in told(judged)["log"]


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (written(manifest=MANIFEST.replace("about", "abuot")), "abuot"),
        (written(manifest=MANIFEST + "[[launches]]\n"), "launches"),
        (written(manifest=MANIFEST.partition("[[launch]]")[0]), "launch"),
        (written(manifest=MANIFEST.replace('"w", "y"', '"y"')), "no launch passes w"),
        (written("#include <fstream>\n" + KERNEL), "fstream"),
        (written(KERNEL, MANIFEST.replace('"cpp"', '"library"')), "library"),
        (Written(manifest=MANIFEST, kernel="\ud800"), "surrogate"),
        (written("/" * 10_000_000), "characters"),
    ],
    ids=["key", "table", "no-launch", "unused-port", "header", "library", "surrogate", "huge"],
)
def test_what_no_compiler_should_see_is_rejected_by_name(judge: Judge, made: Written, words: str) -> None:
    judged = judge.judge(made)
    assert isinstance(judged.verdict, Rejected), judged
    assert words in " ".join(one.text for one in judged.verdict.findings)
    assert told(judged)["stage"] == "check"


@pytest.mark.alone
def test_a_written_kernel_is_timed_beside_the_incumbent_and_a_few_points_are_judged(evaluator: WorkerEvaluator) -> None:
    shipped = load([default_root()], kinds=kinds(), layouts=LAYOUTS).get("linear/rows")
    asked = task(templates=[shipped])
    bar = bar_of(asked, JobMaker(asked.space.target), evaluator)
    assert bar is not None
    assert bar.label.startswith("linear/rows(")
    made = MANIFEST + '\n[params.UNROLL]\ndomain = [1, 2]\ndefault = 1\nabout = "unrolling"\n'
    judged = RegionJudge(asked, contract(asked, bar.times), evaluator, bar, confirms=False).judge(
        written(KERNEL.replace("    for (long k", "#pragma GCC unroll 4\n    for (long k", 1), made)
    )
    assert isinstance(judged.verdict, Measured), judged
    assert {row["verdict"] for row in told(judged)["points"]} == {"measured"}
    assert len(told(judged)["points"]) == 2
    assert told(judged)["beside_incumbent"]["incumbent"] == bar.label
