"""What a start of a compilation leaves behind: no run where it is refused, and a name for each that stays."""

from __future__ import annotations

from pathlib import Path

import pytest
from runs import WHOLE
from test_cli import flow, home, paper, run_of, stopping

from agentcompile.cli import compiling
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.events import StageStarted
from agentcompile.options import Options
from agentcompile.runs import session

__all__ = ["home"]


def test_a_start_that_failed_on_its_arguments_leaves_no_run(home: Path, tmp_path: Path) -> None:
    wrong = AgentCompileError("no such directory", hint="name another")
    screen, _, err = paper()
    for after, error in ((1, wrong), (0, AgentCompileError("no device", exit_code=ExitCode.ENVIRONMENT))):
        with pytest.raises(AgentCompileError, match=error.message):
            compiling.compile({"model": "m"}, resume=False, screen=screen, flow=flow(compile=stopping(error, after)))
    assert session.runs_in(home / "runs") == ()
    assert "run " not in err.getvalue(), "no folder is named that is gone"
    for after, error in ((4, wrong), (1, AgentCompileError("full", exit_code=ExitCode.ENVIRONMENT))):
        with pytest.raises(AgentCompileError):
            compiling.compile({"model": "m"}, resume=False, screen=screen, flow=flow(compile=stopping(error, after)))
    assert len(session.runs_in(home / "runs")) == 2, "what was captured, or may be tried again, stays"
    (tmp_path / "own").mkdir()
    own = {"model": "m", "run_dir": str(tmp_path / "own")}
    with pytest.raises(AgentCompileError):
        compiling.compile(own, resume=False, screen=screen, flow=flow(compile=stopping(wrong, 1)))
    assert session.RunDirectory.open(tmp_path / "own").state().status == "failed", "its maker reads why"


def test_what_is_refused_before_a_start_makes_no_run(home: Path, tmp_path: Path) -> None:
    ran: list[Options] = []
    screen, _, err = paper()
    for wrong in ({"batch": "1,2", "target": "cpu"}, {"out": str(tmp_path)}, {"out": "/proc/x.lock.toml"}):
        with pytest.raises(AgentCompileError):
            compiling.compile({"model": "m", **wrong}, resume=False, screen=screen, flow=flow(compile=ran.append))
    assert ran == []
    assert session.runs_in(home / "runs") == ()
    assert err.getvalue() == ""


def test_a_run_is_named_when_it_will_stay(home: Path) -> None:
    assert isinstance(WHOLE[1], StageStarted)
    wrong = AgentCompileError("is a file, not a directory", hint="name another")
    screen, _, err = paper()
    with pytest.raises(AgentCompileError):
        compiling.compile({"model": "m"}, resume=False, screen=screen, flow=flow(compile=stopping(wrong, 2)))
    assert "run " not in err.getvalue(), "its checkpoint is none, and its folder is gone"
    full = AgentCompileError("disk full", exit_code=ExitCode.ENVIRONMENT)
    with pytest.raises(AgentCompileError):
        compiling.compile({"model": "m"}, resume=False, screen=screen, flow=flow(compile=stopping(full, 2)))
    assert err.getvalue().count(f"run        {run_of(home).path}") == 1
    screen, _, err = paper()
    compiling.compile({"model": "m"}, resume=False, screen=screen, flow=flow())
    assert err.getvalue().count("run        ") == 1
