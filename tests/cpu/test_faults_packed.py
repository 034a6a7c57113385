"""A run that is killed, packed, and goes on in another place repeats no finished trial there."""

from __future__ import annotations

import contextlib
import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from agentcompile.events import TrialFinished
from agentcompile.interchange.archive import Contents, read
from agentcompile.ir.codec import CodecError, decode
from agentcompile.ir.target import Ceiling
from agentcompile.ir.trial import Measured, Trial
from agentcompile.lockfile.files import read_lock
from agentcompile.options import Options
from agentcompile.runs.session import RunDirectory
from agentcompile.tuning.trial_database import disturbed
from tests.cpu import flows
from tests.cpu.courses import Course


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """A killed run, its archive, and the run that went on from it."""

    first: RunDirectory
    store: Path
    contents: Contents
    second: RunDirectory
    other: Options
    resumed: flows.Ended
    strayed: bool
    """Whether something was written where the first run was."""


@pytest.fixture(scope="module")
def moved(tmp_path_factory: pytest.TempPathFactory, course: Course) -> Moved:
    """Checkpoint, data, run and lock lie elsewhere the second time, and nothing of the first place can be found."""
    root = tmp_path_factory.mktemp("moved")
    home, run, away = root / "home", root / "run", root / "away"
    model, file = Path(shutil.copytree(course.model, root / "model")), Path(shutil.copy(course.packed, root))
    course.root.rename(away)
    try:
        flags = ("--run-dir", run, "--model", model, "--out", root / "two.lock.toml")
        done = flows.verb(home, "runs", "unpack", file, *flags, "--json")
        assert done.code == 0, done.err
        assert json.loads(done.out)["warnings"] == []
        resumed = flows.verb(home, "compile", "--resume", "--run-dir", run)
    finally:
        if strayed := course.root.exists():
            shutil.rmtree(course.root)
        away.rename(course.root)
    return Moved(
        first=RunDirectory.open(course.covered),
        store=course.noted,
        contents=read(file),
        second=RunDirectory.open(run),
        other=Options(home=str(home), out=str(root / "two.lock.toml")),
        resumed=resumed,
        strayed=strayed,
    )


def trials(run: RunDirectory) -> list[Trial]:
    return [event.trial for event in run.events() if isinstance(event, TrialFinished)]


def asked(trial: Trial) -> tuple[str, str, int]:
    m = trial.verdict.measurement if isinstance(trial.verdict, Measured) else None
    return (trial.candidate.id, trial.fidelity, m.rounds + m.dropped if m else 0)


def test_a_run_goes_on_where_nothing_of_its_first_place_is_left(moved: Moved) -> None:
    assert moved.resumed.code == 0, moved.resumed.err
    assert {plan.phase for plan in read_lock(Path(moved.other.out)).plan} == {"decode", "prefill"}
    assert not moved.strayed


def test_no_finished_trial_is_repeated(moved: Moved) -> None:
    before, after = trials(moved.first), trials(moved.second)
    assert before
    assert after[: len(before)] == before
    known = {asked(trial) for trial in before if not disturbed(trial)}  # what was disturbed says nothing: made again
    assert [trial for trial in after[len(before) :] if asked(trial) in known] == []


def test_every_fact_of_the_run_travelled(moved: Moved) -> None:
    """The store was this run's alone, so all of its notes are of this run: none is forgotten, under no other key."""
    noted = {path.name.removesuffix(".note.json") for path in moved.store.rglob("*.note.json")}
    assert noted
    assert set(moved.contents.facts.notes) == noted
    there = {path.name for path in moved.other.store.rglob("*.note.json")}
    assert {f"{key}.note.json" for key in noted} <= there


def test_the_ceilings_travelled(moved: Moved) -> None:
    """They are in the store unless the machine was too crowded to keep what was measured on it."""
    measured = set()
    for path in moved.store.rglob("*.json"):
        with contextlib.suppress(CodecError):
            decode(Ceiling, json.loads(path.read_bytes()))
            measured.add(path.stem)
    assert set(moved.contents.facts.ceilings) == measured
