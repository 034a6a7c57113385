"""What a person asked of a session, as the flow carries it out."""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Iterator

import pytest

from agentcompile.control.steering import Steering
from agentcompile.events import CandidateAsked, Decided, Event, Steered, Undone, Warned
from agentcompile.ir.trial import Decision
from agentcompile.runs.progress import State


@pytest.fixture
def steering() -> Iterator[Steering]:
    made = Steering()
    made.listen()
    yield made
    made.close()


def asked(what: str, candidate: str = "c") -> CandidateAsked:
    return CandidateAsked(what=what, region="r", candidate=candidate)  # type: ignore[arg-type]


def rings(steering: Steering) -> bool:
    return bool(select.select([steering.bell()], [], [], 0)[0])


def test_a_flow_that_nobody_steers_is_not_held_up() -> None:
    steering = Steering()
    steering.point()
    assert (steering.bell(), steering.asked, steering.decisions(), list(steering.undecided())) == (-1, (), {}, [])
    steering.hush()


def test_a_paused_flow_waits_at_its_safe_point_and_its_clock_stands(steering: Steering) -> None:
    steering.see(Steered(what="pause"))
    passed = threading.Event()
    flow = threading.Thread(target=lambda: (steering.point(), passed.set()))
    begin, clock = time.monotonic(), steering.clock()
    flow.start()
    assert not passed.wait(0.3)
    steering.see(Steered(what="resume"))
    assert passed.wait(10)
    flow.join()
    held = (time.monotonic() - begin) - (steering.clock() - clock)
    assert held >= 0.25


def test_a_cancelled_candidate_rings_the_bell_and_is_known(steering: Steering) -> None:
    assert not rings(steering)
    steering.see(asked("cancel"))
    assert rings(steering)
    assert steering.cancelled("c")
    steering.hush()
    assert not rings(steering)
    assert steering.cancelled("c")


def test_who_is_evaluated_again_is_cancelled_no_more(steering: Steering) -> None:
    steering.see(asked("cancel"))
    steering.see(asked("rerun"))
    assert not steering.cancelled("c")
    assert [one.what for one in steering.take()] == ["rerun"]
    assert steering.take() == ()


def test_what_an_earlier_process_left_is_asked_again_but_for_what_it_gave_up() -> None:
    decided = Decided(rulings=(Decision(region="r", word="reject"),))
    steering = Steering(State(asked=(asked("cancel", "a"), asked("edit", "b")), decided=(decided,)))
    assert [one.candidate for one in steering.asked] == ["b"]
    assert steering.decisions()["r"].word == "reject"


def test_the_last_word_on_a_region_counts_until_it_is_taken_back(steering: Steering) -> None:
    for word in ("approve", "reject"):
        steering.see(Decided(rulings=(Decision(region="r", word=word),)))  # type: ignore[arg-type]
    assert steering.decisions()["r"].word == "reject"
    steering.see(Undone())
    assert steering.decisions()["r"].word == "approve"


def test_what_is_no_person_does_not_ring(steering: Steering) -> None:
    event: Event = Warned(text="busy")
    steering.see(event)
    assert not rings(steering)
