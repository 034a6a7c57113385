from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from runs import TARGET, WHOLE

from agentcompile.cli import compiling, packing
from agentcompile.cli import main as cli
from agentcompile.cli.exits import Stopped
from agentcompile.cli.flow import Flow
from agentcompile.cli.render import Screen
from agentcompile.control.steering import Steering
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.events import Emit
from agentcompile.ir.trial import Trial
from agentcompile.options import Options
from agentcompile.runs.session import Journal, RunDirectory, runs_in

PART = 10
"""Events until the kill; one trial is among them."""


def paper() -> tuple[Screen, io.StringIO, io.StringIO]:
    out, err = io.StringIO(), io.StringIO()
    return Screen(out=out, err=err, format="json"), out, err


def flow(**functions: object) -> Flow:
    made = Flow()
    vars(made).update({"target": lambda options: TARGET, **functions})
    return made


def stops(options: Options, emit: Emit, past: Sequence[Trial], steering: Steering) -> None:
    for event in WHOLE[:PART]:
        emit(event)
    raise KeyboardInterrupt


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the first machine keeps its data; the current folder is another."""
    monkeypatch.setenv("AGENTCOMPILE_HOME", str(tmp_path / "one"))
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path / "folder")
    return tmp_path / "one"


@pytest.fixture
def run(home: Path) -> RunDirectory:
    """A run of a checkpoint that is not there, stopped after a trial."""
    flags = {"model": "sample", "budget": "7", "out": "first.lock.toml"}
    with pytest.raises(Stopped):
        compiling.compile(flags, resume=False, screen=paper()[0], flow=flow(compile=stops))
    (path,) = runs_in(home / "runs")
    return RunDirectory.open(path)


@pytest.fixture
def packed(run: RunDirectory) -> Path:
    assert cli.main(["runs", "pack", run.path.name]) == 0
    return Path.cwd() / f"{run.path.name}.run.tar.xz"


def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("AGENTCOMPILE_HOME", str(tmp_path / "two"))
    return tmp_path / "two"


def unpacked(packed: Path, flags: dict[str, object], there: Flow | None = None) -> tuple[dict[str, Any], str]:
    screen, out, err = paper()
    assert packing.runs_unpack(flags, packed, screen=screen, flow=there or flow()) == 0
    found: dict[str, Any] = json.loads(out.getvalue())
    return found, err.getvalue()


def test_a_run_is_packed_by_name_or_folder_to_where_one_is(run: RunDirectory, packed: Path, tmp_path: Path) -> None:
    screen, out, _ = paper()
    packing.runs_pack({}, str(run.path), tmp_path / "y", screen=screen)
    said = json.loads(out.getvalue())
    assert said["file"] == str(tmp_path / "y")
    assert said["bytes"] == packed.stat().st_size
    assert (tmp_path / "y").read_bytes() == packed.read_bytes()


def test_an_unpacked_run_goes_on_with_its_trials_in_its_new_place(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = elsewhere(monkeypatch, tmp_path)
    (tmp_path / "models/sample").mkdir(parents=True)
    flags: dict[str, object] = {"model": str(tmp_path / "models/sample"), "out": "second.lock.toml"}
    found, err = unpacked(packed, {**flags, "run_dir": str(tmp_path / "run")})
    assert (found["run"], found["trials"], found["warnings"]) == (str(tmp_path / "run"), 1, [])
    assert err == ""

    seen: list[tuple[Options, Sequence[Trial]]] = []

    def resumes(options: Options, emit: Emit, past: Sequence[Trial], steering: Steering) -> None:
        seen.append((options, past))
        for event in WHOLE:
            emit(event)

    asked = {"run_dir": str(tmp_path / "run"), "model": str(tmp_path / "models/sample")}
    assert compiling.compile(asked, resume=True, screen=paper()[0], flow=flow(compile=resumes)) == 0
    ((options, past),) = seen
    assert len(past) == 1
    assert options.budget == 7, "what was asked is asked again"
    assert (options.model, options.home) == (str(tmp_path / "models/sample"), str(home))
    assert Path(options.out) == Path.cwd() / "second.lock.toml"


def test_a_run_goes_among_the_runs_of_its_new_place(
    packed: Path, run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = elsewhere(monkeypatch, tmp_path)
    found, _ = unpacked(packed, {})
    assert runs_in(home / "runs") == (home / "runs" / run.path.name,)
    assert found["run"] == str(home / "runs" / run.path.name)
    with pytest.raises(AgentCompileError, match="already holds a run"):
        packing.runs_unpack({}, packed, screen=paper()[0], flow=flow())


def test_an_archive_names_no_file_to_write(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock goes where this place says, not where the archive does."""
    elsewhere(monkeypatch, tmp_path)
    found, _ = unpacked(packed, {})
    assert found["out"] == str(Path.cwd() / "agentcompile.lock.toml")


def test_what_is_not_here_is_a_warning_with_its_flag(packed: Path, tmp_path: Path) -> None:
    found, err = unpacked(packed, {"run_dir": str(tmp_path / "run"), "templates": [str(tmp_path / "none")]})
    assert len(found["warnings"]) == 2
    assert "--model" in err
    assert "--templates" in err


def test_another_kind_of_machine_is_a_warning_that_names_the_difference(packed: Path, tmp_path: Path) -> None:
    other = replace(TARGET, device="another processor")
    found, _ = unpacked(packed, {"run_dir": str(tmp_path / "run")}, flow(target=lambda options: other))
    assert "device was a processor and is another processor" in found["warnings"][-1]


def test_a_machine_that_cannot_compile_can_still_look_at_a_run(packed: Path, tmp_path: Path) -> None:
    def none(options: Options) -> object:
        raise AgentCompileError("no C++ compiler", exit_code=ExitCode.ENVIRONMENT, hint="install g++")

    found, _ = unpacked(packed, {"run_dir": str(tmp_path / "run")}, flow(target=none))
    assert found["warnings"][-1] == "no C++ compiler; install g++"


def test_a_live_run_is_busy(run: RunDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    with Journal(run):
        assert cli.main(["runs", "pack", str(run.path)]) == ExitCode.ENVIRONMENT
    assert "hint: wait for it" in capsys.readouterr().err
    assert list(Path.cwd().iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["runs", "pack", "nonsense"], "holds no run"),
        (["runs", "unpack", "nonsense"], "no such file"),
        (["runs", "pack"], "RUN"),
    ],
)
def test_wrong_names_are_usage_errors(
    arguments: list[str], words: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments) == ExitCode.USAGE
    assert words in capsys.readouterr().err


def test_the_help_says_what_travels(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["runs", "pack", "--help"]) == 0
    assert "16 MiB" in capsys.readouterr().out
    assert cli.main(["runs", "unpack", "--help"]) == 0
    assert "--run-dir" in capsys.readouterr().out
