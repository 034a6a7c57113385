"""Which points of a region the step looks at: those of templates that are right and nearly as fast as the best."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from agentcompile.evaluation.time_budget import Left, any_time
from agentcompile.ir.advice import Advice
from agentcompile.ir.target import Target
from agentcompile.ir.template import Candidate
from agentcompile.ir.trial import BuildFailed, Trial
from agentcompile.tuning.acceptance import Acceptance
from agentcompile.tuning.jobs import JobMaker
from agentcompile.tuning.ranker import Ranker
from agentcompile.tuning.run_trials import RunTrials
from agentcompile.tuning.step_candidates import TOO_SLOW, TRIED_IN_STEP, StepCandidates
from tests.unit import runs

LEAST_NS = 1_000


def candidate(template: str, number: int) -> Candidate:
    return Candidate(
        region=runs.REGION,
        regime=runs.REGIME,
        template=f"linear/{template}",
        template_digest="t",
        params=(("ROWS", number),),
        target="x",
    )


class Tuner:
    """Knows what each template takes; one that takes nothing does not build."""

    def __init__(self, times: dict[str, float]) -> None:
        self.times, self.tries = times, list[Candidate]()

    def trial(self, one: Candidate) -> Trial:
        ns = self.times[one.template.partition("/")[2]]
        verdict = runs.measured()
        timed: Any = replace(verdict, measurement=replace(verdict.measurement, median_ns=round(ns)))
        return replace(runs.trial(), candidate=one, verdict=timed if ns else BuildFailed(log="no"))

    def evaluated(self, task: Any, candidates: Sequence[Candidate]) -> list[Trial]:
        self.tries += candidates
        return [self.trial(one) for one in candidates]


class Clock:
    seconds = 1.0

    def __call__(self) -> float:
        return self.seconds


def step_candidates(
    times: dict[str, float], points: int, tried: Sequence[Candidate] = ()
) -> tuple[StepCandidates, RunTrials, Tuner, Clock]:
    space = [candidate(template, number) for template in times for number in range(points)]
    # The adviser wants high numbers first.
    order = sorted(space, key=lambda one: -int(str(one.params[0][1])))
    advice = Advice(label="test", order=tuple(one.id for one in order))
    task: Any = SimpleNamespace(region=SimpleNamespace(id=runs.REGION), space=space, advice=advice)
    tuner, clock, jobs = Tuner(times), Clock(), JobMaker(cast(Target, None))
    trials = RunTrials([task], jobs)
    ranker = Ranker(trials, jobs, cast(Acceptance, None), lambda task: task.advice)
    trials.put(runs.REGION, [tuner.trial(one) for one in tried])
    made = StepCandidates(trials, tuner, ranker, lambda task: task.advice, clock)  # type: ignore[arg-type]
    return made, trials, tuner, clock


def test_templates_take_turns_in_the_advisers_order_and_what_is_unknown_is_tried_first() -> None:
    times = {"a": LEAST_NS, "b": LEAST_NS * TOO_SLOW * 0.99, "slow": LEAST_NS * TOO_SLOW * 1.01, "broken": 0.0}
    made, _, tuner, _ = step_candidates(times, 5, tried=[candidate("a", 0)])
    found = made.promising(runs.REGION)
    assert tuner.tries == [candidate(template, 4) for template in ("b", "slow", "broken")]
    assert found == [candidate(template, number) for number in range(4, -1, -1) for template in ("a", "b")]


def test_a_large_space_is_looked_at_in_part() -> None:
    made, _, _, _ = step_candidates(
        {"a": LEAST_NS, "b": LEAST_NS}, TRIED_IN_STEP, tried=[candidate("a", 0), candidate("b", 0)]
    )
    found = made.promising(runs.REGION)
    assert len(found) == TRIED_IN_STEP
    assert {one.template for one in found[-2:]} == {"linear/a", "linear/b"}


def test_what_failed_is_not_looked_at_again_and_when_time_is_up_only_what_was_measured() -> None:
    made, trials, tuner, clock = step_candidates(
        {"a": LEAST_NS, "b": LEAST_NS}, 4, tried=[candidate("a", 0), candidate("a", 2)]
    )
    failed = replace(tuner.trial(candidate("a", 3)), verdict=BuildFailed(log="no"))
    trials.add(runs.REGION, [failed])
    assert failed.candidate not in made.promising(runs.REGION)
    clock.seconds = 0.0
    trials.put(runs.REGION, trials.of(runs.REGION)[:3])
    assert made.promising(runs.REGION) == [candidate("a", 2), candidate("a", 0)]


def test_a_region_of_which_nothing_is_right_has_no_rivals() -> None:
    made, _, _, _ = step_candidates({"broken": 0.0}, 3)
    assert made.promising(runs.REGION) == []


@pytest.mark.parametrize("seconds", [0.0, 1.0])
def test_a_region_without_templates_has_none_either(seconds: float) -> None:
    made, _, _, clock = step_candidates({}, 3)
    clock.seconds = seconds
    assert made.promising(runs.REGION) == []


def test_what_was_measured_comes_back_and_no_other_build_begins_when_time_is_up() -> None:
    measured = [candidate("a", 1), candidate("a", 3)]
    made, _, tuner, clock = step_candidates({"a": LEAST_NS}, 6, tried=measured)
    clock.seconds = 2.0

    def build(task: Any, candidates: Sequence[Candidate], left: Left = any_time) -> list[Any]:
        begun = []
        for one in itertools.takewhile(lambda _: left() > 0, candidates):
            begun.append(SimpleNamespace(candidate=one, source=one.params))
            clock.seconds -= left is not any_time
        return begun

    tuner.built = build  # type: ignore[attr-defined]
    order = [candidate("a", number) for number in range(5, -1, -1)]
    found = [one for one, _ in made.built(runs.REGION, order)]
    assert found == [candidate("a", number) for number in (5, 4, 3, 1)]
    assert [one for one, _ in made.built(runs.REGION, order)] == measured[::-1], "no time is left"
