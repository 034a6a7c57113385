"""A step on a busy machine: what cannot be told from PyTorch stays if it seems faster, and says so; time is bounded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from agentcompile.evaluation.time_budget import Left, any_time
from agentcompile.events import Event, StepsTimed, silent
from agentcompile.ir.program import Program
from agentcompile.ir.trial import Fallback, Kernel
from agentcompile.measure import Timing
from agentcompile.planning.admission import Admitted, admit
from agentcompile.planning.plans import Planned
from agentcompile.planning.step_timer import LOOKS, StepTimer, afresh
from agentcompile.runs.tables import plan_line
from agentcompile.tuning.partitions import Cut
from tests.unit.test_admission import DESCENT, PYTORCH_NS, Fakes, StepClock, cover_of, cut_of, flat


class Busy(StepClock):
    """Every interval but the quickest is stretched by waiting, as much as it takes to hide the difference."""

    proofs = 0

    def __call__(self, programs: Sequence[tuple[str, Program]], **more: Any) -> Timing:
        self.proofs += more["processes"] > 1
        found = super().__call__(programs, **more)
        processes = []
        for process in found.processes:
            longest = 3 * max(ns for timed in process.rounds for pair in timed.intervals_ns for ns in pair)
            rounds = tuple(
                timed
                if number == 0
                else replace(
                    timed,
                    intervals_ns=tuple((longest + 7 * at, longest - 7 * at) for at in range(len(timed.intervals_ns))),
                    waited_ns=(longest,) * len(timed.intervals_ns),
                    taken=(8,) * len(timed.intervals_ns),
                )
                for number, timed in enumerate(process.rounds)
            )
            processes.append(replace(process, rounds=rounds))
        return replace(found, processes=tuple(processes))


def admitted(cut: Cut, clock: StepClock, left: Left = any_time) -> Admitted:
    parts = cover_of(cut)
    planned = Planned(decode=(parts,), prefill=(), layouts=(), exact=True, decode_ns=1.0)
    return admit(cut, parts, planned, Fakes(cut.regions), clock, silent, 0, "cpu", {}, DESCENT, left)


@pytest.fixture
def short() -> Cut:
    return cut_of((1, 32))


def test_a_step_that_seems_faster_and_cannot_be_told_keeps_its_kernels_and_is_contended(short: Cut) -> None:
    clock = Busy(dict.fromkeys(range(1, 10), PYTORCH_NS // 4))
    found = admitted(short, clock)
    assert all(isinstance(part.choice, Kernel) for part in found.parts)
    assert (found.plan.comparison, found.plan.contended) == ("INCONCLUSIVE", True)
    assert found.plan.disturbed > 0.8
    assert found.plan.log_ratio > 1.0
    assert clock.proofs == LOOKS
    assert "contended" in plan_line(found.plan)
    assert any("kept undecided, 4.00x PyTorch" in note for note in found.notes)


def test_a_step_that_seems_slower_goes_back_with_a_true_reason(short: Cut) -> None:
    found = admitted(short, Busy(dict.fromkeys(range(1, 10), PYTORCH_NS * 4)))
    assert all(isinstance(part.choice, Fallback) for part in found.parts)
    reasons = {part.choice.reason for part in found.parts if isinstance(part.choice, Fallback)}
    assert all("was measured 0." in reason and "x PyTorch" in reason for reason in reasons)
    assert not any("not faster" in reason for reason in reasons)


def test_when_time_is_up_no_alternative_is_tried_and_the_plan_is_timed_once(short: Cut) -> None:
    clock = Busy(flat(best=3))
    found = admitted(short, clock, left=lambda: -1.0)
    assert len(clock.at) == clock.proofs == 1
    assert any("not tried: time is up" in note for note in found.notes)


def test_a_step_on_a_quiet_machine_is_not_contended(short: Cut) -> None:
    found = admitted(short, StepClock(flat(best=3)))
    assert (found.plan.comparison, found.plan.contended, found.plan.disturbed) == ("FASTER", False, 0.0)


def test_a_contended_plan_is_confirmed_on_fresh_data_and_keeps_its_kernels(short: Cut) -> None:
    events = list[Event]()
    parts = cover_of(short)
    planned = Planned(decode=(parts,), prefill=(), layouts=(), exact=True, decode_ns=1.0)
    busy = Busy(dict.fromkeys(range(1, 10), PYTORCH_NS // 4))
    found = admit(short, parts, planned, Fakes(short.regions), busy, events.append, 0, "cpu", {}, DESCENT).plan
    assert found.contended
    quiet = StepClock(busy.cost)
    quiet.known = {event.steps: event.timing for event in events if isinstance(event, StepsTimed)}
    timer = StepTimer(short, dict(planned.layouts), Fakes(short.regions), quiet, silent, "cpu")
    again = timer.admitted(found.parts, found.exact, afresh(0, quiet)).plan
    assert quiet.at, "what the busy machine said counts no more"
    assert (again.contended, again.comparison, again.parts) == (False, "FASTER", found.parts)
