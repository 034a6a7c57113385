"""The order of the gates: search, then what ships must pass, then a time on fresh data; and what each of them says."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from agentcompile.build.binary import Binary
from agentcompile.evaluation.evaluator import Baseline, EvaluationJob, Prepared
from agentcompile.ir.attempt import Judged
from agentcompile.ir.target import Ceiling
from agentcompile.ir.timing import Clock, Round, Samples, Timing
from agentcompile.ir.trial import Check, Crashed, Disturbed, Impossible, Incorrect, Measured, NumericReport, Verdict
from agentcompile.measure import POLICY
from agentcompile.refine.contract import Times, contract_of
from agentcompile.refine.incumbent import Bar, bar_of
from agentcompile.refine.judging import RegionJudge, admissible
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
    """An evaluator that says what it is told: times in us by label ("" for PyTorch's), and verdicts by depth."""

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


def judged(evaluator: Scripted, *, confirms: bool = True, bar: Bar | None = None, manifest: str = MANIFEST) -> Judged:
    asked = task(REGION, target=target())
    bar = bar or Bar(times=Times(reference_ns=20_000.0, incumbent_ns=20_000.0))
    contract = contract_of(asked, "cpp", CEILING, bar.times)
    return RegionJudge(asked, contract, evaluator, bar, confirms=confirms).judge(written(manifest=manifest))  # type: ignore[arg-type]


def told(found: Judged) -> dict[str, Any]:
    assert isinstance(found.feedback, dict)
    return found.feedback


def test_a_faster_kernel_is_accepted_and_its_time_confirmed_in_fresh_processes() -> None:
    evaluator = Scripted(us={"": 20.0, "linear/written": 10.0})
    found = judged(evaluator)
    assert [entry[0] for entry in evaluator.log] == ["search", "time", "accept", "time"]
    assert evaluator.log[-1][2:] == (POLICY.confirm_rounds, POLICY.confirm_processes)
    assert isinstance(found.verdict, Measured)
    assert found.verdict.measurement.processes == POLICY.confirm_processes
    assert (told(found)["accepted"], told(found)["confirmed"]) == (True, True)
    assert told(found)["beside_incumbent"] == pytest.approx(
        {"incumbent": "pytorch", "comparison": "FASTER", "speedup": 2.0, "half_width": 0.0}, abs=1e-3
    )
    assert admissible(found)
    assert (told(found)["us"], told(found)["times_the_incumbent"]) == (10.0, 0.5)


def test_a_slower_kernel_is_not_worth_what_ships_must_pass() -> None:
    evaluator = Scripted(us={"": 20.0, "linear/written": 30.0})
    found = judged(evaluator)
    assert [entry[0] for entry in evaluator.log] == ["search", "time"]
    assert found.ns == 30_000
    assert told(found)["accepted"] is None
    assert not admissible(found)


def test_a_faster_kernel_that_fails_what_ships_must_pass_has_no_time() -> None:
    evaluator = Scripted(us={"": 20.0, "linear/written": 10.0}, at_depth={"accept": Incorrect(report=WRONG)})
    found = judged(evaluator)
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
    found = judged(evaluator, bar=bar)
    assert told(found)["beside_incumbent"]["incumbent"] == bar.label
    assert told(found)["beside_incumbent"]["comparison"] == "FASTER"
    assert told(found)["accepted"] is True


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
    found = judged(evaluator, manifest=manifest, confirms=False)
    assert found.ns == 10_000
    assert told(found)["params"] == {"AHEAD": 2}
    assert [row["us"] for row in told(found)["points"]] == [30.0, 10.0]


def test_a_kernel_that_crashes_while_it_is_timed_has_crashed() -> None:
    evaluator = Scripted(us={"": 20.0})
    label = f"linear/written-{written().digest[:12]}"
    evaluator.fails[label] = Crashed(stage="measure", signal=11)
    found = judged(evaluator)
    assert isinstance(found.verdict, Crashed)
    assert told(found)["stage"] == "measure"


def test_what_the_machine_did_says_nothing_of_the_kernel() -> None:
    found = judged(Scripted(us={}, whole=Disturbed(stage="measure", detail="killed")))
    assert isinstance(found.verdict, Disturbed)
    assert "judged again" in told(found)["detail"]


def test_a_time_that_no_machine_reaches_is_impossible_and_counts_for_nothing() -> None:
    slow = Ceiling(dram_bytes_per_s=1e9, cache_bytes_per_s=1e9, flops_per_s=1e9)
    evaluator = Scripted(us={"": 20.0, "linear/written": 0.01})
    evaluator.ceiling = lambda: slow  # type: ignore[method-assign]
    asked = task(REGION, target=target())
    asked = replace(asked, floor_ns=REGION.floor_ns(slow, "cache"))
    bar = Bar(times=Times(reference_ns=20_000.0, incumbent_ns=20_000.0))
    contract = contract_of(asked, "cpp", slow, bar.times)
    found = RegionJudge(asked, contract, evaluator, bar).judge(written())  # type: ignore[arg-type]
    assert isinstance(found.verdict, Impossible)
    assert found.ns == math.inf
