"""Decisions on a run at rest and on a live one: on disk before they act, whoever holds the run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agentcompile.control.client import SOCKET, NoCompilerError, send
from agentcompile.control.commands import Approve, ApproveSafe, Cancel, Pause, Rerun, Resume, Stop, Watch
from agentcompile.control.desk import deliver
from agentcompile.control.following import Follower
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.events import PROGRESS, Decided, RunFailed, Steered, TrialFinished, Watched
from agentcompile.ir.trial import Cancelled
from agentcompile.runs.session import EVENTS, Journal, RunDirectory
from agentcompile.runs.tables import state_json
from tests.unit import fake_compiler
from tests.unit.reviewed import EVENTS as WHOLE
from tests.unit.reviewed import REGIONS, point

ROOT = Path(__file__).parents[2]


@pytest.fixture
def rest(tmp_path: Path) -> RunDirectory:
    """A run that waits for review, and nobody works on it."""
    run = RunDirectory.create(tmp_path / "rest", {})
    with Journal(run) as journal:
        for event in WHOLE:
            journal.append(event)
    return run


def compiler(home: Path, run: Path, *more: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "AGENTCOMPILE_HOME": str(home), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.unit.fake_compiler", str(run), *more]
    return subprocess.Popen(
        command, env=environment, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )


def until(holds: Callable[[], bool], limit_s: float = 60) -> None:
    end = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.02)


@pytest.fixture
def live(tmp_path: Path) -> Iterator[tuple[RunDirectory, subprocess.Popen[bytes]]]:
    """A run that a compiler works on."""
    path = tmp_path / "live"
    process = compiler(tmp_path / "home", path)
    run = RunDirectory(path)
    try:
        until(lambda: (path / SOCKET).exists() and bool(run.state().under_way))
        yield run, process
    finally:
        process.kill()
        process.wait(timeout=30)


def test_a_decision_on_a_run_at_rest_is_an_event_of_it(rest: RunDirectory) -> None:
    assert deliver(rest.path, Approve(region=REGIONS["linear"])).ok
    assert isinstance(list(rest.events())[-1], Decided)
    assert rest.state().decisions[REGIONS["linear"]].word == "approve"
    assert not rest.alive()


def test_a_refusal_changes_nothing(rest: RunDirectory) -> None:
    before = (rest.path / EVENTS).read_bytes()
    reply = deliver(rest.path, Pause())
    assert (reply.ok, reply.text) == (False, "No compiler works on this run.")
    assert (rest.path / EVENTS).read_bytes() == before


def test_a_decision_on_a_run_of_a_newer_version_is_refused(rest: RunDirectory) -> None:
    (rest.path / "options.json").write_text('{"version":99,"options":{}}')
    with pytest.raises(AgentCompileError, match="newer") as caught:
        deliver(rest.path, ApproveSafe())
    assert "install" in caught.value.hint


def test_a_half_written_last_line_does_not_keep_anybody_from_deciding(rest: RunDirectory) -> None:
    file = rest.path / EVENTS
    file.write_bytes(file.read_bytes() + b'{"seq":99,"at_ms":1,"event":{"kind":"und')
    assert deliver(rest.path, ApproveSafe()).ok
    assert len(rest.state().decisions) == 2


def test_on_a_full_disk_nothing_is_decided_and_nothing_lost(rest: RunDirectory) -> None:
    size = (rest.path / EVENTS).stat().st_size
    code = f"""
import resource, signal, sys
from pathlib import Path
from agentcompile.control.commands import ApproveSafe
from agentcompile.control.desk import deliver
from agentcompile.errors import AgentCompileError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, ({size + 40}, {size + 40}))
try:
    deliver(Path({str(rest.path)!r}), ApproveSafe())
except AgentCompileError as error:
    sys.exit(int(error.exit_code))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60, check=False)
    assert done.returncode == ExitCode.ENVIRONMENT
    assert (rest.path / EVENTS).stat().st_size == size
    assert tuple(rest.events()) == WHOLE
    assert deliver(rest.path, ApproveSafe()).ok


def test_a_live_compiler_is_paused_goes_on_and_loses_nothing(
    live: tuple[RunDirectory, subprocess.Popen[bytes]],
) -> None:
    run, _ = live
    assert send(run.path, Pause()).ok
    follower = Follower(run)
    follower.new()
    assert follower.state.paused
    time.sleep(0.2)
    follower.new()
    time.sleep(10 * fake_compiler.TICK_S)
    assert follower.new() == [], "a paused session does nothing"
    assert not send(run.path, Pause()).ok
    assert send(run.path, Resume()).ok
    until(lambda: bool(follower.new()))
    assert not follower.state.paused


def test_a_screen_that_follows_a_live_run_is_noted_in_it_and_the_fastest_counts(
    live: tuple[RunDirectory, subprocess.Popen[bytes]],
) -> None:
    run, _ = live
    assert run.state().ui_hz == 0
    for ui_hz in (2.0, 10.0, 2.0):
        assert send(run.path, Watch(ui_hz=ui_hz)).ok
    assert run.state().ui_hz == 10.0
    assert [event.ui_hz for event in run.events() if isinstance(event, Watched)] == [2.0, 10.0]
    for wrong in (0.0, -1.0, 1e9):
        assert not send(run.path, Watch(ui_hz=wrong)).ok
    assert state_json(run.state())["ui_hz"] == 10.0


def test_a_screen_on_a_run_at_rest_changes_nothing(rest: RunDirectory) -> None:
    before = (rest.path / EVENTS).read_bytes()
    assert not deliver(rest.path, Watch(ui_hz=2.0)).ok
    assert (rest.path / EVENTS).read_bytes() == before


def test_a_candidate_that_is_cancelled_is_given_up_and_one_that_is_rerun_is_evaluated(
    live: tuple[RunDirectory, subprocess.Popen[bytes]],
) -> None:
    run, _ = live
    assert deliver(run.path, Cancel(candidate=fake_compiler.UNDER_WAY.id)).ok
    until(
        lambda: any(
            isinstance(trial.verdict, Cancelled) and trial.candidate.params == (("ROWS", 64),)
            for trial in run.state().trials
        )
    )
    assert "is evaluated already" in deliver(run.path, Cancel(candidate=fake_compiler.UNDER_WAY.id)).text
    assert deliver(run.path, Rerun(candidate=point("linear", 8).id)).ok
    until(lambda: run.state().asked == ())
    last = [event for event in run.events() if isinstance(event, TrialFinished)][-1]
    assert last.trial.candidate == point("linear", 8)


def test_stop_ends_the_compiler_in_good_order_and_its_run_goes_on(
    live: tuple[RunDirectory, subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    run, process = live
    begin = time.monotonic()
    assert deliver(run.path, Pause()).ok, "even a paused one"
    assert deliver(run.path, Stop()).ok
    assert process.wait(timeout=30) == 128 + signal.SIGTERM
    assert time.monotonic() - begin < 15
    # Progress may still come between being asked to stop and stopping, where the machine is busy.
    *_, stopped, last = (event for event in run.events() if not isinstance(event, PROGRESS))
    assert stopped == Steered(what="stop")
    assert isinstance(last, RunFailed)
    assert "--resume" in last.hint
    assert not (run.path / SOCKET).exists()
    assert not run.alive()
    second = compiler(tmp_path / "home", run.path, "--resume")
    try:
        until((run.path / SOCKET).exists)
        assert deliver(run.path, Stop()).ok
    finally:
        second.wait(timeout=60)
    assert run.state().resumed == 1


def test_a_compiler_that_is_killed_leaves_no_lock_and_its_socket_is_known_to_be_dead(
    live: tuple[RunDirectory, subprocess.Popen[bytes]],
) -> None:
    run, process = live
    assert run.holder() == process.pid
    assert deliver(run.path, Pause()).ok
    process.kill()
    process.wait(timeout=30)
    assert (run.path / SOCKET).exists()
    assert not run.alive()
    assert run.holder() == 0
    with pytest.raises(NoCompilerError):
        send(run.path, Resume())
    assert deliver(run.path, Rerun(candidate=point("linear", 8).id)).ok, "decisions go to its events"
    before = list(run.events())[:-1]
    assert any(isinstance(event, Steered) for event in before), "the pause was acknowledged, and is there"


def test_a_compiler_has_its_lock_for_as_long_as_it_works(tmp_path: Path) -> None:
    """An orphan would be a compiler without a live run lock: seen from outside at any time, there is none."""
    run = RunDirectory(tmp_path / "run")
    process = compiler(tmp_path / "home", run.path)
    try:
        until((run.path / SOCKET).exists)
        for _ in range(20):
            assert run.holder() == process.pid
            time.sleep(0.01)
        assert deliver(run.path, Stop()).ok
        until(lambda: not run.alive())
        assert process.wait(timeout=30) != 0
    finally:
        process.kill()
        process.wait(timeout=30)
