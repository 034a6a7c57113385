from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from runs import FOUND, REGION, STARTED, WHOLE, trial

from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.events import RoundsProgress, TrialFinished, TrialStarted, Warned
from agentcompile.runs import session
from agentcompile.runs.progress import fold
from agentcompile.runs.session import EVENTS, OPTIONS, Journal, RunDirectory, environment_error, new_name, runs_in
from agentcompile.system.plain_files import write_atomically


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "run", {"model": "sample"})


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_what_is_written_is_read_again(run: RunDirectory) -> None:
    with Journal(run) as journal:
        for event in WHOLE:
            assert journal.append(event)
    assert tuple(run.events()) == WHOLE
    assert run.state() == fold(WHOLE)
    assert [record.seq for record, _ in run.records()] == list(range(len(WHOLE)))
    assert run.options() == {"model": "sample"}


def test_a_reader_goes_on_where_it_stopped(run: RunDirectory) -> None:
    with Journal(run) as journal:
        journal.append(STARTED)
        (_, offset), *_ = run.records()
        journal.append(FOUND)
        assert [record.event for record, _ in run.records(offset)] == [FOUND]


def test_a_half_written_last_line_is_skipped_and_then_cut_off(run: RunDirectory) -> None:
    with Journal(run) as journal:
        journal.append(STARTED)
    whole = (run.path / EVENTS).read_bytes()
    (run.path / EVENTS).write_bytes(whole + whole[:-20])
    assert tuple(run.events()) == (STARTED,)
    with Journal(run) as journal:
        journal.append(FOUND)
    assert tuple(run.events()) == (STARTED, FOUND)
    assert [record.seq for record, _ in run.records()] == [0, 1]


def test_a_damaged_line_in_the_middle_is_an_error_that_names_the_file(run: RunDirectory) -> None:
    (run.path / EVENTS).write_bytes(b'{"seq":0}\n')
    with pytest.raises(AgentCompileError, match=r"events\.jsonl") as caught:
        list(run.events())
    assert caught.value.exit_code is ExitCode.USAGE


def test_progress_is_thinned_and_trials_are_not(run: RunDirectory) -> None:
    clock = Clock()
    with Journal(run, clock=clock) as journal:
        kept = []
        for _ in range(100):
            clock.now += 0.01
            kept.append(journal.append(RoundsProgress(region=REGION, done=1, total=2)))
        assert sum(kept) <= 21
        assert all(journal.append(TrialFinished(trial=trial(i))) for i in range(5))


def test_a_clock_that_goes_back_does_not_stop_progress(run: RunDirectory) -> None:
    clock = Clock()
    start = TrialStarted(region=REGION, candidate="c", label="l")
    with Journal(run, clock=clock) as journal:
        assert journal.append(start)
        clock.now -= 500
        assert journal.append(start)


def test_only_one_compiler_runs_in_a_folder(run: RunDirectory) -> None:
    assert not run.alive()
    with Journal(run):
        assert run.alive()
        with pytest.raises(AgentCompileError, match="another agentcompile") as caught:
            Journal(run)
    assert caught.value.exit_code is ExitCode.ENVIRONMENT
    assert not run.alive()


def test_a_killed_compiler_loses_no_acknowledged_trial_and_leaves_no_lock(run: RunDirectory) -> None:
    code = f"""
import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
from runs import *
from agentcompile.runs.session import Journal, RunDirectory
journal = Journal(RunDirectory.open(Path({str(run.path)!r})))
for rows in range(1_000_000):
    journal.append(TrialFinished(trial=trial(rows)))
    print(rows, flush=True)
"""
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    acknowledged = [int(child.stdout.readline()) for _ in range(20)]
    child.send_signal(signal.SIGKILL)
    acknowledged += [int(line) for line in child.stdout if line.endswith("\n")]
    child.wait(timeout=20)
    child.stdout.close()
    rows = [event.trial.candidate.params[0][1] for event in run.events() if isinstance(event, TrialFinished)]
    assert rows[: len(acknowledged)] == acknowledged
    assert not run.alive()
    with Journal(run) as journal:
        journal.append(STARTED)


def test_a_second_run_does_not_take_the_same_folder(run: RunDirectory) -> None:
    with pytest.raises(AgentCompileError, match="already holds a run"):
        RunDirectory.create(run.path, {})


def test_a_folder_without_a_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(AgentCompileError, match="holds no run"):
        RunDirectory.open(tmp_path)


def test_a_run_of_a_newer_version_is_refused(run: RunDirectory) -> None:
    (run.path / OPTIONS).write_text(json.dumps({"version": session.VERSION + 1, "options": {}}))
    with pytest.raises(AgentCompileError, match="newer") as caught:
        RunDirectory.open(run.path)
    assert caught.value.exit_code is ExitCode.USAGE
    assert "install" in caught.value.hint


@pytest.mark.parametrize("text", ["", "{", "[]", '{"options":{}}'])
def test_unreadable_options_are_an_error(run: RunDirectory, text: str) -> None:
    (run.path / OPTIONS).write_text(text)
    with pytest.raises(AgentCompileError, match=r"options\.json"):
        RunDirectory.open(run.path)


def test_a_full_disk_is_an_environment_error_and_what_was_written_stays(run: RunDirectory) -> None:
    code = f"""
import resource, signal, sys; sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
from runs import *
from agentcompile.errors import AgentCompileError
from agentcompile.runs.session import Journal, RunDirectory
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
journal = Journal(RunDirectory.open(Path({str(run.path)!r})))
try:
    for rows in range(1000):
        journal.append(TrialFinished(trial=trial(rows)))
except AgentCompileError as error:
    sys.exit(int(error.exit_code))
"""
    child = subprocess.run([sys.executable, "-c", code], timeout=60, check=False)
    assert child.returncode == ExitCode.ENVIRONMENT
    assert (run.path / EVENTS).read_bytes().endswith(b"\n")
    assert len(tuple(run.events())) > 1


def test_an_operating_system_error_says_what_to_do() -> None:
    import errno

    for number, words in ((errno.ENOSPC, "free some space"), (errno.EROFS, "read-only"), (errno.EACCES, "writable")):
        error = environment_error(OSError(number, "x"), Path("/somewhere/run"))
        assert error.exit_code is ExitCode.ENVIRONMENT
        assert words in error.hint
        assert "/somewhere/run" in error.message


def test_a_place_that_cannot_be_written_is_an_environment_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(AgentCompileError) as caught:
        RunDirectory.create(tmp_path / "file" / "run", {})
    assert caught.value.exit_code is ExitCode.ENVIRONMENT


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_read_only_folder_is_an_environment_error(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(AgentCompileError) as caught:
        RunDirectory.create(tmp_path / "run", {})
    assert caught.value.exit_code is ExitCode.ENVIRONMENT


def test_a_hostile_text_on_disk_is_clean_when_it_is_read(run: RunDirectory) -> None:
    with Journal(run) as journal:
        journal.append(Warned(text="x"))
    file = run.path / EVENTS
    file.write_bytes(file.read_bytes().replace(b'"text":"x"', b'"text":"a\\u001b[31mb\\u202e"'))
    assert tuple(run.events()) == (Warned(text="ab"),)


def test_new_runs_have_names_of_their_own_and_are_listed_oldest_first(tmp_path: Path) -> None:
    clock = Clock()
    first = RunDirectory.create(new_name(tmp_path, "models/My model!", clock=clock), {})
    second = RunDirectory.create(new_name(tmp_path, "models/My model!", clock=clock), {})
    clock.now += 60
    third = RunDirectory.create(new_name(tmp_path, "preset:qwen3-0.6b", clock=clock), {})
    assert first.path.name.endswith("My-model")
    assert runs_in(tmp_path) == (first.path, second.path, third.path)
    assert runs_in(tmp_path / "none") == ()


def test_a_crash_report_lies_in_the_run(run: RunDirectory) -> None:
    path = run.crash_report("Traceback\n  line \x1b[31m")
    assert path is not None
    assert path.read_text() == "Traceback\n  line "


def test_records_carry_the_time_of_their_event(run: RunDirectory) -> None:
    with Journal(run) as journal:
        journal.append(STARTED)
    ((record, _),) = run.records()
    assert abs(record.at_ms / 1000 - time.time()) < 60


def test_a_written_file_follows_links_and_replaces_no_pipe_or_directory(tmp_path: Path) -> None:
    target, link, pipe = tmp_path / "target", tmp_path / "link", tmp_path / "pipe"
    link.symlink_to(target)
    write_atomically(link, b"new")
    assert (link.is_symlink(), target.read_bytes()) == (True, b"new")
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_atomically(pipe, b"through")
    assert os.read(reader, 100) == b"through"
    os.close(reader)
    assert pipe.is_fifo()
    with pytest.raises(IsADirectoryError) as caught:
        write_atomically(tmp_path, b"")
    assert session.environment_error(caught.value, tmp_path).exit_code is ExitCode.USAGE
