"""One table of actions: whatever the app can do, a command can do; each is done once, as its own row spells it."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from agentcompile.cli import compiling, running
from agentcompile.cli import main as cli
from agentcompile.cli.flow import Flow
from agentcompile.cli.render import Screen
from agentcompile.control.actions import ACTIONS, Action, Scene, action
from agentcompile.control.client import SOCKET
from agentcompile.control.review import items
from agentcompile.events import LockWritten, RunFinished
from agentcompile.ir.codec import encode
from agentcompile.options import Options
from agentcompile.replay.load import Replayed
from agentcompile.runs.progress import State, fold
from agentcompile.runs.session import Journal, RunDirectory
from tests.unit import fake_compiler, runs
from tests.unit.reviewed import EVENTS, REGIONS, point
from tests.unit.test_control_desk import compiler, until

LIVE = ("pause", "resume", "cancel", "rerun", "edit", "stop")
"""Walked on a run that a compiler works on, in this order; the rest on a run that waits for review."""
AT_REST = ("approve", "undo", "override", "reject", "approve-safe", "reject-rest", "write", "replay")


def spelled(row: Action, run: Path, region: str = "", candidate: str = "") -> list[str]:
    """The row's own command with values in place of what stands for them."""
    values = {"RUN": str(run), "REGION": region, "CANDIDATE": candidate, "TEXT": "a reason", "NAME=VALUE": "ROWS=2"}
    values["LOCK"] = "x.lock.toml"
    words = [values.get(word, word) for word in shlex.split(row.headless)]
    assert words[0] == "agentcompile"
    return words[1:]


def test_the_walks_below_are_over_the_whole_table() -> None:
    assert sorted((*LIVE, *AT_REST)) == sorted(row.name for row in ACTIONS)
    assert len({row.name for row in ACTIONS}) == len(ACTIONS)


def test_every_row_can_be_shown() -> None:
    for row in ACTIONS:
        assert row.key
        assert row.label[0].isupper()
        assert row.help[0].islower()
        assert not row.help.endswith(".")


def test_two_rows_share_a_key_only_where_one_of_them_is_refused() -> None:
    for state in (fold(EVENTS), State()):
        for live in (True, False):
            scene = Scene(state=state, live=live)
            assert not (action("pause").why_not(scene) == "" == action("resume").why_not(scene))
    keys = [row.key for row in ACTIONS if row.name != "resume"]
    assert len(set(keys)) == len(keys)


def test_every_action_that_is_not_allowed_says_why_in_a_sentence() -> None:
    for state in (State(), fold(EVENTS)):
        for row in ACTIONS:
            for live in (True, False):
                why = row.why_not(Scene(state=state, live=live))
                assert why == "" or (why[0].isupper() and (why.endswith(".") or ": " in why)), (row.name, why)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AGENTCOMPILE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_every_action_on_a_live_run_is_done_by_its_command(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = RunDirectory(home / "runs" / "live")
    process = compiler(home, run.path)
    known = point("linear").id
    done: dict[str, Callable[[State], bool]] = {
        "pause": lambda state: state.paused,
        "resume": lambda state: not state.paused,
        "cancel": lambda state: state.counts.cancelled == 2,
        "rerun": lambda state: state.asked == () and len(state.trials) > 0,
        "edit": lambda state: any(trial.candidate == point("linear", 2) for trial in state.trials),
        "stop": lambda state: state.status == "failed",
    }
    try:
        until(lambda: (run.path / SOCKET).exists() and bool(run.state().under_way))
        for name in LIVE:
            candidate = fake_compiler.UNDER_WAY.id if name == "cancel" else known
            assert cli.main(spelled(action(name), run.path, candidate=candidate)) == 0, capsys.readouterr().err
            until(lambda name=name: done[name](run.state()))  # type: ignore[misc]
        assert process.wait(timeout=30) != 0
    finally:
        process.kill()
        process.wait(timeout=30)
    assert not run.alive()


@pytest.fixture
def rest(home: Path) -> RunDirectory:
    run = RunDirectory.create(home / "runs" / "rest", encode(Options(model="sample", review=True)))
    with Journal(run) as journal:
        for event in EVENTS:
            journal.append(event)
    return run


def standing(run: RunDirectory, name: str) -> str:
    return next(item.standing for item in items(run.state()) if item.region == REGIONS[name])


def test_every_action_on_a_run_at_rest_is_done_by_its_command(
    home: Path, rest: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    def done(name: str, region: str = "", candidate: str = "") -> None:
        words = spelled(action(name), rest.path, region, candidate)
        assert cli.main(words) == 0, capsys.readouterr().err

    done("approve", "linear")
    assert standing(rest, "linear") == "approved"
    done("undo")
    assert standing(rest, "linear") == "undecided"
    done("override", "linear", point("linear", 8).id[:10])
    assert rest.state().decisions[REGIONS["linear"]].reason == "a reason"
    done("reject", "add")
    assert standing(rest, "add") == "rejected"
    done("undo")
    done("approve-safe")
    assert standing(rest, "add") == "approved"
    assert cli.main(["compile", "--resume", "--run-dir", str(rest.path)]) == 7
    assert "1 regions wait for review" in capsys.readouterr().err
    done("reject-rest")
    assert standing(rest, "rmsnorm") == "rejected"

    written = [runs.STARTED, LockWritten(path="x.lock.toml", digest="d"), RunFinished()]
    seen: list[dict[str, str]] = []

    def writes(options: object, emit: Callable[[object], None], past: object, steering: object) -> None:
        seen.append({region: decision.word for region, decision in steering.decisions().items()})  # type: ignore[attr-defined]
        for event in written:
            emit(event)

    assert spelled(action("write"), rest.path) == ["compile", "--resume", "--run-dir", str(rest.path)]
    flow = Flow()
    vars(flow).update({"compile": writes, "replay": lambda *_: Replayed(model="m", kernels=3)})
    assert compiling.compile({"run_dir": str(rest.path)}, resume=True, screen=Screen.standard(), flow=flow) == 0
    assert seen == [{REGIONS["linear"]: "override", REGIONS["add"]: "approve", REGIONS["rmsnorm"]: "reject"}]
    assert action("replay").why_not(Scene(state=rest.state(), live=False)) == ""
    assert spelled(action("replay"), rest.path) == ["replay", "x.lock.toml"]
    assert running.replay({}, Path("x.lock.toml"), locked=False, check=False, screen=Screen.standard(), flow=flow) == 0
