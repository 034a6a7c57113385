"""Decisions on admitted plans: noted, or measured in the step where nothing falls back; refused with the reason."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest

from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.events import Event, PlanAdmitted, Warned
from agentcompile.ir.template import Candidate, Source
from agentcompile.ir.trial import Choice, Crashed, Decision, Fallback, Kernel, Plan, Trial
from agentcompile.planning.overrides import PlanChecks, _doubt, apply_decisions, known_plan
from agentcompile.planning.plans import Planned
from agentcompile.runs.progress import State
from agentcompile.runs.tables import interval_text
from agentcompile.tuning.partitions import Cut
from tests.unit import runs
from tests.unit.test_admission import PYTORCH_NS, StepClock, cover_of, cut_of, flat, kernel, source
from tests.unit.test_admission_busy import Busy


@dataclass
class TaskScheduler:
    """Confirms every candidate but those of `broken`; layouts by candidate, row-major where nothing is said."""

    cut: Cut
    broken: tuple[int, ...] = ()
    wants: Mapping[int, tuple[tuple[str, str], ...]] = field(default_factory=dict)

    def confirmation_of(self, region: str, candidate: Candidate) -> Trial | None:
        variant = int(str(candidate.params[0][1]))
        if variant > 9:
            return None
        bad = variant in self.broken
        verdict = Crashed(stage="validate", signal=11) if bad else runs.measured(0.4)
        own = source(self.cut.regions[region], variant).digest
        return Trial(candidate=candidate, source=own, verdict=verdict, fidelity="confirm")

    def layouts(self, candidate: Candidate) -> tuple[tuple[str, str], ...]:
        return self.wants.get(int(str(candidate.params[0][1])), ())

    def sources(self) -> Mapping[str, Source]:
        made = [source(region, variant) for region in self.cut.regions.values() for variant in range(1, 10)]
        return {one.digest: one for one in made}


class Desk:
    """One decode plan of variant 1 everywhere, admitted at a made-up time."""

    def __init__(self) -> None:
        self.cut = cut_of((1, 32))
        self.parts = cover_of(self.cut)
        self.plan = Plan(regime=self.cut.partition.regime, parts=self.parts, exact=True, step_ns=7, baseline_ns=9)
        regime = replace(self.plan.regime, phase="prefill")
        self.chunk = replace(self.cut, partition=replace(self.cut.partition, regime=regime))
        prefill = replace(self.plan, regime=regime, step_ns=0, baseline_ns=0)
        self.plans = (self.plan, prefill)
        self.planned = Planned(decode=(self.parts,), prefill=self.parts, layouts=(), exact=True, decode_ns=1.0)
        self.scheduler, self.clock, self.told = TaskScheduler(self.cut), StepClock(flat(best=3)), list[Event]()
        self.refused: tuple[tuple[str, Choice], ...] = ()

    def obey(self, *decisions: Decision, known: Sequence[Plan] = ()) -> tuple[Planned, tuple[Plan, ...]]:
        bench = PlanChecks(
            confirmation_of=self.scheduler.confirmation_of,
            layouts=self.scheduler.layouts,
            sources=self.scheduler,
            clock=self.clock,
            emit=self.told.append,
            seed=0,
            kind="cpu",
            refused=lambda planned: self.refused,
        )
        by_region = {decision.region: decision for decision in decisions}
        return apply_decisions((self.cut, self.chunk), self.planned, self.plans, by_region, bench, known)

    def override(self, variant: int, at: int = 0) -> Decision:
        region = self.cut.regions[self.parts[at].region]
        chosen = replace(kernel(region, 1).candidate, params=(("ROWS", variant),))
        return Decision(region=region.id, word="override", candidate=chosen, approval="seen", reason="I know better")


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_approvals_are_noted_and_nothing_is_timed(desk: Desk) -> None:
    approved = [Decision(region=part.region, word="approve", approval=f"of {part.region[:4]}") for part in desk.parts]
    planned, plans = desk.obey(*approved)
    assert desk.clock.at == []
    assert desk.told == []
    assert (plans[0].step_ns, plans[0].exact) == (7, True)
    for part in plans[0].parts:
        assert isinstance(part.choice, Kernel)
        assert (part.choice.decided_by, part.choice.approval) == ("measured", f"of {part.region[:4]}")
    assert planned.decode == (plans[0].parts,)


def test_without_a_word_the_plans_stay_as_they_are(desk: Desk) -> None:
    assert desk.obey() == (desk.planned, desk.plans)


def test_a_rejected_region_runs_in_pytorch_and_the_step_is_measured_again(desk: Desk) -> None:
    region = desk.parts[0].region
    _, (plan, prefill) = desk.obey(Decision(region=region, word="reject", approval="seen", reason="too clever"))
    part = next(part for part in plan.parts if part.region == region)
    assert part.choice == Fallback(reason="rejected by user: too clever", decided_by="human", approval="seen")
    assert PlanAdmitted(plan=plan, ruled=True) in desk.told
    assert plan.step_ns != 7
    assert not plan.exact
    assert prefill.step_ns, "a chunk of a prompt too"


def test_an_override_runs_what_the_person_chose_with_the_reason(desk: Desk) -> None:
    decision = desk.override(3)
    _, (plan, _) = desk.obey(decision)
    part = next(part for part in plan.parts if part.region == decision.region)
    assert isinstance(part.choice, Kernel)
    assert part.choice.candidate == decision.candidate
    assert (part.choice.decided_by, part.choice.reason, part.choice.approval) == ("human", "I know better", "seen")


def test_nothing_of_a_slow_choice_is_given_back_and_it_is_said(desk: Desk) -> None:
    desk.clock = StepClock({**flat(best=3), 5: 10_000_000})
    _, (plan, _) = desk.obey(desk.override(5))
    assert all(isinstance(part.choice, Kernel) for part in plan.parts)
    assert plan.log_ratio < 0
    said = [event.text for event in desk.told if isinstance(event, Warned)]
    assert any("the plan is not faster" in text for text in said)


@pytest.mark.parametrize("cost_ns", [PYTORCH_NS // 4, PYTORCH_NS * 4])
def test_a_choice_that_cannot_be_told_from_pytorch_is_called_inconclusive_with_its_interval(
    desk: Desk, cost_ns: int
) -> None:
    desk.clock = Busy(dict.fromkeys(range(1, 10), cost_ns))
    _, (plan, _) = desk.obey(desk.override(5))
    assert plan.comparison == "INCONCLUSIVE"
    said = next(event.text for event in desk.told if isinstance(event, Warned))
    assert "the plan is not faster" not in said
    assert f"inconclusive, {math.exp(plan.log_ratio):.2f}x PyTorch (" in said
    assert interval_text(plan.log_ratio, plan.half_width) in said
    assert said.endswith("; confirm it on a quiet machine: agentcompile compile --resume --run-dir RUN")


def test_a_choice_whose_rounds_have_no_interval_is_said_to_have_none(desk: Desk) -> None:
    desk.clock = Busy(dict.fromkeys(range(1, 10), PYTORCH_NS // 4))
    _, (plan, _) = desk.obey(desk.override(5))
    bare = _doubt(replace(plan, half_width=math.inf))
    assert bare.startswith("inconclusive, about 4x PyTorch (no interval); ")


def test_a_plan_that_was_measured_before_is_not_measured_again(desk: Desk) -> None:
    _, plans = desk.obey(desk.override(3))
    desk.clock.at.clear()
    _, again = desk.obey(desk.override(3), known=plans)
    assert again == plans
    assert desk.clock.at == []


def test_a_changed_plan_whose_timing_others_disturbed_is_measured_again(desk: Desk) -> None:
    _, (plan, _) = desk.obey(desk.override(3))
    desk.clock.at.clear()
    _, again = desk.obey(desk.override(3), known=[replace(plan, step_ns=8, disturbed=0.9)])
    assert desk.clock.at
    assert (again[0].step_ns, again[0].contended) == (plan.step_ns, False)
    assert PlanAdmitted(plan=again[0], ruled=True) in desk.told


@pytest.mark.parametrize(("variant", "why"), [(4, "the override failed: crashed"), (10, "in no space")])
def test_an_override_that_fails_is_undecided(desk: Desk, variant: int, why: str) -> None:
    desk.scheduler.broken = (4,)
    with pytest.raises(AgentCompileError, match=why) as caught:
        desk.obey(desk.override(variant))
    assert caught.value.exit_code is ExitCode.UNDECIDED
    assert "--undo" in caught.value.hint


def test_what_fails_the_whole_suite_is_undecided_and_named(desk: Desk) -> None:
    decision = desk.override(3)
    desk.refused = ((decision.region, Fallback(reason="any")),)
    name = desk.cut.regions[decision.region].name
    with pytest.raises(AgentCompileError, match=f"{name}.*whole correctness suite"):
        desk.obey(decision)
    assert desk.clock.at == []


def test_a_word_on_a_region_that_no_plan_has_is_said_to_change_nothing(desk: Desk) -> None:
    planned, plans = desk.obey(Decision(region="f" * 64, word="reject"))
    assert (planned, plans) == (desk.planned, desk.plans)
    assert any(isinstance(event, Warned) and "changes nothing" in event.text for event in desk.told)


def reader(desk: Desk, kind: str) -> tuple[int, str]:
    """The first part of a region whose kind begins so, and the family of the matrix that it reads."""
    for at, part in enumerate(desk.parts):
        region = desk.cut.regions[part.region]
        family = next((port.family for port in region.ports if port.role == "weight" and len(port.shape) == 2), "")
        if region.kind.startswith(kind) and family:
            return at, family
    raise AssertionError(f"a plan without {kind}")


def test_an_override_brings_the_layout_that_its_template_wants(desk: Desk) -> None:
    at, family = reader(desk, "linear")
    desk.scheduler.wants = {3: ((family, "rows16-k2"),)}
    planned, _ = desk.obey(desk.override(3, at))
    assert {layout for _, layout in planned.layouts} == {"rows16-k2"}
    assert len(planned.layouts) >= len(desk.cut.regions[desk.parts[at].region].sites)


def test_a_kernel_that_wants_another_layout_than_an_override_gives_way_to_pytorch_and_it_is_said(desk: Desk) -> None:
    """The table of the embedding is the matrix of the last linear."""
    at, family = reader(desk, "embedding")
    desk.scheduler.wants = {3: ((family, "rows16-k2"),)}
    decision = desk.override(3, at)
    planned, plans = desk.obey(decision)
    assert {layout for _, layout in planned.layouts} == {"rows16-k2"}
    for plan in plans:
        own = next(part.choice for part in plan.parts if part.region == decision.region)
        assert isinstance(own, Kernel)
        assert own.candidate == decision.candidate
        left = [part for part in plan.parts if isinstance(part.choice, Fallback)]
        assert len(left) == 1
        assert "which the user chose, reads" in left[0].choice.reason
    said = [event.text for event in desk.told if isinstance(event, Warned)]
    assert any("runs in PyTorch: embedding@" in text and "override it with one that reads" in text for text in said)


def test_two_overrides_that_want_one_weight_in_two_layouts_are_no_plan(desk: Desk) -> None:
    at, family = reader(desk, "embedding")
    desk.scheduler.wants = {3: ((family, "rows16-k2"),)}
    _, plans = desk.obey(desk.override(3, at))
    other = next(at for at, part in enumerate(plans[0].parts) if isinstance(part.choice, Fallback))
    with pytest.raises(AgentCompileError, match=r"as row-major, embedding@.* as rows16-k2: no plan has both") as caught:
        desk.obey(desk.override(3, at), desk.override(2, other))
    assert caught.value.exit_code is ExitCode.UNDECIDED


def test_plans_of_other_cuts_or_spaces_are_not_gone_on_with(desk: Desk) -> None:
    spaces = {part.region: (part.choice.candidate,) for part in desk.parts if isinstance(part.choice, Kernel)}
    earlier = State(plans=desk.plans)
    cuts = (desk.cut, replace(desk.cut, partition=replace(desk.cut.partition, regime=desk.plans[1].regime)))
    found = known_plan(earlier, cuts, spaces)  # type: ignore[arg-type]
    assert found is not None
    assert (found.decode, found.prefill) == ((desk.parts,), desk.parts)
    assert known_plan(earlier, (desk.cut,), spaces) is None  # type: ignore[arg-type]
    assert known_plan(earlier, cuts, {}) is None
    assert known_plan(State(), cuts, spaces) is None  # type: ignore[arg-type]
