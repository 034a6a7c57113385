"""Measured lengths of prompts hold as long as the plans that they were measured with do, and blame no kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from agentcompile.events import Event, PlanAdmitted, StageFinished, Warned
from agentcompile.ir.region import Regime
from agentcompile.ir.template import Candidate
from agentcompile.ir.trial import Kernel, Layouts, Part, Plan, PromptLengths, PromptTime
from agentcompile.ir.whole import ModelCheck
from agentcompile.planning import steps
from agentcompile.planning.plans import Planned
from agentcompile.planning.prompt_lengths import Lengths
from agentcompile.planning.step_timer import Admitted
from agentcompile.runs.progress import State, apply
from agentcompile.runs.tables import plan_line
from agentcompile.verification.whole_model import WholeModelGate
from tests.unit.test_overrides import Desk

CONTEXT = (1, 1024)
BY_CHUNK = PromptTime(
    tokens=512, chunk=128, median_ns=5, baseline_ns=9, log_ratio=0.5, half_width=0.1, comparison="FASTER"
)
BY_STEPS = replace(BY_CHUNK, tokens=3, chunk=0)
MEASURED = PromptLengths(chunk=128, steps_up_to=3, times=(BY_CHUNK, BY_STEPS))


def part(region: str, regime: Regime) -> Part:
    candidate = Candidate(
        region=region, regime=regime, template=f"t/{region}", template_digest="d", params=(), target="x"
    )
    return Part(region=region, choice=Kernel(candidate=candidate, source=region, speedup=2.0, half_width=0.0))


DECODE, PREFILL = Regime(phase="decode", context=CONTEXT), Regime(phase="prefill", context=CONTEXT)
STEP = Plan(regime=DECODE, parts=(part("d0", DECODE), part("d1", DECODE)), exact=True, step_ns=9, baseline_ns=20)
CHUNK = Plan(
    regime=PREFILL, parts=tuple(part(f"p{at}", PREFILL) for at in range(3)), exact=True, step_ns=9, baseline_ns=20,
    prompts=MEASURED,
)  # fmt: skip


class Gate(WholeModelGate):
    """A gate that finds `wrong` prompts where a plan's lengths are not as usual, and kernels that always are."""

    always: frozenset[str] = frozenset()
    only_so: frozenset[str] = frozenset()

    def check(self, plans: Sequence[Plan], layouts: Layouts) -> ModelCheck:
        """Say what is wrong with these kernels in these lengths."""
        kernels = {one.region for plan in plans for one in plan.parts if isinstance(one.choice, Kernel)}
        unusual = plans[-1].prompts != PromptLengths()
        wrong = kernels & (self.always | (self.only_so if unusual else frozenset()))
        return ModelCheck(oracle="module", seed=0, lengths=(1,), phases=(), fault="KL 3" if wrong else "")


def shipped(always: str = "", only_so: str = "") -> tuple[tuple[Plan, ...], list[Event]]:
    """What the gate lets through, and what it says."""
    events: list[Event] = []
    cuts: Any = [
        SimpleNamespace(regions={one.region: SimpleNamespace(name=one.region) for one in plan.parts})
        for plan in (STEP, CHUNK)
    ]
    nothing: Any = None
    gate = Gate(
        here=nothing, captured=nothing, constants=nothing, cuts=cuts, templates={}, evaluator=nothing,
        emit=events.append, seed=0,
    )  # fmt: skip
    gate.always, gate.only_so = frozenset({always}), frozenset({only_so})
    plans, found = gate.right([STEP, CHUNK], ())
    assert found.ok
    return plans, events


def fallbacks(plans: Sequence[Plan]) -> list[str]:
    return [one.region for plan in plans for one in plan.parts if not isinstance(one.choice, Kernel)]


def test_right_lengths_ship_as_they_were_measured() -> None:
    plans, events = shipped()
    assert plans == (STEP, CHUNK)
    assert not [event for event in events if isinstance(event, Warned)]


def test_what_is_wrong_in_other_lengths_alone_costs_the_lengths_and_no_kernel() -> None:
    plans, events = shipped(only_so="p0")
    assert fallbacks(plans) == []
    assert plans[-1].prompts == PromptLengths()
    (warned,) = (event for event in events if isinstance(event, Warned))
    assert warned.text.startswith("prompts run as usual: the model is wrong where prompts run in chunks of 128")


def test_a_kernel_that_is_wrong_in_every_length_is_found() -> None:
    plans, events = shipped(always="p1")
    assert fallbacks(plans) == ["p1"]
    assert not [event for event in events if isinstance(event, Warned) and "as usual" in event.text]


def shown(desk: Desk) -> State:
    """What a run shows after its plans were admitted, and then what the decisions emitted."""
    state = State()
    for event in (*(PlanAdmitted(plan=plan, layouts=()) for plan in desk.plans), *desk.told):
        state = apply(state, event)
    return state


@pytest.fixture
def desk() -> Desk:
    """Plans with measured lengths, whose prefill holds regions of its own."""
    made = Desk()
    chunk = replace(made.plans[1], step_ns=9, baseline_ns=20, prompts=MEASURED)
    made.plans = (made.plans[0], replace(chunk, parts=()))
    made.planned = replace(made.planned, prefill=())
    return made


def test_another_kernel_of_the_decode_step_leaves_the_length_of_chunks_and_says_what_it_changes(desk: Desk) -> None:
    _, plans = desk.obey(desk.override(3))
    assert plans[-1].prompts == PromptLengths(chunk=128, times=(BY_CHUNK,))
    assert shown(desk).final[-1] == plans[-1]
    assert plan_line(shown(desk).final[-1]).endswith("prompts run in chunks of 128")
    assert any("these decisions change; prompts run in chunks of 128 now" in one.text for one in warned(desk))


def warned(desk: Desk) -> list[Warned]:
    return [event for event in desk.told if isinstance(event, Warned)]


def test_another_kernel_of_the_chunk_leaves_nothing_of_the_lengths() -> None:
    desk = Desk()
    desk.plans = (desk.plans[0], replace(desk.plans[1], step_ns=9, baseline_ns=20, prompts=MEASURED))
    _, plans = desk.obey(desk.override(3))
    assert plans[-1].prompts == PromptLengths()
    assert shown(desk).final[-1].prompts == PromptLengths()
    assert any("prompts run as usual now" in one.text for one in warned(desk))


def test_an_approval_leaves_the_lengths(desk: Desk) -> None:
    assert desk.obey()[1][-1].prompts == MEASURED


CONTENDED = replace(CHUNK, disturbed=0.5)


def confirmed(
    monkeypatch: pytest.MonkeyPatch, lengths: Lengths | Exception, events: list[Event], again: Plan = CHUNK
) -> tuple[Plan, ...]:
    """Confirm a contended prefill plan, of which `again` is left; then `lengths` are measured."""

    class Timer:
        def __init__(self, *_: object) -> None:
            pass

        def admitted(self, *_: object) -> Admitted:
            plan = replace(again, disturbed=0.0, prompts=PromptLengths())
            return Admitted(plan=plan, parts=plan.parts, notes=())

    def measured(*_: object) -> Lengths:
        if isinstance(lengths, Exception):
            raise lengths
        return lengths

    monkeypatch.setattr(steps, "StepTimer", Timer)
    monkeypatch.setattr(steps, "measured_lengths", measured)
    monkeypatch.setattr(steps, "afresh", lambda seed, clock: seed)
    target = SimpleNamespace(target=SimpleNamespace(kind="cpu"))
    prepared: Any = SimpleNamespace(here=target, decode=[None], prefill=None)
    planned = Planned(decode=((),), prefill=(), layouts=(), exact=True, decode_ns=0.0)
    trials: Any = SimpleNamespace(sources=dict)
    nothing: Any = None
    return steps.confirm_steps(prepared, planned, [STEP, CONTENDED], trials, nothing, 0, events.append, nothing)


NEW = Lengths(prompts=PromptLengths(chunk=64, times=(replace(BY_CHUNK, chunk=64),)), note="")
NONE = Lengths(prompts=PromptLengths(), note="prompts run as usual: other lengths could not be compared")


def test_a_confirmed_chunk_is_said_once_with_the_lengths_that_were_measured_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events: list[Event] = []
    plans = confirmed(monkeypatch, NEW, events)
    (admitted,) = (event for event in events if isinstance(event, PlanAdmitted))
    assert admitted.plan == plans[-1] == replace(CHUNK, prompts=NEW.prompts)


def test_lengths_that_cannot_be_measured_again_stay_where_the_kernels_are_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert confirmed(monkeypatch, NONE, [])[-1].prompts == MEASURED
    other = replace(CHUNK, parts=CHUNK.parts[:2])
    assert confirmed(monkeypatch, NONE, [], again=other)[-1].prompts == PromptLengths()


def test_a_run_that_is_killed_while_it_measures_lengths_still_has_a_contended_plan_to_confirm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class KilledError(Exception):
        pass

    state, events = State(), list[Event]()
    with pytest.raises(KilledError):
        confirmed(monkeypatch, KilledError(), events)
    admitted = (PlanAdmitted(plan=STEP, layouts=()), PlanAdmitted(plan=CONTENDED, layouts=()))
    for event in (*admitted, StageFinished(stage="admit", detail="", seconds=1.0), *events):
        state = apply(state, event)
    assert [plan.contended for plan in state.plans] == [False, True]
    assert state.plans[-1].prompts == MEASURED
