"""A run seen from outside on the command line: attached to, shown again, ended; and runs that cannot be read."""

from __future__ import annotations

import io
import json
import os
import signal
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from agentcompile.cli import looking, watching
from agentcompile.cli.render import Format, Screen
from agentcompile.control.client import SOCKET
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.events import Event, RunFailed
from agentcompile.ir.codec import encode
from agentcompile.ir.search_events import SearchProgress
from agentcompile.options import Options
from agentcompile.runs import session
from agentcompile.runs.outlook import budgeted
from agentcompile.runs.session import Journal, RunDirectory
from tests.unit import runs
from tests.unit.reviewed import EVENTS
from tests.unit.test_control_desk import compiler, until


def paper(format: Format = "text") -> tuple[Screen, io.StringIO, io.StringIO]:
    out, err = io.StringIO(), io.StringIO()
    return Screen(out=out, err=err, format=format), out, err


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AGENTCOMPILE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


class Clock:
    """Two seconds pass with every event."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        self.now += 2.0
        return self.now


@pytest.fixture
def recorded(home: Path) -> Callable[..., RunDirectory]:
    """A run of these events, each two seconds after the one before."""

    def make(*events: Event) -> RunDirectory:
        run = RunDirectory.create(home / "runs" / "recorded", encode(Options(model="sample")))
        with Journal(run, clock=Clock()) as journal:
            for event in events:
                journal.append(event)
        return run

    return make


FAILED = RunFailed(exit_code=6, message="no space", hint="free some")


@pytest.mark.parametrize(
    ("events", "code", "said"),
    [
        (runs.WHOLE, 0, "plan"),
        (EVENTS, 7, "waits for review"),
        ((*runs.WHOLE[:4], FAILED), 6, "no space"),
        (runs.WHOLE[:9], 6, "ended without a message"),
    ],
    ids=["finished", "review", "failed", "killed"],
)
def test_who_attaches_to_a_run_that_ended_learns_how(
    recorded: Callable[..., RunDirectory], events: tuple[Event, ...], code: int, said: str
) -> None:
    recorded(*events)
    screen, out, err = paper()
    assert watching.attach({}, "recorded", screen=screen) == code
    assert said in out.getvalue() + err.getvalue()


def test_who_attaches_sees_every_event_that_was_written(recorded: Callable[..., RunDirectory]) -> None:
    recorded(*runs.WHOLE)
    screen, out, _ = paper("events")
    assert watching.attach({}, "", screen=screen) == 0
    assert [json.loads(line)["kind"] for line in out.getvalue().splitlines()] == [event.kind for event in runs.WHOLE]


def test_a_run_is_shown_again_as_many_times_as_fast(recorded: Callable[..., RunDirectory]) -> None:
    recorded(*runs.WHOLE)
    slept: list[float] = []
    screen, _, err = paper()
    assert watching.view({}, "recorded", speed=10, screen=screen, sleep=slept.append) == 0
    assert slept == [pytest.approx(0.2)] * (len(runs.WHOLE) - 1)
    assert "capture" in err.getvalue()
    slept.clear()
    watching.view({}, "recorded", speed=0, screen=paper()[0], sleep=slept.append)
    assert slept == []
    with pytest.raises(AgentCompileError, match="--speed"):
        watching.view({}, "recorded", speed=-1, screen=paper()[0])


def test_who_attaches_follows_a_live_run_to_its_end(home: Path) -> None:
    run = RunDirectory(home / "runs" / "live")
    process = compiler(home, run.path)
    try:
        until((run.path / SOCKET).exists)
        codes: list[int] = []
        watcher, shown, _ = paper("events")
        attached = threading.Thread(target=lambda: codes.append(watching.attach({}, "live", screen=watcher)))
        attached.start()
        until(lambda: "rounds-progress" in shown.getvalue())
        screen, out, err = paper()
        assert watching.stop({}, "live", screen=screen) == 0
        assert "nothing is lost" in out.getvalue()
        assert err.getvalue() == f"next: agentcompile compile --resume --run-dir {run.path}\n"
        attached.join(timeout=30)
        assert codes == [128 + signal.SIGTERM]
        assert process.wait(timeout=30) == 128 + signal.SIGTERM
    finally:
        process.kill()
        process.wait(timeout=30)


def test_a_compiler_that_does_not_answer_is_killed_and_its_run_goes_on(home: Path) -> None:
    run = RunDirectory(home / "runs" / "stuck")
    process = compiler(home, run.path)
    try:
        until((run.path / SOCKET).exists)
        os.kill(process.pid, signal.SIGSTOP)
        screen, out, _ = paper("json")
        assert watching.stop({}, "stuck", screen=screen, patience_s=0.5) == 0
        assert json.loads(out.getvalue())["stopped"] is True
        assert process.wait(timeout=30) == -signal.SIGKILL
        assert not run.alive()
    finally:
        process.kill()
        process.wait(timeout=30)


def test_there_is_nothing_to_stop_where_no_compiler_works(recorded: Callable[..., RunDirectory]) -> None:
    recorded(*runs.WHOLE)
    with pytest.raises(AgentCompileError, match="no compiler works") as caught:
        watching.stop({}, "recorded", screen=paper()[0])
    assert caught.value.exit_code is ExitCode.ENVIRONMENT


def test_a_run_of_a_newer_version_is_named_in_the_list_and_hides_no_other(
    home: Path, recorded: Callable[..., RunDirectory]
) -> None:
    recorded(*EVENTS)
    newer = RunDirectory.create(home / "runs" / "newer", {})
    (newer.path / session.OPTIONS).write_text('{"version":99,"options":{}}')
    screen, out, _ = paper("json")
    assert looking.runs_list({}, screen=screen) == 0
    rows = {Path(row["path"]).name: row for row in json.loads(out.getvalue())}
    assert rows["recorded"]["status"] == "waiting for review"
    assert rows["newer"]["status"] == "unreadable"
    assert "install the agentcompile that wrote it" in rows["newer"]["hint"]
    for verb in (watching.attach, watching.stop):
        with pytest.raises(AgentCompileError, match="newer") as caught:
            verb({}, "newer", screen=paper()[0])
        assert "install" in caught.value.hint


def test_who_watches_an_ended_run_is_told_once_and_gets_its_exit_code(recorded: Callable[..., RunDirectory]) -> None:
    run = recorded(*runs.WHOLE)
    screen, out, _ = paper()
    assert watching.watch({}, "", once=False, screen=screen) == 0
    assert out.getvalue() == "done; 1 of 10 candidates; best step 100 µs\n"
    screen, out, _ = paper("json")
    assert watching.watch({}, "recorded", once=True, screen=screen) == 0
    (line,) = out.getvalue().splitlines()
    told = json.loads(line)
    assert (told["run"], told["status"], told["step_ns"]) == (str(run.path), "done", 100_000)


def test_more_candidates_than_the_budget_stand_beside_it() -> None:
    assert budgeted(32, 1) == "32 candidates, budget 1"
    assert (budgeted(3, 160), budgeted(3, 0)) == ("3 of 160 candidates", "3 candidates")


def test_who_watches_sees_each_change_while_the_run_goes_on(home: Path) -> None:
    run = RunDirectory.create(home / "runs" / "live", encode(Options(model="sample")))
    pace = SearchProgress(elapsed_s=100, budget_s=900, candidates=7, step_ns=3_000_000, rounds=40, disturbed=0.5)
    later = [(runs.WHOLE[7], pace), (), (runs.WHOLE[11], runs.WHOLE[14], runs.WHOLE[18])]
    screen, out, _ = paper()
    with ExitStack() as stack:
        journal = stack.enter_context(Journal(run))
        for event in runs.WHOLE[:4]:
            journal.append(event)

        def sleep(_: float) -> None:
            for event in later.pop(0):
                journal.append(event)
            if not later:
                stack.close()

        assert watching.watch({}, "live", once=False, screen=screen, sleep=sleep, clock=lambda: 0.0) == 0
    assert out.getvalue().splitlines() == [
        "running; 0 of 10 candidates",
        "running, search; 7 of 10 candidates; best step about 3 ms; 800 s left; "
        "machine busy: 50% of the rounds disturbed",
        "done; 7 of 10 candidates; best step 100 µs; machine busy: 50% of the rounds disturbed",
    ]


def test_an_interrupt_leaves_the_run_alone(home: Path) -> None:
    run = RunDirectory.create(home / "runs" / "live", encode(Options(model="sample")))

    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    screen, _, err = paper()
    with Journal(run):
        assert watching.watch({}, "live", once=False, screen=screen, sleep=interrupted) == 130
        assert run.alive()
    assert "the run goes on" in err.getvalue()
    assert "error" not in err.getvalue()
