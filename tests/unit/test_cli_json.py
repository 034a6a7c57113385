"""What `--json` prints: one value, of a verb that failed too, with what is known beside the error."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from reviewed import EVENTS as REVIEWED
from test_cli import DRIFTED, flow, paper

from agentcompile.cli import compiling, running
from agentcompile.cli import main as cli
from agentcompile.cli.exits import Stopped, guarded
from agentcompile.cli.flow import Flow
from agentcompile.cli.render import Screen
from agentcompile.control.steering import Steering
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.events import Emit
from agentcompile.ir.trial import Trial
from agentcompile.options import Options
from agentcompile.replay.load import Replayed


def only(capsys: pytest.CaptureFixture[str]) -> tuple[dict[str, Any], str]:
    """The one JSON value on stdout, and what is on stderr."""
    captured = capsys.readouterr()
    value: dict[str, Any] = json.loads(captured.out)
    return value, captured.err


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["explain", "linear", "--json"], 2, "no runs"),
        (["inspect", "--json"], 2, "no model was named"),
        (["compile", "--json"], 2, "no model was named"),
        (["generate", "gone.lock.toml", "--json"], 2, "no prompt was given"),
        (["replay", "gone.lock.toml", "--check", "--json"], 2, "gone.lock.toml"),
        (["replay", "gone.lock.toml", "--no-such-flag", "--json"], 2, "--no-such-flag"),
        (["bench", "nonsense", "--json"], 2, "no recipe"),
    ],
)
def test_a_verb_that_fails_tells_programs_why(
    arguments: list[str], code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments) == code
    value, err = only(capsys)
    assert set(value["error"]) == {"message", "hint", "exit_code"}
    assert value["error"]["exit_code"] == code
    assert words in value["error"]["message"]
    assert words in err


def test_without_json_an_error_leaves_stdout_empty(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "linear"]) == 2
    assert capsys.readouterr().out == ""


def test_a_run_that_was_stopped_tells_programs_how_to_resume_it(capsys: pytest.CaptureFixture[str]) -> None:
    def stops() -> int:
        raise Stopped(15, "resume it")

    assert guarded(stops, json=True) == 143
    assert only(capsys)[0] == {"error": {"message": "stopped by a signal", "hint": "resume it", "exit_code": 143}}


def test_a_replay_that_is_refused_tells_programs_what_drifted(capsys: pytest.CaptureFixture[str]) -> None:
    def replays(lock: Path, options: Options, emit: Emit, locked: bool, check: bool) -> Replayed:
        emit(DRIFTED)
        raise AgentCompileError("does not hold", exit_code=ExitCode.DRIFT, hint="compile again")

    def call() -> int:
        screen = Screen.standard("json")
        return running.replay({}, Path("x"), locked=True, check=True, screen=screen, flow=flow(replay=replays))

    assert guarded(call, json=True) == 3
    value, _ = only(capsys)
    assert value["lock"] == "x"
    assert [row["field"] for row in value["drift"]] == ["target.device"]
    assert value["error"] == {"message": "does not hold", "hint": "compile again", "exit_code": 3}


def test_a_replay_tells_programs_what_it_rebuilt() -> None:
    def replays(lock: Path, options: Options, emit: Emit, locked: bool, check: bool) -> Replayed:
        emit(DRIFTED)
        return Replayed(model="m", kernels=7, validated=2)

    screen, out, _ = paper("json")
    assert running.replay({}, Path("x"), locked=False, check=False, screen=screen, flow=flow(replay=replays)) == 0
    value = json.loads(out.getvalue())
    assert value.pop("seconds") >= 0
    assert [row["field"] for row in value.pop("drift")] == ["target.device"]
    assert value.pop("path") == "x"  # what it was called before
    assert value == {"lock": "x", "model": "m", "warnings": [], "kernels": 7, "validated": 2, "ok": True}


def test_a_compile_that_waits_for_review_is_one_value_with_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    def waits(options: Options, emit: Emit, past: Sequence[Trial], steering: Steering) -> None:
        for event in REVIEWED:
            emit(event)
        raise AgentCompileError("undecided", exit_code=ExitCode.UNDECIDED)

    def call() -> int:
        made: Flow = flow(compile=waits)
        return compiling.compile(
            {"model": "m", "review": True}, resume=False, screen=Screen.standard("json"), flow=made
        )

    assert guarded(call, json=True) == 7
    value, _ = only(capsys)
    assert "error" not in value
    assert value["review"]["exit_code"] == 7
    assert value["regions"]
    assert Path(value["run"]).is_dir()
