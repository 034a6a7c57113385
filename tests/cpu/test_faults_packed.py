"""A run that is killed, packed, and goes on in another place repeats no finished trial there."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from agentcompile.archive import Contents, read
from agentcompile.events import TrialFinished
from agentcompile.ir.codec import CodecError, decode
from agentcompile.ir.target import Ceiling
from agentcompile.ir.trial import Measured, Trial
from agentcompile.lockfile import read_lock
from agentcompile.options import Options
from agentcompile.past import disturbed
from agentcompile.session import RunDirectory
from tests.cpu import flows
from tests.cpu.conftest import BUDGET, CONTEXT
from tests.cpu.courses import LIMIT_S, leg

STAGES = 8
"""Until the kill: the plan is covered, so every kind of fact was noted, and the step is not measured yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """A killed run, its archive, and the run that went on from it."""

    first: RunDirectory
    store: Path
    contents: Contents
    second: RunDirectory
    other: Options
    resumed: flows.Ended


@pytest.fixture(scope="module")
def moved(tmp_path_factory: pytest.TempPathFactory, checkpoint: Callable[[str, str], Path]) -> Moved:
    """Checkpoint, data, run and lock lie elsewhere the second time, and nothing of the first place can be found."""
    root = tmp_path_factory.mktemp("moved")
    homes, runs = (root / "home1", root / "home2"), (root / "run1", root / "run2")
    models = (root / "model1", root / "model2")
    shutil.copytree(checkpoint("tiny-qwen3", "fp32"), models[0])
    start: list[object] = [
        "compile", models[0], "--context", CONTEXT, "--threads", flows.THREADS, "--budget", BUDGET,
        "--out", root / "one.lock.toml", "--run-dir", runs[0],
    ]  # fmt: skip
    ended = leg(homes[0], start, runs[0], "stage-finished", STAGES, signal.SIGKILL)
    assert ended.code == -signal.SIGKILL, ended.err
    file = root / "x.run.tar.xz"
    done = flows.verb(homes[0], "runs", "pack", runs[0], "--out", file)
    assert done.code == 0, done.err
    models[0].rename(models[1])
    homes[0].rename(root / "away")
    flags = ("--run-dir", runs[1], "--model", models[1], "--out", root / "two.lock.toml")
    done = flows.verb(homes[1], "runs", "unpack", file, *flags, "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["warnings"] == []
    resumed = flows.cli(homes[1], "compile", "--resume", "--run-dir", runs[1], limit_s=LIMIT_S)
    return Moved(
        first=RunDirectory.open(runs[0]),
        store=root / "away/cache/store",
        contents=read(file),
        second=RunDirectory.open(runs[1]),
        other=Options(home=str(homes[1]), out=str(root / "two.lock.toml")),
        resumed=resumed,
    )


def trials(run: RunDirectory) -> list[Trial]:
    return [event.trial for event in run.events() if isinstance(event, TrialFinished)]


def asked(trial: Trial) -> tuple[str, str, int]:
    m = trial.verdict.measurement if isinstance(trial.verdict, Measured) else None
    return (trial.candidate.id, trial.fidelity, m.rounds + m.dropped if m else 0)


def test_a_run_goes_on_where_nothing_of_its_first_place_is_left(moved: Moved) -> None:
    assert moved.resumed.code == 0, moved.resumed.err
    assert {plan.phase for plan in read_lock(Path(moved.other.out)).plan} == {"decode", "prefill"}
    assert not moved.first.path.with_name("one.lock.toml").exists()


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
