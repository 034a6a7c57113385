"""What grows is shared, and looked through once."""

from __future__ import annotations

import pytest

from agentcompile.control.actions import ACTIONS, Scene
from agentcompile.runs.persistent import GrowingSequence, GrowingSet
from agentcompile.runs.progress import fold
from agentcompile.runs.rows import changed
from tests.unit.reviewed import EVENTS, REGIONS, point, trial
from tests.walked import Walked


def test_what_grows_is_shared_and_a_branch_is_its_own() -> None:
    base = GrowingSequence([1, 2])
    one, other = base.plus(3), base.plus(4)
    assert (list(base), list(one), list(other)) == ([1, 2], [1, 2, 3], [1, 2, 4])
    assert one[-1] == 3
    assert one[1:] == (2, 3)
    assert one == (1, 2, 3)
    assert one != other
    with pytest.raises(IndexError):
        _ = base[2]


def test_keys_that_were_met_are_known_to_those_who_met_them() -> None:
    base = GrowingSet[str]().plus("a")
    one, other = base.plus("b"), base.plus("c")
    assert ("b" in one, "c" in one, "b" in other, "c" in other, "b" in base) == (True, False, False, True, False)
    assert base.plus("a") is base
    assert other.plus("b").plus("b") == base.plus("b").plus("c")
    assert (len(base), len(one)) == (1, 2)


def _parity(number: int) -> int:
    return number % 2


def test_items_are_found_by_key_and_each_sequence_finds_only_its_own() -> None:
    base = GrowingSequence([1, 2, 3])
    longer = base.plus(5)
    assert longer.of(_parity, 1) == (1, 3, 5)
    assert base.of(_parity, 1) == (1, 3)
    branch = base.plus(4)
    assert (branch.of(_parity, 0), branch.of(_parity, 1)) == ((2, 4), (1, 3))
    assert longer.of(_parity, 0) == (2,)
    assert longer.of(_parity, 7) == ()


def test_an_item_is_looked_at_once_however_often_it_is_asked_for() -> None:
    looked: list[int] = []

    def by(number: int) -> int:
        looked.append(number)
        return number % 10

    numbers = GrowingSequence(range(1000))
    for more in range(1000, 1100):
        numbers = numbers.plus(more)
        assert more in numbers.of(by, more % 10)
    assert looked == list(range(1100))


def test_no_action_walks_through_all_trials_to_say_why_not() -> None:
    state = fold(EVENTS)
    trials = Walked([*state.trials, *(trial("linear", 100 + number) for number in range(500))])
    trials.walks = 0
    state = changed(state, trials=trials)
    for live in (True, False):
        for candidate in (point("linear").id, point("linear", 16).id, "nobody"):
            scene = Scene(state=state, live=live, region=REGIONS["linear"], candidate=candidate)
            assert any(row.why_not(scene) == "" for row in ACTIONS)
    assert trials.walks == 0
