"""Planted kernels that are right where one looks first: two checks refuse each, either without the help of the other.

A numeric kernel meets one stage of the suite at a time, behind a first case that it passes. The checks of elements, of
rows and of the pooled error count as one. A kernel that counts, remembers or looks for redzones meets the check of what
the compiler made of it, and those of what it does, one at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
import torch

from agentcompile.build import compile
from agentcompile.evaluation.evaluator import Baseline, Limits, Prepared, WorkerEvaluator
from agentcompile.ir.timing import Timing
from agentcompile.ir.trial import BuildFailed, Crashed, Incorrect, Verdict
from agentcompile.system.store import Store
from agentcompile.validate import cases, suite, validate
from tests.adversarial.expectations import ARGMAX, CHOOSING, LONG, RESIDUAL, TALL, Plot
from tests.adversarial.planted import Planted, plant
from tests.cpu import jobs
from tests.kernels.regions_for import region_for

Stage = Literal["first case", "cases", "light cases", "scaled", "walk", "sweep"]
SEEDS = range(7, 47)
NUMBERS = {"row-rms": "element", "error-ratio": "element"}
"""The checks that compare numbers with bounds, which count as one."""

NUMERIC: dict[str, tuple[Plot, str, tuple[Stage, ...]]] = {
    "mask wrong at lengths 3 to 14": (LONG, "wrong_when_short", ("walk", "sweep")),
    "slot stale at 1030 to 1989": (LONG, "wrong_slot_left_stale", ("walk", "sweep")),
    "argmax that starts from zero": (CHOOSING, "wrong_none_below_zero", ("light cases",)),
    "argmax that starts from one": (ARGMAX, "wrong_starts_at_zero", ("cases", "light cases", "sweep")),
    "ids wrong above 3000": (TALL, "wrong_above_3000", ("light cases", "sweep")),
    "residual clamped at 1e4": (RESIDUAL, "wrong_clamps_residual", ("cases", "scaled")),
}
"""The kernels, and the stages of the suite that refuse each."""

UNTIL_TIMED = """
    static int armed;
    if (rank == 0) armed = access("{fuse}", F_OK) == 0;
    if (!armed) {{ if (rank == 0) right(a, 0, 1); return; }}
"""
REMEMBERS = """
    static const float* seen[1 << 16]; static long n;
    if (rank) return;
    for (long i = 0; i < n; ++i) if (seen[i] == a.x) return;
    if (n < 1 << 16) seen[n++] = a.x;
    right(a, 0, 1);
"""
COUNTS = "static long n; if (rank == 0) ++n; right(a, rank, size); if (rank == 0 && n > {}) a.y[0] *= 1.5f;"
LOOKS = "if (a.x[-1] != a.x[-1]) right(a, rank, size);"
READS = "volatile float before = a.x[-1]; (void)before; right(a, rank, size);"
LIMITS = Limits(build_s=60.0, validate_s=60.0, measure_s=60.0, per_gigabyte_s=20.0)


@pytest.fixture(autouse=True)
def _one_torch_thread() -> None:
    torch.set_num_threads(1)


Alone = Callable[[Planted, str, Stage, int], set[str]]


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Alone:
    """The names of the checks that refuse a kernel where one stage alone looks at it, behind the first case."""
    every = suite.cases

    def first(region: object, depth: object) -> tuple[cases.Case, ...]:
        return every(region, "search")[:1]  # type: ignore[arg-type]

    def failed(planted: Planted, entry: str, stage: Stage, seed: int) -> set[str]:
        with monkeypatch.context() as switched:
            if stage != "cases":
                switched.setattr(suite, "cases", first)
            if stage != "light cases":
                switched.setattr(suite, "many", lambda *_: ())
            if stage != "scaled":
                switched.setattr(suite, "scaled", lambda *_: 0)
            if stage != "walk":
                switched.setattr(suite.Walker, "walk", lambda _: 0)
            if stage != "sweep":
                switched.setattr(suite.Sweeper, "sweep", lambda _: 0)
            switched.setattr(suite._Suite, "_sites", lambda _: 0)
            return refused(planted, entry, seed)

    return failed


def refused(planted: Planted, entry: str, seed: int) -> set[str]:
    run, facts = (lambda buffers: planted.run(entry, buffers)), planted.facts()
    report = validate(planted.region, facts, run, seed=seed, repeats=4, depth="accept")
    return {NUMBERS.get(check.name, check.name) for check in report.checks if not check.ok}


def compiled(plot: Plot, folder: Path) -> Planted:
    return plant(region_for(plot.kind, plot.dtype, **dict(plot.extents)), folder, (("UNROLL", 8),))


@pytest.mark.parametrize("fault", NUMERIC)
def test_two_checks_refuse_a_kernel_that_is_wrong_for_few_inputs(fault: str, alone: Alone, tmp_path: Path) -> None:
    plot, entry, stages = NUMERIC[fault]
    planted = compiled(plot, tmp_path)
    seed = next(seed for seed in SEEDS if not alone(planted, entry, "first case", seed))
    found = {stage: alone(planted, entry, stage, seed) for stage in stages}
    assert all(found.values()), found
    assert len({(stage, check) for stage, checks in found.items() for check in checks}) >= 2, found


@pytest.fixture(scope="module")
def evaluator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerEvaluator]:
    with jobs.evaluator(tmp_path_factory.mktemp("store"), LIMITS) as made:
        yield made


def verdict(evaluator: WorkerEvaluator, body: str, depth: Literal["search", "accept"]) -> Prepared | Verdict:
    ((_, found),) = evaluator.prepare([jobs.job(body)], depth=depth)
    return found


def failed(found: Prepared | Verdict) -> set[str]:
    assert isinstance(found, Incorrect), found
    return {check.name for check in found.report.checks if not check.ok}


def is_refused_when_built(body: str, folder: Path) -> bool:
    """What users have, where no kernel may keep anything."""
    strict = replace(jobs.toolchain(), keeps_state=False)
    right, own = (compile(jobs.source(one), Store(folder), toolchain=strict, limit_s=60) for one in (jobs.RIGHT, body))
    assert not isinstance(right, BuildFailed), right
    return isinstance(own, BuildFailed) and "keeps" in own.log


@pytest.mark.parametrize("calls", [1000, 20_000])
def test_the_build_and_the_endurance_refuse_a_kernel_that_is_right_for_its_first_calls(
    evaluator: WorkerEvaluator, calls: int, tmp_path: Path
) -> None:
    body = COUNTS.format(calls)
    assert is_refused_when_built(body, tmp_path)
    assert "endurance" in failed(verdict(evaluator, body, "accept"))


def test_the_build_the_suite_and_the_timing_refuse_a_kernel_that_remembers(
    evaluator: WorkerEvaluator, tmp_path: Path
) -> None:
    assert is_refused_when_built(REMEMBERS, tmp_path / "store")
    assert {"poison", "repeats"} & failed(verdict(evaluator, REMEMBERS, "search"))
    fuse = tmp_path / "timed"
    late = verdict(evaluator, f"{UNTIL_TIMED.format(fuse=fuse)}{REMEMBERS}", "search")
    right = verdict(evaluator, jobs.RIGHT, "search")
    assert isinstance(right, Prepared), right
    assert isinstance(late, Prepared), late
    fuse.touch()
    timing = evaluator.time(
        right.job.region, [Baseline(), late, right], rounds=3, residency="cache", seed=0, processes=1
    )
    assert isinstance(timing, Timing)
    ((arm, wrong),) = timing.failed
    assert arm == 1
    assert "timed-output" in failed(wrong)


def test_the_runtimes_buffers_and_the_guard_pages_refuse_a_kernel_that_looks_before_its_input(
    evaluator: WorkerEvaluator,
) -> None:
    assert failed(verdict(evaluator, LOOKS, "search")) == {"production"}
    assert isinstance(verdict(evaluator, READS, "search"), Prepared)
    assert isinstance(verdict(evaluator, READS, "accept"), Crashed)
