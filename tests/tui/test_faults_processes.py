"""The app and the compiler as two processes: each may die, be stopped or be left; nothing acknowledged is lost."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from agentcompile.tui.app import HZ
from agentcompile.tui.scene import Call
from recorded import run_directory, session
from terminals import Terminal, app

from agentcompile.events import Watched
from agentcompile.runs.session import RunDirectory
from tests.unit.test_control_desk import compiler

COMPILER = """
import sys, time
from pathlib import Path
from agentcompile.events import Warned
from agentcompile.runs.session import Journal, RunDirectory
with Journal(RunDirectory(Path(sys.argv[1]))) as journal:
    while True:
        journal.append(Warned(text="still at work"))
        time.sleep(0.05)
"""
"""What holds a run as a compiler does, without PyTorch."""


Held = tuple[Path, subprocess.Popen[bytes]]


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Held]:
    """A run in the middle of its search, with something that works on it."""
    path = run_directory(tmp_path / "run", "finished", upto=150)
    process = subprocess.Popen([sys.executable, "-c", COMPILER, str(path)], start_new_session=True)
    run = RunDirectory(path)
    while not run.alive():
        time.sleep(0.05)
    yield path, process
    process.kill()
    process.wait()


def waited(what: str, holds: object, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not holds():  # type: ignore[operator]
        assert time.monotonic() < end, f"{what}: not within {seconds:g} s"
        time.sleep(0.05)


def test_a_compiler_that_dies_is_noticed_and_can_be_started_again(held: Held) -> None:
    path, process = held
    one = session(path)
    feed = one.feed
    assert feed is not None
    waited("it lives", lambda: one.poll() and feed.caught_up and one.scene.life == "live")
    trials = one.scene.state.counts.total
    process.kill()
    process.wait()
    waited("its death is noticed", lambda: (one.poll(), one.scene.life == "lost")[1])
    assert one.scene.state.counts.total == trials
    assert one.key("space") == (Call(what="resume"),)


def test_the_death_of_the_compiler_is_said_on_the_screen(held: Held) -> None:
    path, process = held
    with Terminal(app(str(path))) as terminal:
        terminal.until("running")
        process.kill()
        process.wait()
        terminal.until("interrupted")
        terminal.until("space starts it again")
        terminal.press("q")
        assert terminal.end() == 0


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGHUP, None], ids=["killed", "hung up", "left"])
def test_the_compiler_goes_on_when_the_app_ends(held: Held, how: signal.Signals) -> None:
    path, process = held
    with Terminal(app(str(path))) as terminal:
        terminal.until("running")
        if how is None:
            terminal.press("q")
        else:
            terminal.signal(how)
        terminal.end()
    size = (path / "events.jsonl").stat().st_size
    assert process.poll() is None
    waited("it goes on", lambda: (path / "events.jsonl").stat().st_size > size)
    with Terminal(app(str(path))) as terminal:  # and it can be attached to again
        terminal.until("running")
        terminal.press("q")
        assert terminal.end() == 0


@pytest.mark.alone
def test_a_compile_is_begun_left_found_again_and_stopped_by_keys_alone(tmp_path: Path, repository: Path) -> None:
    model, run = repository / "bench" / "models" / "sample", tmp_path / "run"
    home = {"AGENTCOMPILE_HOME": str(tmp_path / "home")}
    asked = ["--run-dir", str(run), "--context=64", "--budget=4", "--out", str(tmp_path / "x.lock.toml")]
    with Terminal(app(str(model), *asked), env=home) as terminal:
        terminal.until("running")
        waited("the compiler holds the run", RunDirectory(run).alive, 90)
        terminal.signal(signal.SIGKILL)
        terminal.end()
    assert RunDirectory(run).alive()
    waited("it says what it does", lambda: RunDirectory(run).state().status == "running", 90)
    with Terminal(app(str(run)), env=home) as terminal:
        terminal.until("running")
        begin = time.monotonic()
        terminal.press("Q", pause_s=0.5)
        terminal.until("Stop the run")
        terminal.press("\r", pause_s=0)
        assert terminal.end() == 0
        assert f"attach: agentcompile tui {run}" in terminal.text
        assert f"resume: agentcompile compile --resume --run-dir {run}" in terminal.text
        assert time.monotonic() - begin < 5  # a second on a machine that is not busy; the bench says how long
        assert terminal.restored
    waited("the compiler ends", lambda: not RunDirectory(run).alive(), 30)
    assert RunDirectory(run).state().status in ("failed", "running")


def test_a_run_knows_how_often_a_screen_that_follows_it_is_drawn(tmp_path: Path) -> None:
    path, home = tmp_path / "run", tmp_path / "home"
    process = compiler(home, path)
    try:
        waited("it works", lambda: RunDirectory(path).alive() and bool(RunDirectory(path).state().under_way), 60)
        assert RunDirectory(path).state().ui_hz == 0
        with Terminal(app(str(path))) as terminal:
            terminal.until("running")
            waited("it is told", lambda: (terminal.read(), RunDirectory(path).state().ui_hz == HZ)[1])
            terminal.press("q")
            assert terminal.end() == 0
        with Terminal(app(str(path))) as terminal:  # it is known already
            terminal.until("running")
            terminal.press("5q", pause_s=1.0)
            assert terminal.end() == 0
    finally:
        process.kill()
        process.wait()
    assert [event.ui_hz for event in RunDirectory(path).events() if isinstance(event, Watched)] == [HZ]


def test_a_compile_that_cannot_begin_says_why(tmp_path: Path) -> None:
    model = tmp_path / "broken"
    model.mkdir()
    (model / "config.json").write_text("{}")
    run = tmp_path / "run"
    with Terminal(app(str(model), "--run-dir", str(run)), columns=120, rows=36) as terminal:
        terminal.until("failed", 90)
        terminal.press("5", pause_s=1.0)
        terminal.press("q")
        assert terminal.end() == 0
    assert RunDirectory(run).path.is_dir()
    assert "broken" in terminal.text
