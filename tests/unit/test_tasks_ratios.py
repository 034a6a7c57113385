"""Which point of a task's kernel counts, and when its baselines are taken anew: by rounds side by side alone."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from agentcompile.ir.attempt import Evaluated, Times, Written
from agentcompile.ir.template import Params, Template
from agentcompile.ir.trial import Crashed, Measured, NumericReport, Verdict
from agentcompile.tasks.evaluating import TaskEvaluator, fastest
from agentcompile.tasks.kernel import Built
from agentcompile.tasks.timing import Baselines
from tests.unit.fakes import RIGHT, target
from tests.unit.refined import RAN
from tests.unit.test_tasks_contract import Task, made

QUIET = Baselines(name="torch.compile", us={"pytorch": 900.0, "torch.compile": 700.0}, failed={})
BUSY = Baselines(name="torch.compile", us={"pytorch": 9_600.0, "torch.compile": 7_451.0}, failed={})
WRONG = Baselines(name="pytorch", us={"pytorch": 9_000.0, "torch.compile": 12_000.0}, failed={})
"""Compiled code whose threads wait for one another suffers more from a busy moment."""
TUNED = '\n[params.ROWS]\ndomain = [1, 2]\ndefault = 1\nabout = "rows"\n'


def timed(us: float, beside_us: float, name: str) -> Measured:
    """A kernel's time in rounds with a baseline."""
    assert isinstance(RAN, Measured)
    ratio = math.log(beside_us / us)
    measurement = replace(
        RAN.measurement,
        median_ns=round(1e3 * us),
        baseline_ns=round(1e3 * beside_us),
        baseline=name,
        log_ratio=ratio,
        comparison="FASTER" if ratio > 0.01 else "SLOWER",
    )
    return replace(RAN, measurement=measurement)


class Rounds(TaskEvaluator):
    """The gates of a task whose points take the given times beside the baseline, in their order; nothing is built."""

    def __init__(self, known: Baselines, points: list[tuple[float, float]], then: Baselines = QUIET) -> None:
        shop: Any = SimpleNamespace(target=target(), own_memory=False)
        task: Any = Task()
        self.retaken = 0
        super().__init__(task, made(), known, shop, seed=1, confirms=False, retake=lambda _: self._anew(then))
        self._points = points

    def _anew(self, then: Baselines) -> Baselines:
        self.retaken += 1
        return then

    def _evaluated(self, template: Template, params: Params) -> Verdict:
        return timed(*self._points.pop(0), self._baselines.name)

    def _rebuilt(self, template: Template, params: Params) -> Built:
        built: Any = None
        return built

    def _measured(self, built: Built, report: NumericReport, *, confirm: bool) -> Verdict:
        assert report == RIGHT
        return timed(*self._points.pop(0), self._baselines.name)

    def kernel(self, manifest: str = "") -> Evaluated:
        """Evaluate a kernel."""
        interface: Any = self._contract.interface
        text = interface["manifest"]["example"] + manifest
        return self.evaluate(Written(manifest=text, kernel=interface["launch"]["skeleton"]))


def told(evaluated: Evaluated) -> dict[str, Any]:
    assert isinstance(evaluated.feedback, dict)
    return evaluated.feedback


def test_the_point_that_is_fastest_beside_the_baseline_counts_and_not_one_of_a_quiet_moment() -> None:
    evaluator = Rounds(QUIET, [(650.0, 700.0), (2_000.0, 4_000.0)])
    evaluated = evaluator.kernel(TUNED)
    assert told(evaluated)["params"] == {"ROWS": 2}, "half the baseline's time, though the machine was busy for both"
    assert evaluated.over_reference == pytest.approx(0.5 * 700 / 900)


def test_baselines_of_a_busy_moment_are_taken_anew_once() -> None:
    evaluator = Rounds(BUSY, [(725.0, 700.0), (720.0, 700.0)])
    evaluated = evaluator.kernel()
    assert (told(evaluated)["beside_incumbent"]["comparison"], told(evaluated)["incumbent_us"]) == ("SLOWER", 700.0)
    assert told(evaluated)["admissible"] is False
    assert evaluated.over_reference == pytest.approx(725 / 900, rel=1e-3)
    assert evaluated.times == QUIET.times == Times(reference_ns=900e3, incumbent_ns=700e3, arms=QUIET.times.arms)
    evaluator.kernel()
    assert evaluator.retaken == 1


def test_a_kernel_is_timed_beside_the_form_that_a_quiet_moment_shows_to_be_the_fastest() -> None:
    evaluator = Rounds(WRONG, [(800.0, 900.0), (800.0, 700.0)])
    evaluated = evaluator.kernel()
    assert told(evaluated)["beside_incumbent"]["incumbent"] == "torch.compile"
    assert told(evaluated)["admissible"] is False


def test_a_busy_moment_of_a_kernel_moves_no_baseline() -> None:
    evaluator = Rounds(QUIET, [(6_000.0, 7_000.0)])
    evaluated = evaluator.kernel()
    assert evaluated.times == QUIET.times
    assert told(evaluated)["admissible"] is True


@pytest.mark.parametrize(
    ("half_width", "counts"),
    [
        (0.02, 0),  # the first is surely the faster beside the baseline: the machine was busy when it took 54 us
        (0.6, 1),  # the intervals of the first two overlap, and the second took less time
        (2.5, 1),  # all intervals overlap, and only the last may lose against the baseline
        (9.0, 2),  # any may be
        (math.inf, 2),  # too few rounds
    ],
)
def test_ratios_decide_where_they_tell_points_apart(half_width: float, counts: int) -> None:
    def point(us: float, log_ratio: float) -> tuple[Params, Verdict]:
        surely: Any = "FASTER" if log_ratio > half_width else "INCONCLUSIVE"
        times = {"median_ns": round(us * 1e3), "log_ratio": log_ratio, "half_width": half_width, "comparison": surely}
        measurement = replace(RAN.measurement, **times)
        return (("HINT", round(us)),), replace(RAN, measurement=measurement)

    points = [point(54, 3.9), point(28, 3.4), point(26, 1.2)]
    assert fastest(points) is points[counts]
    failed = (("HINT", 0),), Crashed(stage="measure", signal=11)
    assert fastest([failed, *points]) is points[counts]
    assert fastest([failed]) is failed


def test_a_point_without_an_interval_does_not_count_beside_those_that_have_one() -> None:
    def point(us: float, half_width: float) -> tuple[Params, Verdict]:
        return (), replace(RAN, measurement=replace(RAN.measurement, median_ns=round(us * 1e3), half_width=half_width))

    sure, unsure = point(28, 0.01), point(20, math.inf)
    assert fastest([unsure, sure]) is sure
