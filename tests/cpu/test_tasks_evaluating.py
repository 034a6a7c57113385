"""The gates of a task with real builds and processes: whatever a model writes becomes a verdict with feedback."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentcompile.ir.attempt import AttemptEvaluator, Evaluated, Written
from agentcompile.ir.trial import BuildFailed, Crashed, Incorrect, Measured, Rejected, TimedOut
from agentcompile.tasks.load import LoadedTask
from agentcompile.tasks.open import OpenedTask, gated
from tests.cpu.tasked import (
    CEILING,
    KERNEL_NORMED,
    KERNEL_PRODUCT,
    KERNEL_QUANTIZED,
    KERNEL_SCALED,
    LIMITS,
    NORMED,
    PRODUCT,
    QUANTIZED,
    SCALED,
    here,
    manifest,
    written,
)

STATIC = "static float kept[4096]; static const void* seen; static long count;\n"


@contextmanager
def opened(folder: Path, name: str, text: str) -> Iterator[OpenedTask]:
    path = folder / name
    path.write_text(text)
    with LoadedTask(path, threads=2, seed=7, limits=LIMITS) as task:
        yield gated(here(folder), task, CEILING, 7, compiled=(), confirms=False)


@pytest.fixture(scope="module")
def scaled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenedTask]:
    with opened(tmp_path_factory.mktemp("scaled"), "scaled.py", SCALED) as made:
        yield made


def told(evaluated: Evaluated) -> dict[str, Any]:
    assert isinstance(evaluated.feedback, dict)
    return evaluated.feedback


def failed(evaluated: Evaluated) -> set[str]:
    assert isinstance(evaluated.verdict, Incorrect), evaluated
    return {check.name for check in evaluated.verdict.report.checks if not check.ok}


def kernel(body: str, before: str = "") -> str:
    """The right kernel with `body` after it, on the first rank alone."""
    head, _, _ = KERNEL_SCALED.rpartition("}\n")
    return f"{before}{head}    if (rank == 0) {{ {body} }}\n}}\n"


@pytest.mark.alone
def test_a_right_kernel_is_measured_beside_pytorch(scaled: OpenedTask) -> None:
    evaluator: AttemptEvaluator = scaled.evaluator
    evaluated = evaluator.evaluate(written(scaled, KERNEL_SCALED))
    assert isinstance(evaluated.verdict, Measured), evaluated
    assert 0 < evaluated.ns < math.inf
    found = told(evaluated)
    assert found["us"] == round(evaluated.ns / 1e3, 3)
    assert {"element", "error ratio", "inputs", "memory", "repeats"} <= set(found["passed_checks"])
    assert found["beside_incumbent"]["incumbent"] == "pytorch"
    assert evaluated.verdict.report.cases >= 7


@pytest.mark.alone
def test_baselines_of_a_busy_moment_are_taken_anew_and_spoil_no_ratio(scaled: OpenedTask) -> None:
    evaluator, known = scaled.evaluator, scaled.baselines
    busy = replace(known, us={name: 20 * us for name, us in known.us.items()})
    evaluator._baselines = busy
    evaluated = evaluator.evaluate(written(scaled, KERNEL_SCALED))
    assert isinstance(evaluated.verdict, Measured), evaluated
    assert evaluated.times is not None
    assert evaluated.times.incumbent_ns < busy.times.incumbent_ns / 2
    beside = evaluated.verdict.measurement
    assert told(evaluated)["beside_incumbent"]["speedup"] == pytest.approx(beside.speedup, abs=1e-4)
    assert evaluated.over_reference == pytest.approx(1 / beside.speedup)
    assert told(evaluated)["incumbent_us"] == round(beside.baseline_ns / 1e3, 3)
    evaluator._baselines = known


WRONG = {
    "a factor": (KERNEL_SCALED.replace("* a.weight[i]", "* a.weight[i] * 1.0001f"), "element"),
    "large inputs alone": (
        KERNEL_SCALED.replace("(x > 0 ? x : 0.0f)", "(x > 0 ? std::min(x, 5.0f) : 0.0f)"),
        "element",
    ),
    "small inputs alone": (KERNEL_SCALED.replace("(x > 0 ?", "(x > 1e-3f ?"), "element"),
    "a parameter taken for 1": (KERNEL_SCALED.replace(" * a.weight[i]", ""), "element"),
    "a constant": (KERNEL_SCALED.replace("(x > 0 ? x : 0.0f) * a.weight[i]", "0.4f"), "element"),
    "a half-precision product": (
        KERNEL_SCALED.replace("x : 0.0f)", "_cvtsh_ss(_cvtss_sh(x, 0)) : 0.0f)"),
        "element",
    ),
    "a result kept by address": (
        STATIC
        + """\
extern "C" void kernel_main(const kernel_main_args& a, int rank, int size) {
    if (rank != 0) return;
    if (seen != a.in0) {
        for (long r = 0; r < in0_numel[0]; ++r)
            kept[r] = (a.in0[r] > 0 ? a.in0[r] : 0.0f) * a.weight[r % in0_d1];
        seen = a.in0;
    }
    std::memcpy(a.out0, kept, sizeof(float) * in0_numel[0]);
}
""",
        "element",
    ),
    "a result kept by the first and last element": (
        STATIC
        + """\
static float first, last;
extern "C" void kernel_main(const kernel_main_args& a, int rank, int size) {
    if (rank != 0) return;
    if (count++ == 0 || first != a.in0[0] || last != a.in0[in0_numel[0] - 1]) {
        for (long r = 0; r < in0_numel[0]; ++r)
            kept[r] = (a.in0[r] > 0 ? a.in0[r] : 0.0f) * a.weight[r % in0_d1];
        first = a.in0[0], last = a.in0[in0_numel[0] - 1];
    }
    std::memcpy(a.out0, kept, sizeof(float) * in0_numel[0]);
}
""",
        "element",
    ),
    "an element that is not written": (KERNEL_SCALED.replace("long i = 0", "long i = (r == 3)"), "element"),
    "an input that is changed": (kernel("const_cast<float*>(a.in0)[7] += 1e-3f;"), "inputs"),
    "a parameter that is changed": (kernel("const_cast<float*>(a.weight)[0] = 1.0f;"), "inputs"),
    "a write before the output": (kernel("a.out0[-1] = 0.0f;"), "memory"),
    "right for the first launches alone": (
        kernel("if (++count > 60) a.out0[5] = 9.0f;", STATIC),
        "element",
    ),
}


@pytest.mark.parametrize("how", WRONG)
def test_a_wrong_kernel_is_incorrect_by_the_check_that_is_meant(scaled: OpenedTask, how: str) -> None:
    text, check = WRONG[how]
    evaluated = scaled.evaluator.evaluate(written(scaled, text))
    assert check in failed(evaluated), evaluated
    assert evaluated.ns == math.inf
    assert all("scale" not in one["where"] for one in told(evaluated)["failed_checks"]), "inputs are not told"


def test_a_kernel_whose_ranks_race_is_not_accepted(scaled: OpenedTask) -> None:
    racing = KERNEL_SCALED.replace("long r = rank; r < in0_d0; r += size", "long r = 0; r < in0_d0; ++r").replace(
        "* a.weight[i];", "* a.weight[i] + 1e-3f * rank;"
    )
    assert failed(scaled.evaluator.evaluate(written(scaled, racing))) & {"element", "repeats"}


@pytest.mark.parametrize(
    ("body", "number"),
    [
        ("volatile float x = a.in0[in0_numel[0] + 4096]; (void)x;", 11),
        ("volatile float x = a.weight[weight_numel[0] + 14]; (void)x;", 11),
        ("volatile float x = a.in0[-100000]; (void)x;", 11),
        ("*reinterpret_cast<volatile int*>(0) = 1;", 11),
        ("__builtin_trap();", 4),
    ],
    ids=["far past the end", "just past the end", "before the beginning", "null", "trap"],
)
def test_a_kernel_that_leaves_its_buffers_or_crashes_ends_its_process_alone(
    scaled: OpenedTask, body: str, number: int
) -> None:
    evaluated = scaled.evaluator.evaluate(written(scaled, kernel(body)))
    assert isinstance(evaluated.verdict, Crashed), evaluated
    assert (evaluated.verdict.stage, evaluated.verdict.signal) == ("validate", number)


def test_a_kernel_that_hangs_is_killed_at_its_limit(scaled: OpenedTask) -> None:
    evaluated = scaled.evaluator.evaluate(written(scaled, kernel("for (volatile long i = 0;;) i = i + 1;")))
    assert isinstance(evaluated.verdict, TimedOut), evaluated
    assert evaluated.verdict.limit_s == LIMITS.launch_s
    assert told(evaluated)["stage"] == "validate"


def test_what_is_no_template_is_rejected_with_the_reason(scaled: OpenedTask) -> None:
    for text, rule in (
        (written(scaled, KERNEL_SCALED.replace("kernel_main(", "other_name(", 1)), ""),
        (Written(manifest="region = 3", kernel=KERNEL_SCALED), "manifest"),
        (Written(manifest="\0", kernel=KERNEL_SCALED), "text"),
        (Written(manifest=manifest(scaled).replace('"weight", ', ""), kernel=KERNEL_SCALED), "ports"),
        (written(scaled, "#include <thread>\n" + KERNEL_SCALED), "source"),
    ):
        evaluated = scaled.evaluator.evaluate(text)
        if not rule:
            assert isinstance(evaluated.verdict, (BuildFailed, Crashed, Rejected)), evaluated
            continue
        assert isinstance(evaluated.verdict, Rejected), evaluated
        assert rule in {one.rule for one in evaluated.verdict.findings}, evaluated


def test_a_text_that_does_not_compile_is_a_failed_build_with_its_log(scaled: OpenedTask) -> None:
    evaluated = scaled.evaluator.evaluate(written(scaled, KERNEL_SCALED.replace("0.0f", "nothing")))
    assert isinstance(evaluated.verdict, BuildFailed)
    assert "nothing" in told(evaluated)["log"]


@pytest.mark.alone
def test_a_task_of_several_outputs_and_widths_is_served_by_one_kernel(tmp_path: Path) -> None:
    with opened(tmp_path, "normed.py", NORMED) as made:
        assert len(made.task.told.signatures) == 3
        evaluated = made.evaluator.evaluate(written(made, KERNEL_NORMED))
        assert isinstance(evaluated.verdict, Measured), evaluated
        assert "indices" in told(evaluated)["passed_checks"]
        only = KERNEL_NORMED.replace("long i = 1; i < in0_d1", "long i = 1; i < 70")
        assert isinstance(made.evaluator.evaluate(written(made, only)).verdict, (Incorrect, Crashed)), "another width"
        later = KERNEL_NORMED.replace("a.out1[r] = best", "a.out1[r] = best ? best : 1")
        assert "indices" in failed(made.evaluator.evaluate(written(made, later)))


@pytest.mark.alone
def test_a_narrow_type_allows_its_rounding_and_no_more(tmp_path: Path) -> None:
    with opened(tmp_path, "product.py", PRODUCT) as made:
        evaluated = made.evaluator.evaluate(written(made, KERNEL_PRODUCT))
        assert isinstance(evaluated.verdict, Measured), evaluated
        cut = KERNEL_PRODUCT.replace("bits + 0x7fff + ((bits >> 16) & 1)", "bits")
        assert "error ratio" in failed(made.evaluator.evaluate(written(made, cut)))
        short = KERNEL_PRODUCT.replace("k < in0_d1;", "k < in0_d1 - 1;")
        assert failed(made.evaluator.evaluate(written(made, short))) & {"element", "error ratio"}


def test_bytes_with_a_sign_and_without_are_given_to_a_kernel(tmp_path: Path) -> None:
    with opened(tmp_path, "quantized.py", QUANTIZED) as made:
        assert {"int8", "uint8"} <= {one.dtype for one in made.task.told.signatures[0].tensors}
        right = made.evaluator.evaluate(written(made, KERNEL_QUANTIZED))
        assert isinstance(right.verdict, Measured), right
        unsigned = KERNEL_QUANTIZED.replace("a.weight[n * in0_d1 + k]", "uint8_t(a.weight[n * in0_d1 + k])")
        assert failed(made.evaluator.evaluate(written(made, unsigned)))
