"""What earlier runs on this machine found on like regions, and what that does to the order of a search."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcompile.advice.prompt import prompt_of
from agentcompile.events import Event, Remembered, decode, encode
from agentcompile.ir.advice import Advice
from agentcompile.ir.region import Region
from agentcompile.ir.shape import NEAR, Shape
from agentcompile.ir.target import Ceiling
from agentcompile.ir.template import Candidate
from agentcompile.ir.trial import BuildFailed, Incorrect, Trial, Verdict
from agentcompile.options import resolve
from agentcompile.runs.progress import State, fold
from agentcompile.space import Space
from agentcompile.tuning.machine_trials import MachineTrials
from agentcompile.tuning.memory import WINNERS, Recalled, recall
from agentcompile.tuning.partitions import question_of
from agentcompile.tuning.tasks import TuneTask
from tests.unit import runs
from tests.unit.fakes import linear_region, measured, rows_template, target

HERE = Advice(label="heuristic")


def task(hidden: int = 64, rows: int = 32) -> TuneTask:
    space = Space(linear_region(hidden=hidden, rows=rows), [rows_template()], target())
    return TuneTask(region=space.region, space=space, advice=HERE, residency="dram", floor_ns=1.0)


def ended(candidate: Candidate, verdict: Verdict) -> Trial:
    return replace(measured(candidate, 0.1), verdict=verdict)


@pytest.fixture
def history(tmp_path: Path) -> Iterator[MachineTrials]:
    with MachineTrials(tmp_path / "history.sqlite") as made:
        yield made


def earlier(history: MachineTrials, other: TuneTask, *trials: Trial) -> None:
    """What a run on another model left behind."""
    recall([other], history, "p", lambda _: None)
    for trial in trials:
        history.put(trial, "p")


def order_of(
    history: MachineTrials, here: TuneTask, advice: Advice = HERE, policy: str = "p"
) -> tuple[list[str], list[Event]]:
    told: list[Event] = []
    advised = recall([here], history, policy, told.append).order(here, advice)
    return [candidate.id for candidate in advised.sorted(tuple(here.space))], told


def points(one: TuneTask) -> list[Candidate]:
    return list(one.space)


def test_what_was_fast_on_a_like_region_comes_first_and_what_failed_last(history: MachineTrials) -> None:
    other, here = task(hidden=128), task()
    there, own = points(other), points(here)
    assert [one.params for one in there] == [one.params for one in own], "the same points, of two regions"
    earlier(history, other, measured(there[3], 1.5), measured(there[5], 2.0), ended(there[0], BuildFailed(log="no")))
    order, told = order_of(history, here)
    assert order[:2] == [own[5].id, own[3].id]
    assert order[-1] == own[0].id
    assert sorted(order) == sorted(one.id for one in own), "nothing is added, and nothing lost"
    (event,) = told
    assert isinstance(event, Remembered)
    assert [(one.label, one.verdict, one.stale) for one in event.memories] == [
        (own[5].label, "measured", False),
        (own[3].label, "measured", False),
        (own[0].label, "build-failed", False),
    ]
    assert event.memories[0].speedup == pytest.approx(math.exp(2.0), rel=1e-3)
    assert decode(encode(event)) == event


def test_without_memory_earlier_winners_are_taken_out_of_the_order(history: MachineTrials) -> None:
    other, here = task(hidden=128), task()
    earlier(history, other, measured(points(other)[5], 2.0))
    emitted: list[Event] = []

    def order(asked: bool) -> list[str]:
        advised = recall([here], history, "p", emitted.append, asked=asked).order(here, HERE)
        return [candidate.id for candidate in advised.sorted(tuple(here.space))]

    plain = [one.id for one in points(here)]
    assert not resolve({"memory": False}).options.memory
    assert order(resolve({"memory": False}).options.memory) == plain
    assert not emitted, "and none is emitted"
    assert resolve({}).options.memory
    assert order(resolve({}).options.memory) == [plain[5], *(id for id in plain if id != plain[5])]
    assert len(emitted) == 1


def test_the_rest_keeps_the_advised_order(history: MachineTrials) -> None:
    other, here = task(hidden=128), task()
    own = points(here)
    earlier(history, other, measured(points(other)[3], 1.5))
    advice = Advice(label="a model", order=tuple(one.id for one in reversed(own)))
    order, _ = order_of(history, here, advice)
    assert order == [own[3].id, *(one.id for one in reversed(own) if one is not own[3])]
    assert Recalled().order(here, advice) is advice


def test_no_more_than_a_few_come_first_and_slower_ones_never(history: MachineTrials) -> None:
    other, here = task(hidden=128), task()
    there = points(other)
    slow = [measured(one, -0.2, comparison="SLOWER") for one in there[:2]]
    earlier(history, other, *slow, *(measured(one, 0.1 * at) for at, one in enumerate(there[2:8], 1)))
    _, told = order_of(history, here)
    (event,) = told
    assert isinstance(event, Remembered)
    assert [one.candidate for one in event.memories] == [points(here)[at].id for at in (7, 6, 5)]
    assert len(event.memories) == WINNERS


def test_the_nearer_of_two_like_regions_decides(history: MachineTrials) -> None:
    near, far, here = task(hidden=128), task(hidden=256), task()
    earlier(history, far, measured(points(far)[1], 3.0), ended(points(far)[2], Incorrect(report=runs.REPORT)))
    earlier(history, near, measured(points(near)[2], 0.5))
    order, _ = order_of(history, here)
    assert order[:2] == [points(here)[2].id, points(here)[1].id]


@pytest.mark.parametrize("other", [task(hidden=1024), task(rows=256), task()])
def test_another_size_and_the_region_itself_are_not_remembered(history: MachineTrials, other: TuneTask) -> None:
    earlier(history, other, measured(points(other)[3], 1.5))
    order, told = order_of(history, task())
    assert told == []
    assert order == [one.id for one in points(task())]


def test_another_policy_is_not_remembered_and_another_text_is_stale(history: MachineTrials) -> None:
    other, here = task(hidden=128), task()
    old = replace(points(other)[3], template_digest="of an earlier text")
    earlier(history, other, measured(old, 1.5))
    assert order_of(history, here, policy="q")[1] == []
    (event,) = order_of(history, here)[1]
    assert isinstance(event, Remembered)
    assert [(one.candidate, one.stale) for one in event.memories] == [(points(here)[3].id, True)]


def test_a_run_that_goes_on_remembers_what_it_did_at_first(history: MachineTrials) -> None:
    """Its own trials are in the database by then, those of its like regions, too."""
    near, here = task(hidden=128), task()
    before = recall([near, here], history, "p", lambda _: None).order(here, HERE)
    history.put(measured(points(near)[3], 1.5), "p")
    history.put(measured(points(here)[4], 1.5), "p")
    told: list[Event] = []
    assert recall([near, here], history, "p", told.append).order(here, HERE) == before
    assert told == []


def test_a_file_of_an_earlier_version_gets_the_table(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    with MachineTrials(path) as made:
        made.put(runs.trial(), "p")
    db = sqlite3.connect(path)
    db.execute("drop table region")
    db.commit()
    db.close()
    with MachineTrials(path) as history:
        assert history.warning == ""
        assert len(history) == 1
        assert history.note_shapes({}) == {}
        assert history.note_shapes({"r": Shape.of(task().region)}) == {"r": Shape.of(task().region)}
        assert history.note_shapes({}) == {"r": Shape.of(task().region)}
    db = sqlite3.connect(path)
    db.execute("insert into region values ('broken', '{')")
    db.commit()
    db.close()
    with MachineTrials(path) as history:
        assert set(history.note_shapes({})) == {"r"}


def test_a_state_keeps_what_was_remembered(history: MachineTrials) -> None:
    other, here = task(hidden=128), task()
    earlier(history, other, measured(points(other)[3], 1.5))
    (event,) = order_of(history, here)[1]
    assert isinstance(event, Remembered)
    found: State = fold([runs.STARTED, replace(runs.FOUND, region=here.region.id), event])
    assert found.rows[0].memories == event.memories


def test_an_adviser_is_told_what_is_remembered_and_that_it_was_elsewhere(history: MachineTrials) -> None:
    other, here = task(hidden=128), task()
    there, own = points(other), points(here)
    stale = replace(there[4], template_digest="of an earlier text")
    earlier(history, other, measured(there[3], 1.5), measured(stale, 1.0), ended(there[0], BuildFailed(log="no")))
    memories = recall([here], history, "p", lambda _: None).memories[here.region.id]
    question = replace(question_of(here.space, rates(), "dram"), memories=memories)
    (told,) = json.loads(prompt_of([question]).user)["regions"]
    ids = {candidate.id: id for id, candidate in prompt_of([question]).asked[0].candidates.items()}
    assert told["on_like_regions"] == [
        [ids[own[3].id], "measured", 4.48, "times PyTorch"],
        [ids[own[4].id], "measured", 2.72, "times PyTorch", "its text changed since: check again"],
        [ids[own[0].id], "build-failed"],
    ]
    assert told["trials"] == []
    assert "on_like_regions" not in json.loads(prompt_of([replace(question, memories=())]).user)["regions"][0]


def rates() -> Ceiling:
    return Ceiling(dram_bytes_per_s=2e10, cache_bytes_per_s=1e11, flops_per_s=1e11)


def region(hidden: int, rows: int) -> Region:
    return linear_region(hidden=hidden, rows=rows)


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), st.integers(1, 4))
def test_distance_is_symmetric_and_bounded(a: int, b: int, c: int, d: int) -> None:
    one, two = Shape.of(region(16 * a, 8 * b)), Shape.of(region(16 * c, 8 * d))
    assert one.distance(two) == two.distance(one)
    assert (one.distance(two) == 0) == ((a, b) == (c, d))
    near = all(1 / NEAR <= x / y <= NEAR for x, y in ((a, c), (b, d)))
    assert (one.distance(two) < math.inf) == near


def test_other_kinds_phases_and_batches_are_never_like() -> None:
    one = Shape.of(task().region)
    for changed in (replace(one, kind="add"), replace(one, phase="prefill"), replace(one, batch=2)):
        assert one.distance(changed) == math.inf
    assert one.distance(replace(one, dims=one.dims[1:])) == math.inf
