"""Reading a run from outside: nothing twice, nothing lost, and a long one in the time that a person waits."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentcompile.control import Follower
from agentcompile.events import Event, RoundsProgress, TrialFinished, TrialStarted, encode
from agentcompile.grown import Grown, Seen
from agentcompile.ir.digest import canonical
from agentcompile.progress import State, fold
from agentcompile.session import EVENTS, Journal, RunDirectory
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
    write(run, list(reviewed.EVENTS))
    follower = Follower(run)
    pieces = []
    while piece := follower.new(3):
        pieces.append(len(piece))
    assert set(pieces[:-1]) == {3}
    assert sum(pieces) == len(reviewed.EVENTS)
    assert follower.state == fold(reviewed.EVENTS)


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


def test_what_grows_is_shared_and_a_branch_is_its_own() -> None:
    base = Grown([1, 2])
    one, other = base.plus(3), base.plus(4)
    assert (list(base), list(one), list(other)) == ([1, 2], [1, 2, 3], [1, 2, 4])
    assert one[-1] == 3
    assert one[1:] == (2, 3)
    assert one == (1, 2, 3)
    assert one != other
    with pytest.raises(IndexError):
        _ = base[2]


def test_keys_that_were_met_are_known_to_those_who_met_them() -> None:
    base = Seen[str]().plus("a")
    one, other = base.plus("b"), base.plus("c")
    assert ("b" in one, "c" in one, "b" in other, "c" in other, "b" in base) == (True, False, False, True, False)
    assert base.plus("a") is base
    assert other.plus("b").plus("b") == base.plus("b").plus("c")
    assert (len(base), len(one)) == (1, 2)


def test_an_empty_state_folds_to_itself() -> None:
    assert fold([]) == State()
