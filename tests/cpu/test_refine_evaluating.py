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
from agentcompile.ir.attempt import AttemptEvaluator, Evaluated, Written
from agentcompile.ir.trial import BuildFailed, Crashed, Incorrect, Measured, Rejected, TimedOut
from agentcompile.ops.layouts import LAYOUTS
from agentcompile.refine.evaluating import RegionEvaluator
from agentcompile.refine.incumbent import Bar, bar_of
from agentcompile.regions.kinds import facts as kinds
from agentcompile.tuning.jobs import JobMaker
from tests.cpu import jobs
from tests.cpu.written import KERNEL, MANIFEST, SLOW, contract, task, written

LIMITS = Limits(build_s=60.0, validate_s=20.0, measure_s=30.0, per_gigabyte_s=20.0)


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerEvaluator]:
    with jobs.evaluator(tmp_path_factory.mktemp("store"), LIMITS, workers=1) as made:
        yield made


@pytest.fixture
def evaluator(workers: WorkerEvaluator) -> AttemptEvaluator:
    asked = task()
    return RegionEvaluator(asked, contract(asked), workers, Bar(times=SLOW), confirms=False)


def told(evaluated: Evaluated) -> dict[str, Any]:
    assert isinstance(evaluated.feedback, dict)
    return evaluated.feedback


@pytest.mark.alone
def test_a_kernel_written_from_the_contract_alone_is_measured_and_accepted(evaluator: AttemptEvaluator) -> None:
    evaluated = evaluator.evaluate(written())
    assert isinstance(evaluated.verdict, Measured), evaluated
    assert 0 < evaluated.ns < math.inf
    found = told(evaluated)
    assert found["accepted"] is True
    assert found["us"] == round(evaluated.ns / 1e3, 3)
    assert {"gb_per_s", "times_the_floor", "incumbent_us", "pytorch_us"} <= found.keys()
    assert "element" in found["passed_checks"]


def test_wrong_numbers_are_incorrect_and_the_feedback_names_check_and_element(evaluator: AttemptEvaluator) -> None:
    wrong = KERNEL.replace("a.y[r] = row(a.x, a.w + r * hidden);", "a.y[r] = row(a.x, a.w + r * hidden) * 1.001f;")
    evaluated = evaluator.evaluate(written(wrong))
    assert isinstance(evaluated.verdict, Incorrect)
    assert evaluated.ns == math.inf
    (check, *_) = told(evaluated)["failed_checks"]
    assert check["check"] == "element"
    assert check["times_allowed"] > 1
    assert "y[" in check["where"]
    assert "expected" in check["where"]


def test_a_kernel_that_loops_for_ever_has_timed_out(tmp_path: Path) -> None:
    asked, hasty = task(), replace(LIMITS, validate_s=6.0)
    with WorkerEvaluator(
        jobs.target(), store=tmp_path, toolchain=jobs.toolchain(), workers=1, limits=hasty, memory_bytes=2 << 30
    ) as workers:
        evaluator = RegionEvaluator(asked, contract(asked), workers, Bar(times=SLOW), confirms=False)
        evaluated = evaluator.evaluate(
            written(KERNEL.replace("{\n    for (long r", '{\n    for (;;) asm volatile("");\n    for (long r'))
        )
    assert isinstance(evaluated.verdict, TimedOut), evaluated
    assert told(evaluated)["stage"] == "validate"


def test_a_kernel_that_writes_where_nothing_is_has_crashed(evaluator: AttemptEvaluator) -> None:
    evaluated = evaluator.evaluate(
        written(KERNEL.replace("{\n    for (long r", "{\n    *(volatile int*)16 = 1;\n    for (long r"))
    )
    assert isinstance(evaluated.verdict, Crashed), evaluated
    assert told(evaluated)["signal"] == 11


def test_text_that_does_not_compile_is_a_failed_build_with_the_compilers_log(evaluator: AttemptEvaluator) -> None:
    evaluated = evaluator.evaluate(written(KERNEL.replace("float s[8] = {};", "float s[8] = {}")))
    assert isinstance(evaluated.verdict, BuildFailed), evaluated
    assert "kernel.cpp:3" in told(evaluated)["log"] or "kernel.cpp:2" in told(evaluated)["log"]


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
def test_what_no_compiler_should_see_is_rejected_by_name(
    evaluator: AttemptEvaluator, made: Written, words: str
) -> None:
    evaluated = evaluator.evaluate(made)
    assert isinstance(evaluated.verdict, Rejected), evaluated
    assert words in " ".join(one.text for one in evaluated.verdict.findings)
    assert told(evaluated)["stage"] == "check"


@pytest.mark.alone
def test_a_written_kernel_is_timed_beside_the_incumbent_and_a_few_points_are_evaluated(
    workers: WorkerEvaluator,
) -> None:
    shipped = load([default_root()], kinds=kinds(), layouts=LAYOUTS).get("linear/rows")
    asked = task(templates=[shipped])
    bar = bar_of(asked, JobMaker(asked.space.target), workers)
    assert bar is not None
    assert bar.label.startswith("linear/rows(")
    made = MANIFEST + '\n[params.UNROLL]\ndomain = [1, 2]\ndefault = 1\nabout = "unrolling"\n'
    evaluated = RegionEvaluator(asked, contract(asked, bar.times), workers, bar, confirms=False).evaluate(
        written(KERNEL.replace("    for (long k", "#pragma GCC unroll 4\n    for (long k", 1), made)
    )
    assert isinstance(evaluated.verdict, Measured), evaluated
    assert {row["verdict"] for row in told(evaluated)["points"]} == {"measured"}
    assert len(told(evaluated)["points"]) == 2
    assert told(evaluated)["beside_incumbent"]["incumbent"] == bar.label
