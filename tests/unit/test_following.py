"""Reading a run from outside: nothing twice, nothing lost, and a long one in the time that a person waits."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from agentcompile.control.following import LOOK, Follower
from agentcompile.errors import AgentCompileError
from agentcompile.events import Event, RoundsProgress, TrialFinished, TrialStarted, encode
from agentcompile.ir.digest import canonical
from agentcompile.runs.progress import State, fold
from agentcompile.runs.session import EVENTS, Journal, RunDirectory
from tests.unit import reviewed
from tests.unit.reviewed import REGIONS, point, trial


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "run", {})


def write(run: RunDirectory, events: list[Event]) -> None:
    """As a journal writes them, without its syncs."""
    lines = [canonical({"seq": seq, "at_ms": seq, "event": encode(event)}) for seq, event in enumerate(events)]
    (run.path / EVENTS).write_bytes(b"".join(line + b"\n" for line in lines))


def test_a_follower_reads_what_is_new_and_nothing_twice(run: RunDirectory) -> None:
    follower = Follower(run)
    assert follower.new() == []
    with Journal(run) as journal:
        for event in reviewed.EVENTS:
            journal.append(event)
            assert [record.event for record in follower.new()] == [event]
            assert not follower.ended
    assert follower.ended
    assert follower.new() == []
    assert follower.state == run.state()


def test_a_follower_may_take_a_run_in_pieces(run: RunDirectory) -> None:
    """Each look at the clock takes longer than a piece may."""
    events: list[Event] = list(reviewed.EVENTS)
    for number in range(50):
        events.append(TrialFinished(trial=trial("linear", 100 + number)))
        events += [RoundsProgress(region=REGIONS[name], done=number, total=50) for name in ("linear", "add")]
    write(run, events)
    ticks = itertools.count()
    follower = Follower(run, clock=lambda: float(next(ticks)))
    pieces: list[Event] = []
    while not follower.caught_up:
        piece = follower.new(0.5)
        assert len(piece) < LOOK + 3
        pieces += [record.event for record in piece]
    assert pieces == events
    assert follower.state == fold(events)


def test_what_lies_before_a_line_that_is_no_event_is_returned_and_then_the_line_is_named(run: RunDirectory) -> None:
    write(run, list(reviewed.EVENTS))
    with (run.path / EVENTS).open("ab") as file:
        file.write(b"not json\n")
    follower = Follower(run)
    assert [record.event for record in follower.new()] == list(reviewed.EVENTS)
    assert not follower.caught_up
    with pytest.raises(AgentCompileError, match="a line is no event"):
        follower.new()


def test_a_half_written_line_waits_for_its_end(run: RunDirectory) -> None:
    write(run, list(reviewed.EVENTS))
    file = run.path / EVENTS
    whole = file.read_bytes()
    file.write_bytes(whole[:-7])
    follower = Follower(run)
    assert len(follower.new()) == len(reviewed.EVENTS) - 1
    file.write_bytes(whole)
    assert [record.event for record in follower.new()] == [reviewed.EVENTS[-1]]


def test_progress_that_was_overtaken_is_left_out_and_the_state_is_the_same(run: RunDirectory) -> None:
    one, other = REGIONS["linear"], REGIONS["add"]
    rounds: list[Event] = [RoundsProgress(region=r, done=i, total=9) for i in range(9) for r in (one, other)]
    events = [*reviewed.SEARCHED, *rounds, TrialFinished(trial=trial("linear", 2)), *rounds[:5]]
    write(run, events)
    follower = Follower(run)
    assert len(follower.new()) == len(reviewed.SEARCHED) + 2 + 1 + 2
    assert follower.state == fold(events)


def test_most_of_a_long_run_is_progress_that_need_not_be_read(run: RunDirectory) -> None:
    """A trial with its start and eight words on its rounds, two thousand times."""
    events: list[Event] = list(reviewed.SEARCHED)
    for number in range(2_000):
        now = point("linear", 100 + number)
        events.append(TrialStarted(region=now.region, candidate=now.id, label=now.label))
        events += [RoundsProgress(region=now.region, done=done, total=8) for done in range(8)]
        events.append(TrialFinished(trial=trial("linear", 100 + number)))
    write(run, events)
    follower = Follower(run)
    assert len(follower.new()) == len(reviewed.SEARCHED) + 3 * 2_000
    assert follower.state == fold(events)


def test_an_empty_state_folds_to_itself() -> None:
    assert fold([]) == State()
