"""Choices without a clock: the adviser's first that nothing stands against, in each layout, and what they may cost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from agentcompile.build.binary import Binary
from agentcompile.control.steering import Steering
from agentcompile.evaluation.evaluator import EvaluationJob, Evaluator, Prepared
from agentcompile.events import Event, TrialFinished, Warned
from agentcompile.ir.advice import Advice
from agentcompile.ir.region import Region
from agentcompile.ir.target import Ceiling, Target
from agentcompile.ir.template import Candidate, Template
from agentcompile.ir.trial import BuildFailed, Check, Incorrect, Kernel, NumericReport, Part, Rejected, Trial, Verdict
from agentcompile.space import Space
from agentcompile.system.notes import Notes
from agentcompile.system.store import Store
from agentcompile.tuning.acceptance import Acceptance
from agentcompile.tuning.jobs import JobMaker
from agentcompile.tuning.ranker import Ranker
from agentcompile.tuning.ranking import Ranking
from agentcompile.tuning.run_trials import RunTrials
from agentcompile.tuning.tasks import TuneTask
from agentcompile.tuning.trial_database import TrialDatabase
from agentcompile.tuning.untimed import CALL_NS, INTERPRETER_NS, LATER, LAUNCH_NS, Estimates, first_of_layouts, ranked
from agentcompile.validate.endurance import MISSING
from tests.unit.fakes import RIGHT, linear_region, rows_template, target

PACKED = rows_template(id="linear/packed")
PLAIN = rows_template(id="linear/plain", layouts=(("w", "row-major"),))
CEILING = Ceiling(dram_bytes_per_s=1e9, cache_bytes_per_s=1e10, flops_per_s=1e12)
WRONG = Incorrect(report=replace(RIGHT, cases=2))
LAYOUTS = ((("w", "rows16-k2"),), ())


class Checker:
    """Builds and validates by a table of verdicts by candidate; everything else passes, and nothing is ever timed."""

    def __init__(self) -> None:
        self.verdicts: dict[str, Verdict] = {}
        self.asked: list[str] = []
        self.depths: set[str] = set()
        self.checks: tuple[Check, ...] = ()

    def prepare(
        self, jobs: Iterable[EvaluationJob], *, depth: str = "search"
    ) -> Iterator[tuple[EvaluationJob, Prepared | Verdict]]:
        self.depths.add(depth)
        for job in jobs:
            self.asked.append(job.candidate.id)
            report = NumericReport(checks=self.checks, error_ratio=1.0, cases=1, repeats=1)
            passed = Prepared(job=job, binary=cast(Binary, None), report=report)
            yield job, self.verdicts.get(job.candidate.id, passed)


class Rig:
    """One region of two layouts, advised in a seeded order, and a ranker of it."""

    def __init__(
        self, folder: Path, *, region: Region | None = None, past: Sequence[Trial] = (), machine: Target | None = None
    ) -> None:
        self.region, self.checker, self.events = region or linear_region(), Checker(), list[Event]()
        self.space = Space(self.region, [PACKED, PLAIN], target())
        order = tuple(candidate.id for candidate in reversed(tuple(self.space)))
        self.task = TuneTask(
            region=self.region,
            space=self.space,
            advice=Advice(label="test", order=order),
            residency="dram",
            floor_ns=1.0,
        )
        self.jobs = JobMaker(machine or target())
        self.acceptance = Acceptance(
            trials := RunTrials([self.task], self.jobs),
            self.jobs,
            cast(Evaluator, self.checker),
            TrialDatabase(past, None, "p"),
            Notes(Store(folder)),
            target(),
            self.events.append,
            Steering(),
        )
        self.ranker = Ranker(trials, self.jobs, self.acceptance, lambda task: task.advice)

    def order(self, template: Template) -> list[Candidate]:
        ordered = self.task.advice.sorted(tuple(self.space))
        return [candidate for candidate in ordered if candidate.template == template.id]

    def first(self) -> Ranking:
        return self.ranker.by_order()[self.region.id]

    def accepted(self, ranking: Ranking) -> bool:
        parts = [Part(region=self.region.id, choice=kernel) for _, (kernel,) in ranking.kernels]
        return not self.acceptance.accept(parts)


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def chosen(ranking: Ranking) -> list[Candidate]:
    return [kernel.candidate for layout in LAYOUTS for kernel in dict(ranking.kernels).get(layout, ())]


def test_the_advisers_first_of_each_layout_is_taken_and_nothing_is_built_for_it(rig: Rig) -> None:
    ranking = rig.first()
    assert chosen(ranking) == [rig.order(PACKED)[0], rig.order(PLAIN)[0]]
    assert all(kernel.decided_by == "adviser" for _, (kernel,) in ranking.kernels)
    assert all("not timed" in kernel.reason and "test" in kernel.reason for _, (kernel,) in ranking.kernels)
    assert not rig.checker.asked


def test_the_next_of_the_order_follows_one_that_fails_to_build_or_a_check(rig: Rig) -> None:
    packed, plain = rig.order(PACKED), rig.order(PLAIN)
    rig.checker.verdicts = {packed[0].id: BuildFailed(log="error"), packed[1].id: WRONG, plain[0].id: WRONG}
    looks = 0
    while not rig.accepted(ranking := rig.first()):
        looks += 1
    assert looks == 2
    assert chosen(ranking) == [packed[2], plain[1]]
    assert "after 3 that may not ship" in ranking.kernels[0][1][0].reason
    failed = [event.trial for event in rig.events if isinstance(event, TrialFinished)]
    assert {trial.candidate.id for trial in failed} == set(rig.checker.verdicts)
    assert rig.checker.depths == {"accept"}


def test_a_layout_whose_candidates_all_fail_has_no_kernel_and_a_region_falls_back(rig: Rig) -> None:
    rig.checker.verdicts = {candidate.id: WRONG for candidate in rig.order(PACKED)}
    while not rig.accepted(ranking := rig.first()):
        pass
    assert chosen(ranking) == [rig.order(PLAIN)[0]]
    rig.checker.verdicts |= {candidate.id: WRONG for candidate in rig.order(PLAIN)}
    # What passed once on this machine is noted, and not looked at again.
    rig.checker.verdicts.pop(rig.order(PLAIN)[0].id)
    assert chosen(rig.first()) == [rig.order(PLAIN)[0]]
    no = [(rig.region.id, kernel) for _, (kernel,) in rig.first().kernels]
    assert rig.order(PLAIN)[0] not in chosen(rig.ranker.by_order(no)[rig.region.id])


def test_a_kernel_accepted_after_too_few_launches_is_told_once_in_this_run_and_in_the_next(tmp_path: Path) -> None:
    first, then = Rig(tmp_path), Rig(tmp_path)
    first.checker.checks = (Check(name=MISSING, ok=True, measured=9.0, allowed=4096.0, detail="5 s were not enough"),)
    for rig in (first, first, then):
        assert rig.accepted(rig.first())
    for rig in (first, then):
        told = [event.text for event in rig.events if isinstance(event, Warned)]
        assert len(told) == len(LAYOUTS)
        assert all(" is accepted, but there was no time for 9 of the launches" in text for text in told)
    assert not then.checker.asked


def test_a_region_of_which_everything_failed_says_how_many_did(rig: Rig) -> None:
    rig.checker.verdicts = {candidate.id: WRONG for candidate in rig.space}
    while not rig.accepted(ranking := rig.first()):
        pass
    assert ranking.kernels == ()
    assert ranking.fallback.reason == f"none of {len(rig.space)} candidates may ship"


def test_what_this_run_found_before_is_not_built_again(tmp_path: Path) -> None:
    before = Rig(tmp_path / "a")
    worst = before.order(PACKED)[0]
    before.checker.verdicts = {worst.id: WRONG}
    while not before.accepted(before.first()):
        pass
    past = [event.trial for event in before.events if isinstance(event, TrialFinished)]
    after = Rig(tmp_path / "b", past=past)
    assert chosen(after.first())[0] == before.order(PACKED)[1]
    assert worst.id not in after.checker.asked
    assert not after.events


def test_static_rules_are_asked_before_anything_is_built(tmp_path: Path) -> None:
    lacking = Rig(tmp_path, machine=target(isa=("avx",)))
    ranking = lacking.first()
    assert ranking.kernels == ()
    verdicts = [event.trial.verdict for event in lacking.events if isinstance(event, TrialFinished)]
    assert len(verdicts) == len(lacking.space)
    assert all(isinstance(verdict, Rejected) for verdict in verdicts)


def test_without_kernels_every_region_says_that_none_was_asked_for(rig: Rig) -> None:
    ranking = rig.ranker.all_fallback()[rig.region.id]
    assert ranking.kernels == ()
    assert "choose = pytorch" in ranking.fallback.reason


def test_estimates_prefer_kernels_to_pytorch_and_earlier_layouts_to_later_ones(rig: Rig) -> None:
    ranking = rig.first()
    about = Estimates(ceiling=CEILING, residency="dram", rankings={rig.region.id: ranking})
    floor = rig.region.floor_ns(CEILING, "dram")
    (first,), (second,) = (kernels for _, kernels in ranking.kernels)
    assert about.kernel_ns(rig.region, first) == floor + LAUNCH_NS
    assert about.kernel_ns(rig.region, second) == floor * (1 + LATER) + LAUNCH_NS
    assert about.fallback_ns(rig.region) == floor + CALL_NS
    merged = linear_region(count=3)
    assert about.fallback_ns(merged) == merged.floor_ns(CEILING, "dram") + 3 * CALL_NS + INTERPRETER_NS


def test_the_order_of_layouts_is_that_of_their_first_candidates(rig: Rig) -> None:
    found = first_of_layouts(rig.task, rig.task.advice, ())
    ranking = ranked(rig.task, rig.task.advice, [(one, rig.jobs.source(rig.task, one)) for one in found], 0)
    assert [kernel.candidate for _, (kernel,) in ranking.kernels] == list(found)
    assert found[0] == rig.task.advice.sorted(tuple(rig.space))[0]
    assert isinstance(ranking.best, Kernel)
