"""Planted kernels that do not return, or not always: the evaluator turns each into a verdict and goes on."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agentcompile.evaluation.evaluator import Limits, Prepared, WorkerEvaluator
from agentcompile.ir.trial import Crashed, Incorrect, TimedOut, Verdict
from tests.cpu import jobs

LIMITS = Limits(build_s=60.0, validate_s=20.0, measure_s=20.0, per_gigabyte_s=20.0)
HASTY = replace(LIMITS, validate_s=6.0)
"""For kernels that hang."""


@pytest.fixture(scope="module")
def evaluator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerEvaluator]:
    yield from evaluation(tmp_path_factory.mktemp("store"), LIMITS)


@pytest.fixture
def hasty(tmp_path: Path) -> Iterator[WorkerEvaluator]:
    yield from evaluation(tmp_path, HASTY)


def evaluation(store: Path, limits: Limits) -> Iterator[WorkerEvaluator]:
    with WorkerEvaluator(
        jobs.target(), store=store, toolchain=jobs.toolchain(), workers=2, limits=limits, memory_bytes=2 << 30
    ) as made:
        # Starting the first worker from a cold disk may take longer than a kernel may.
        assert isinstance(verdict(made, "right(a, rank, size);"), Prepared)
        yield made


def verdict(evaluator: WorkerEvaluator, body: str) -> Prepared | Verdict:
    ((_, found),) = evaluator.prepare([jobs.job(body)])
    return found


READS_ON = """
    float sink = 0;
    for (long k = 0; k < 4096; ++k) sink += ((volatile const float*)a.w)[rows * hidden + k];
    right(a, rank, size);
    if (sink == 12345.678f) a.y[0] = sink;
"""
"""Reads a page past the end and throws it away: no result, no redzone and no repeat can tell."""


def test_a_read_past_the_end_that_changes_nothing_is_a_fault_at_the_fence(evaluator: WorkerEvaluator) -> None:
    found = verdict(evaluator, READS_ON)
    assert isinstance(found, Crashed), found
    assert (found.stage, found.signal) == ("validate", signal.SIGSEGV)


def test_a_write_far_outside_has_crashed(evaluator: WorkerEvaluator) -> None:
    found = verdict(evaluator, "right(a, rank, size); if (rank == 0) a.y[1l << 40] = 1;")
    assert isinstance(found, Crashed), found


def test_a_stack_that_overflows_has_crashed(evaluator: WorkerEvaluator) -> None:
    body = """
        volatile char big[512 << 20];
        for (long i = 0; i < (512 << 20); i += 4096) big[i] = 1;
        right(a, rank, size);
    """
    assert isinstance(verdict(evaluator, body), Crashed)


@pytest.mark.alone
def test_a_kernel_that_hangs_on_some_inputs_alone_has_timed_out(hasty: WorkerEvaluator) -> None:
    conditions = ("a.x[hidden - 1] > 40.0f", "a.x[hidden - 1] != a.x[hidden - 1]")
    hanging = [jobs.job(f'right(a, rank, size); while ({what}) asm volatile("" ::: "memory");') for what in conditions]
    assert {type(found) for _, found in hasty.prepare(hanging)} == {TimedOut}


def test_a_kernel_that_aborts_on_the_hundredth_launch_alone_passes_search_and_dies_at_acceptance(
    evaluator: WorkerEvaluator,
) -> None:
    body = "right(a, rank, size); static int calls; if (rank == 0 && ++calls == 100) std::abort();"
    ((_, found),) = evaluator.prepare([jobs.job(body)], depth="accept")
    assert isinstance(found, Crashed), found
    assert found.signal == signal.SIGABRT


def test_a_write_just_outside_is_told_by_the_redzone_and_does_not_crash(evaluator: WorkerEvaluator) -> None:
    found = verdict(evaluator, "right(a, rank, size); if (rank == 0) a.y[rows] = 1;")
    assert isinstance(found, Incorrect), found
    assert [check.name for check in found.report.checks if not check.ok] == ["redzone"]


def test_a_kernel_that_reads_what_it_never_wrote_is_incorrect(evaluator: WorkerEvaluator) -> None:
    """Nearly always there is some finite number on the stack, and zero weights make nothing of it."""
    found = verdict(evaluator, "volatile float pad[16]; right(a, rank, size); if (rank == 0) a.y[0] += pad[5] * 0.0f;")
    assert isinstance(found, Incorrect), found
    found = verdict(
        evaluator, "volatile float pad[16] = {}; right(a, rank, size); if (rank == 0) a.y[0] += pad[5] * 0.0f;"
    )
    assert isinstance(found, Prepared), found
