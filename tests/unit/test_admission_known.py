"""A compile that goes on: whole steps that an earlier process of the run timed are not timed again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from agentcompile.events import CandidateAsked, Event, RunStarted, StageStarted, StepsTimed
from agentcompile.ir.program import Program
from agentcompile.ir.trial import Crashed
from agentcompile.measure import Timing
from agentcompile.planning.arms import asked, swap
from agentcompile.runs.progress import fold
from agentcompile.tuning.partitions import Cut
from tests.unit.runs import TARGET
from tests.unit.test_admission import Fakes, StepClock, admitted, cover_of, cut_of, flat, kernel


@pytest.fixture
def short() -> Cut:
    return cut_of((1, 32))


def timed(events: Sequence[Event]) -> dict[str, Timing]:
    return {event.steps: event.timing for event in events if isinstance(event, StepsTimed)}


def test_what_an_earlier_process_timed_is_not_timed_again(short: Cut) -> None:
    crowd = tuple(range(2, 40))
    cost = {**dict.fromkeys(range(1, 100), 100), 7: 90, 8: 60}
    events: list[Event] = []
    first = StepClock(cost)
    found = admitted(short, Fakes(short.regions, near=crowd, together=(5, 6)), first, emit=events.append)
    known = timed(events)
    assert len(known) == len(first.at)  # every question was another

    resumed = StepClock(dict.fromkeys(range(100), 1))  # what it would say is not asked for
    resumed.known = known
    again: list[Event] = []
    assert admitted(short, Fakes(short.regions, near=crowd, together=(5, 6)), resumed, emit=again.append) == found
    assert resumed.at == []
    assert timed(again) == {}

    # Cut halfway, it times what is left, and comes to the same.
    half, rest = StepClock(cost), len(known) // 2
    half.known = dict(list(known.items())[:rest])
    assert admitted(short, Fakes(short.regions, near=crowd, together=(5, 6)), half) == found
    assert len(half.at) == len(known) - rest


def test_a_timing_in_which_a_kernel_died_is_made_again(short: Cut) -> None:
    class Deadly(StepClock):
        def __call__(self, programs: Sequence[tuple[str, Program]], **more: Any) -> Timing:
            found = super().__call__(programs, **more)
            if len(programs) == 2:
                return found
            last = len(programs) - 1
            one = found.processes[0]
            samples = replace(
                one,
                clock=replace(one.clock, doubling=one.clock.doubling[:-1]),
                rounds=tuple(
                    replace(timed, intervals_ns=timed.intervals_ns[:-1], waited_ns=timed.waited_ns[:-1])
                    for timed in one.rounds
                ),
            )
            died = ((last, Crashed(stage="measure", signal=9, detail="")),)
            return replace(found, live=found.live[:-1], failed=died, processes=(samples,))

    events: list[Event] = []
    clock = Deadly(flat(best=2))
    admitted(short, Fakes(short.regions), clock, emit=events.append)
    assert {len(timing.arms) for timing in timed(events).values()} == {2}
    assert len(timed(events)) < len(clock.at)


def test_another_question_is_another_digest(short: Cut) -> None:
    parts, at = cover_of(short), short.partition.regime
    arms = [("a", parts)]
    other = swap(parts, 0, kernel(short.regions[parts[0].region], 2))
    more = replace(parts[0], choice=replace(parts[0].choice, speedup=3.0))  # type: ignore[arg-type]
    assert asked(arms, at, rounds=2) == asked([("a", (more, *parts[1:]))], at, rounds=2)
    others = {
        asked(arms, at, rounds=3),
        asked([("b", parts)], at, rounds=2),
        asked([("a", other)], at, rounds=2),
        asked([("a", parts[1:])], at, rounds=2),
        asked(arms, replace(at, context=(33, 64)), rounds=2),
        asked(arms * 2, at, rounds=2),
    }
    assert len(others) == 6
    assert asked(arms, at, rounds=2) not in others


def test_a_resumed_run_knows_what_was_timed_until_a_candidate_is_evaluated_afresh(short: Cut) -> None:
    events: list[Event] = []
    admitted(short, Fakes(short.regions), StepClock(flat(best=2)), emit=events.append)
    started = RunStarted(model="m", target=TARGET, options="o", version="1")
    again: list[Event] = [started, *events, started, StageStarted(stage="search")]
    assert fold(again).steps == timed(events)
    edit = CandidateAsked(what="edit", region="r", candidate="c")
    assert fold([*again, edit]).steps == timed(events)
    rerun = CandidateAsked(what="rerun", region="r", candidate="c")
    assert fold([*again, rerun]).steps == {}
