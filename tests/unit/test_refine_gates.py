"""The order of the gates: search, then what ships must pass, then a time on fresh data; and what each of them says."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from agentcompile.build.binary import Binary
from agentcompile.evaluation.evaluator import Baseline, EvaluationJob, Prepared
from agentcompile.ir.attempt import Evaluated, Times
from agentcompile.ir.resources import Resources
from agentcompile.ir.target import Ceiling
from agentcompile.ir.timing import Clock, Round, Samples, Timing
from agentcompile.ir.trial import (
    NO_INTERVAL,
    Check,
    Crashed,
    Disturbed,
    Impossible,
    Incorrect,
    Measured,
    NumericReport,
    Verdict,
)
from agentcompile.measure import POLICY
from agentcompile.refine import feedback
from agentcompile.refine.contract import contract_of
from agentcompile.refine.evaluating import RegionEvaluator, admissible
from agentcompile.refine.feedback import IncumbentComparison
from agentcompile.refine.incumbent import Bar, bar_of
from agentcompile.tuning.jobs import JobMaker
from tests.cpu.written import CEILING, MANIFEST, task, written
from tests.unit.fakes import RIGHT, linear_region, rows_template, target

REGION = linear_region(dtype="fp32", hidden=64, rows=32)
WRONG = NumericReport(
    checks=(
        Check(name="element", ok=False, measured=3.5, allowed=1.0, detail="normal: y[7] is 1, expected 2"),
        Check(name="redzone", ok=True, measured=0.0, allowed=0.0),
    ),
    error_ratio=math.inf,
    cases=1,
    repeats=16,
)


@dataclass(kw_only=True)
class Scripted:
    """An evaluator that returns what it is given: times in us by label ("" for PyTorch's), and verdicts by depth."""

    us: dict[str, float]
    at_depth: dict[str, Verdict] = field(default_factory=dict)
    fails: dict[str, Verdict] = field(default_factory=dict)
    """Of timing, by label."""
    whole: Verdict | None = None
    """The end of a timing that no arm caused."""
    log: list[tuple[Any, ...]] = field(default_factory=list)

    def prepare(self, jobs: Iterable[EvaluationJob], *, depth: str = "search") -> Iterator[tuple[EvaluationJob, Any]]:
        for job in jobs:
            self.log.append((depth, job.candidate.label))
            found = self.at_depth.get(depth)
            yield job, found or Prepared(job=job, binary=Binary(digest="b" * 64), report=RIGHT)

    def time(
        self, region: object, arms: Sequence[Prepared | Baseline], *, rounds: int, processes: int, **_: Any
    ) -> Timing | Verdict:
        labels = tuple("" if isinstance(arm, Baseline) else arm.job.candidate.label for arm in arms)
        self.log.append(("time", labels, rounds, processes))
        if self.whole is not None:
            return self.whole
        live = tuple(at for at, label in enumerate(labels) if label not in self.fails)
        ns = [round(1e6 * self._of(labels[at])) for at in live]
        taken = tuple(
            Round(intervals_ns=tuple((one + at % 3, one + at % 2) for one in ns), waited_ns=(0,) * len(ns))
            for at in range(rounds)
        )
        samples = Samples(batch=1000, clock=Clock(quantum_ns=1, doubling=(2.0,) * len(ns)), rounds=taken, others=0.0)
        return Timing(
            arms=labels,
            live=live,
            failed=tuple((at, self.fails[label]) for at, label in enumerate(labels) if at not in live),  # type: ignore[misc]
            processes=(samples,) * processes,
            residency="cache",
        )

    def _of(self, label: str) -> float:
        return next(us for name, us in self.us.items() if name and label.startswith(name)) if label else self.us[""]

    def ceiling(self) -> Ceiling:
        return CEILING


def evaluated(
    evaluator: Scripted, *, confirms: bool = True, bar: Bar | None = None, manifest: str = MANIFEST
) -> Evaluated:
    asked = task(REGION, target=target())
    bar = bar or Bar(times=Times(reference_ns=20_000.0, incumbent_ns=20_000.0))
    contract = contract_of(asked, "cpp", CEILING, bar.times)
    return RegionEvaluator(asked, contract, evaluator, bar, confirms=confirms).evaluate(written(manifest=manifest))  # type: ignore[arg-type]


def told(found: Evaluated) -> dict[str, Any]:
    assert isinstance(found.feedback, dict)
    return found.feedback


def test_a_faster_kernel_is_accepted_and_its_time_confirmed_in_fresh_processes() -> None:
    evaluator = Scripted(us={"": 20.0, "linear/written": 10.0})
    found = evaluated(evaluator)
    assert [entry[0] for entry in evaluator.log] == ["search", "time", "accept", "time"]
    assert evaluator.log[-1][2:] == (POLICY.confirm_rounds, POLICY.confirm_processes)
    assert isinstance(found.verdict, Measured)
    assert found.verdict.measurement.processes == POLICY.confirm_processes
    assert (told(found)["accepted"], told(found)["confirmed"]) == (True, True)
    beside = told(found)["beside_incumbent"]
    assert (beside["incumbent"], beside["comparison"]) == ("pytorch", "FASTER")
    assert [beside["speedup"], *beside["interval"]] == pytest.approx([2.0, 2.0, 2.0], abs=1e-3)
    assert admissible(found)
    assert (told(found)["us"], told(found)["incumbent_us"]) == (10.0, 20.0)
    assert found.over_reference == pytest.approx(0.5)


def test_a_slower_kernel_is_not_worth_what_ships_must_pass() -> None:
    evaluator = Scripted(us={"": 20.0, "linear/written": 30.0})
    found = evaluated(evaluator)
    assert [entry[0] for entry in evaluator.log] == ["search", "time"]
    assert found.ns == 30_000
    assert told(found)["accepted"] is None
    assert not admissible(found)


def test_a_faster_kernel_that_fails_what_ships_must_pass_has_no_time() -> None:
    evaluator = Scripted(us={"": 20.0, "linear/written": 10.0}, at_depth={"accept": Incorrect(report=WRONG)})
    found = evaluated(evaluator)
    assert isinstance(found.verdict, Incorrect)
    assert found.ns == math.inf
    assert told(found)["accepted"] is False
    assert told(found)["failed_checks"] == [
        {
            "check": "element",
            "measured": 3.5,
            "allowed": 1.0,
            "times_allowed": 3.5,
            "where": "normal: y[7] is 1, expected 2",
        }
    ]
    assert told(found)["error_ratio"] == "Infinity"


def test_the_bar_is_the_incumbent_in_the_same_rounds_not_what_it_took_before() -> None:
    asked = task(REGION, templates=[rows_template(layouts=(), arch=(), requires=())], target=target())
    evaluator = Scripted(us={"": 20.0, "linear/rows": 5.0, "linear/written": 10.0})
    bar = bar_of(asked, JobMaker(target()), evaluator)  # type: ignore[arg-type]
    assert bar is not None
    assert (bar.times.reference_ns, bar.times.incumbent_ns) == pytest.approx((20_000.0, 5_000.0), rel=1e-6)
    evaluator.us["linear/rows"] = 12.0  # a neighbour slows everything down
    found = evaluated(evaluator, bar=bar)
    assert told(found)["beside_incumbent"]["incumbent"] == bar.label
    assert told(found)["beside_incumbent"]["comparison"] == "FASTER"
    assert told(found)["accepted"] is True


BUSY = 10.6
"""How much longer everything takes at a busy moment."""


def opened_at(
    first: dict[str, float], us: dict[str, float], then: dict[str, float] | None = None
) -> tuple[Scripted, RegionEvaluator, Bar]:
    """Workers, an evaluator, its bar: times were `first` while the bar was taken, `us` while kernels are timed.

    They are `then`, else as kernels' are, where the bar is taken anew.
    """
    asked = task(REGION, templates=[rows_template(layouts=(), arch=(), requires=())], target=target())
    evaluator, jobs = Scripted(us=us), JobMaker(target())
    bar = bar_of(asked, jobs, Scripted(us=first))  # type: ignore[arg-type]
    assert bar is not None

    def retake() -> Bar | None:
        evaluator.log.append(("retaken",))
        return bar_of(asked, jobs, Scripted(us=then or us))  # type: ignore[arg-type]

    contract = contract_of(asked, "cpp", CEILING, bar.times)
    return evaluator, RegionEvaluator(asked, contract, evaluator, bar, retake=retake), bar  # type: ignore[arg-type]


def test_a_bar_that_was_taken_at_a_busy_moment_spoils_no_ratio_and_is_taken_anew() -> None:
    us = {"": 900.0, "linear/rows": 700.0, "linear/written": 725.0}
    workers, evaluator, bar = opened_at({name: BUSY * one for name, one in us.items()}, us)
    assert bar.times.incumbent_ns == pytest.approx(7_420_000, rel=1e-3)
    found = evaluator.evaluate(written())
    assert told(found)["beside_incumbent"]["comparison"] == "SLOWER", "by the first bar it is ten times as fast"
    assert told(found)["beside_incumbent"]["speedup"] == pytest.approx(0.9655, abs=1e-3)
    assert told(found)["incumbent_us"] == pytest.approx(700.0, rel=1e-3)
    assert found.over_reference == pytest.approx(725 / 900, rel=1e-3)
    assert found.times is not None
    assert (found.times.reference_ns, found.times.incumbent_ns) == pytest.approx((900e3, 700e3), rel=1e-3)
    assert not admissible(found)
    evaluator.evaluate(written(kernel="// another\n"))
    assert sum(entry == ("retaken",) for entry in workers.log) == 1, "the bar agrees with the rounds now"


def test_a_kernel_is_timed_beside_the_incumbent_that_a_quiet_moment_shows() -> None:
    us = {"": 900.0, "linear/rows": 700.0, "linear/written": 800.0}
    # The shipped kernel's threads wait for one another, so that a busy moment is worse for it than for PyTorch.
    workers, evaluator, bar = opened_at({"": 9_000.0, "linear/rows": 12_000.0}, us)
    assert bar.label == "pytorch"
    found = evaluator.evaluate(written())
    assert told(found)["beside_incumbent"]["incumbent"].startswith("linear/rows")
    assert told(found)["beside_incumbent"]["comparison"] == "SLOWER"
    assert not admissible(found), "it is faster than PyTorch, and slower than what is known"
    assert [entry[0] for entry in workers.log] == ["search", "time", "retaken", "time"]


def test_a_busy_moment_of_one_kernel_does_not_move_the_bar() -> None:
    us = {"": 900.0, "linear/rows": 700.0, "linear/written": 600.0}
    workers, evaluator, bar = opened_at(us, {name: BUSY * one for name, one in us.items()}, then=us)
    found = evaluator.evaluate(written())
    assert ("retaken",) in workers.log
    assert found.times == bar.times
    assert told(found)["beside_incumbent"]["speedup"] == pytest.approx(700 / 600, rel=1e-3)


def test_feedback_says_how_much_error_is_allowed_and_counts_only_flops_that_there_are() -> None:
    checks = (
        Check(name="error-ratio", ok=True, measured=0.8, allowed=1.3),
        Check(name="error ratio", ok=True, measured=2.0, allowed=32.0),
    )
    for check in checks:
        report = replace(RIGHT, checks=(check,), error_ratio=7.0)
        found = feedback.told(Incorrect(report=report), REGION, 0.0)
        assert (found["error_ratio"], found["error_ratio_allowed"]) == (check.measured, check.allowed)
    measured = evaluated(Scripted(us={"": 20.0, "linear/written": 30.0})).verdict
    bare = replace(REGION, cost=replace(REGION.cost, flops=0))
    rates = [feedback.told(measured, region, 0.0)["gflop_per_s"] for region in (REGION, bare)]
    assert rates == [pytest.approx(REGION.cost.flops / 30_000, abs=1e-3), None]


@pytest.mark.parametrize(("arch", "registers", "warps"), [("sm_90a", 168, (12, 64)), ("sm_89", 48, (42, 48))])
def test_feedback_says_what_registers_leave_of_a_multiprocessor(
    arch: str, registers: int, warps: tuple[int, int]
) -> None:
    own = Resources(entry="f", registers=registers, shared_bytes=4096, spill_bytes=8)
    assert feedback.resources([own], arch) == [
        {
            "entry": "f",
            "registers": registers,
            "shared_bytes": 4096,
            "spill_bytes": 8,
            "stack_bytes": 0,
            "warps_by_registers": warps[0],
            "most_warps": warps[1],
        }
    ]


def test_a_comparison_without_an_interval_says_so() -> None:
    beside = IncumbentComparison(
        label="pytorch", comparison="INCONCLUSIVE", log_ratio=0.1, half_width=NO_INTERVAL, incumbent_ns=1.0
    )
    assert beside.told["interval"] is None
    assert replace(beside, half_width=0.1).told["interval"] == [1.0, 1.2214]


def test_pytorch_is_the_bar_where_no_kernel_is_faster() -> None:
    asked = task(REGION, templates=[rows_template(layouts=(), arch=(), requires=())], target=target())
    found = bar_of(asked, JobMaker(target()), Scripted(us={"": 20.0, "linear/rows": 25.0}))  # type: ignore[arg-type]
    assert found is not None
    assert found.label == "pytorch"
    assert found.times.incumbent_ns == found.times.reference_ns
    crash = Crashed(stage="measure", signal=9)
    assert bar_of(asked, JobMaker(target()), Scripted(us={}, whole=crash)) is None  # type: ignore[arg-type]


def test_the_fastest_point_counts_and_all_are_told() -> None:
    manifest = MANIFEST + '\n[params.AHEAD]\ndomain = [1, 2]\ndefault = 1\nabout = "steps"\n'
    us = {"": 20.0}
    evaluator = Scripted(us=us)
    evaluator._of = lambda label: 20.0 if not label else 30.0 if "AHEAD=1" in label else 10.0  # type: ignore[method-assign]
    found = evaluated(evaluator, manifest=manifest, confirms=False)
    assert found.ns == 10_000
    assert told(found)["params"] == {"AHEAD": 2}
    assert [row["us"] for row in told(found)["points"]] == [30.0, 10.0]


def test_a_kernel_that_crashes_while_it_is_timed_has_crashed() -> None:
    evaluator = Scripted(us={"": 20.0})
    label = f"linear/written-{written().digest[:12]}"
    evaluator.fails[label] = Crashed(stage="measure", signal=11)
    found = evaluated(evaluator)
    assert isinstance(found.verdict, Crashed)
    assert told(found)["stage"] == "measure"


def test_what_the_machine_did_says_nothing_of_the_kernel() -> None:
    found = evaluated(Scripted(us={}, whole=Disturbed(stage="measure", detail="killed")))
    assert isinstance(found.verdict, Disturbed)
    assert "evaluated again" in told(found)["detail"]


def test_a_time_that_no_machine_reaches_is_impossible_and_counts_for_nothing() -> None:
    slow = Ceiling(dram_bytes_per_s=1e9, cache_bytes_per_s=1e9, flops_per_s=1e9)
    evaluator = Scripted(us={"": 20.0, "linear/written": 0.01})
    evaluator.ceiling = lambda: slow  # type: ignore[method-assign]
    asked = task(REGION, target=target())
    asked = replace(asked, floor_ns=REGION.floor_ns(slow, "cache"))
    bar = Bar(times=Times(reference_ns=20_000.0, incumbent_ns=20_000.0))
    contract = contract_of(asked, "cpp", slow, bar.times)
    found = RegionEvaluator(asked, contract, evaluator, bar).evaluate(written())  # type: ignore[arg-type]
    assert isinstance(found.verdict, Impossible)
    assert found.ns == math.inf
