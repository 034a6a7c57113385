"""A disk that fills up under a compiler that the app began: it ends, nothing acknowledged is lost, the app says why."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path

import pytest
from agentcompile.tui.compiler import BEGINS, FULL_BYTES, why_gone
from terminals import Terminal, app

from agentcompile.runs.session import EVENTS, RunDirectory
from tests.cpu.conftest import SAMPLE_CONTEXT
from tests.cpu.test_faults_disk import mounted
from tests.models import captures

LIMIT = 60_000
"""Bytes: the regions of the sample checkpoint fit, their spaces do not."""


def begun(model: Path, tmp_path: Path, run: Path, context: int = 64) -> tuple[list[str], dict[str, str]]:
    """The app that begins a compile in `run`, and what it has in its environment."""
    asked = ["--run-dir", str(run), f"--context={context}", "--budget=4", "--out", str(tmp_path / "x.lock.toml")]
    return app(str(model), *asked), {"AGENTCOMPILE_HOME": str(tmp_path / "home")}


def ends_in_order(run: RunDirectory, terminal: Terminal, least: int) -> None:
    """The compiler is gone with all that it acknowledged; the app lives, says so, and leaves the terminal as it was."""
    end = time.monotonic() + 60
    while run.alive() and time.monotonic() < end:
        terminal.read()
    assert not run.alive()
    data = (run.path / EVENTS).read_bytes()
    assert data.endswith(b"\n"), "a half-written line was taken back"
    assert len(list(run.events())) == data.count(b"\n") >= least
    terminal.press("5", pause_s=1.0)
    terminal.press("q")
    assert terminal.end() == 0
    assert terminal.restored


def test_a_limit_on_files_ends_the_compiler_and_the_app_says_why(repository: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    command, env = begun(repository / "bench" / "models" / "sample", tmp_path, run)
    limited = ["prlimit", f"--fsize={LIMIT}:{resource.RLIM_INFINITY}", *command]
    with Terminal(limited, columns=120, rows=36, env=env) as terminal:
        terminal.until("File too large", 60)
        ends_in_order(RunDirectory(run), terminal, 3)


def test_a_full_disk_ends_the_compiler_and_the_app_says_so(repository: Path, tmp_path: Path) -> None:
    with mounted(tmp_path / "runs", f"size={LIMIT}") as runs:
        model = repository / "bench" / "models" / "sample"
        captures.give(tmp_path / "home", model, SAMPLE_CONTEXT)  # what comes after a capture fills the disk
        command, env = begun(model, tmp_path, runs / "run", SAMPLE_CONTEXT)
        with Terminal(command, columns=120, rows=36, env=env) as terminal:
            terminal.until("No space left on device", 60)
            ends_in_order(RunDirectory(runs / "run"), terminal, 20)


def test_why_a_compiler_is_gone_is_what_the_last_one_said(tmp_path: Path) -> None:
    room = os.statvfs(tmp_path)
    assert room.f_bavail * room.f_frsize > FULL_BYTES, "tests need room"
    said = [f"{BEGINS}compile a", "error: the first", "hint: of no use"]
    assert why_gone(tmp_path, said) == "error: the first hint: of no use"
    assert why_gone(tmp_path, [*said, f"{BEGINS}compile --resume", "a word"]) == ""
    assert why_gone(tmp_path, []) == ""
    assert "No such file" in why_gone(tmp_path / "gone", [])


@pytest.mark.parametrize("left", [0, FULL_BYTES // 2])
def test_a_disk_without_room_is_why_a_compiler_is_gone_that_said_nothing(tmp_path: Path, left: int) -> None:
    with mounted(tmp_path / "small", "size=1m") as small:
        assert why_gone(small, []) == ""
        (small / "fill").write_bytes(b"x" * ((1 << 20) - left))
        assert "free some space" in why_gone(small, [])
