"""Why a candidate lost, in clauses that each name what was measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agentcompile.events import ChoiceMade, PlanAdmitted, TrialFinished
from agentcompile.ir.resources import Resources
from agentcompile.ir.trial import BuildFailed, Fallback, Measured, Part, TimedOut, Trial
from agentcompile.runs.losses import why_lost
from agentcompile.runs.progress import State, fold
from tests.unit.runs import FOUND, KERNEL, PLAN, STARTED, TARGET, measured, trial


def state(*trials: Trial, **more: object) -> State:
    started = replace(STARTED, **more) if more else STARTED  # type: ignore[arg-type]
    return fold([started, FOUND, *(TrialFinished(trial=one) for one in trials)])


def timed(log_ratio: float, **more: object) -> Measured:
    found = measured(log_ratio)
    return replace(found, measurement=replace(found.measurement, **more))  # type: ignore[arg-type]


BEST = trial(4, timed(0.5))


def test_what_is_best_or_runs_lost_nothing() -> None:
    assert why_lost(state(BEST), BEST) == ""
    assert why_lost(fold([ChoiceMade(region=FOUND.region, choice=KERNEL)], state(BEST)), BEST) == ""


def test_a_slower_one_is_held_beside_the_best_with_what_differs_and_what_it_reads() -> None:
    slow = trial(8, timed(0.0, median_ns=2_000))
    assert why_lost(state(BEST, slow), slow) == "1.65× the time of rows(ROWS=4) (ROWS 8 for 4); 25% of read bandwidth"


def test_one_within_the_intervals_is_not_called_slower() -> None:
    near = trial(8, timed(0.49))
    assert why_lost(state(BEST, near), near).startswith("no faster than rows(ROWS=4) within the interval of ±1.4%")


def test_one_that_was_faster_in_the_search_alone_says_so() -> None:
    confirmed = trial(4, timed(0.5), fidelity="confirm")
    lucky = trial(8, timed(0.9))
    assert "faster by itself than rows(ROWS=4), but only in rounds of the search" in why_lost(
        state(confirmed, lucky), lucky
    )


def test_a_region_that_is_bound_by_arithmetic_is_not_said_to_read() -> None:
    slow = trial(8, timed(0.0, median_ns=2_000))
    dense = replace(FOUND, bytes=2)
    beside = replace(FOUND, region="b" * 64, name="other")
    known = fold([STARTED, dense, beside, TrialFinished(trial=BEST), TrialFinished(trial=slow)])
    assert "25% of the multiply-add rate" in why_lost(known, slow)


@pytest.mark.parametrize(
    ("arch", "registers", "said"),
    [
        ("sm_90a", (168, 64), "168 registers leave 12 of 64 warps, 38% the occupancy"),
        ("sm_90a", (64, 32), "64 registers leave 32 of 64 warps, half the occupancy"),
        ("sm_89", (48, 32), "48 registers leave 42 of 48 warps, 88% the occupancy"),
        ("sm_90a", (32, 32), ""),
    ],
)
def test_registers_are_named_where_they_cost_warps(arch: str, registers: tuple[int, int], said: str) -> None:
    slow = trial(8, timed(0.0))
    slow = replace(slow, source="slow")
    reports = {
        source: (Resources(entry="k", registers=count),) for source, count in zip(("slow", "s"), registers, strict=True)
    }
    told = why_lost(state(BEST, slow, target=replace(TARGET, kind="cuda", arch=arch)), slow, reports)
    assert (said in told) if said else ("registers" not in told)


def test_spills_doubts_and_a_cut_timing_are_named() -> None:
    slow = replace(
        trial(8, timed(0.0, p95_ns=9_000, comparison="INCONCLUSIVE", rounds=4, asked=9, median_ns=2_000)), source="slow"
    )
    reports = {"slow": (Resources(entry="k", registers=32, spill_bytes=64),)}
    told = why_lost(state(BEST, slow), slow, reports)
    for clause in (
        "64 bytes a thread are spilled",
        "4 rounds do not tell it from pytorch",
        "one round in twenty takes 4.5× its median",
        "time was up before all its rounds",
    ):
        assert clause in told
    busy = trial(8, timed(0.0, disturbed=0.5, comparison="SLOWER"))
    assert "slower than pytorch; other processes disturbed 50% of its rounds" in why_lost(state(BEST, busy), busy)


def test_a_failure_says_at_which_gate() -> None:
    failed = trial(8, BuildFailed(log="x.cpp:1: error: no such thing"))
    assert why_lost(state(failed), failed) == "it did not build: x.cpp:1: error: no such thing"
    late = trial(8, TimedOut(stage="measure", limit_s=9.0))
    assert why_lost(state(late), late) == "it took too long: in measure, after 9 s"


def test_the_best_of_a_region_that_does_not_run_it_says_what_does() -> None:
    fallback = Fallback(reason="no kernel is faster in the step")
    kept = fold([ChoiceMade(region=FOUND.region, choice=fallback)], state(BEST))
    assert why_lost(kept, BEST) == "PyTorch runs instead: no kernel is faster in the step"
    elsewhere = replace(PLAN, parts=(Part(region="b" * 64, choice=KERNEL),))
    covered = fold([PlanAdmitted(plan=elsewhere)], state(BEST))
    assert why_lost(covered, BEST) == "the plan covers the operators of this region by other regions"
