"""A run that is stopped, interrupted and killed: nothing acknowledged is lost or repeated, nothing is left running."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from agentcompile.events import StepsTimed, TrialFinished
from agentcompile.ir.trial import Measured
from agentcompile.lockfile.files import read_lock
from agentcompile.runs.session import RunDirectory
from agentcompile.tuning.trial_database import disturbed
from tests.cpu import flows
from tests.cpu.conftest import CONTEXT
from tests.cpu.courses import Course, leg, lines

Make = Callable[[str, str], Path]


def test_a_terminated_run_ends_with_its_code_and_says_how_it_goes_on(course: Course) -> None:
    ended = course.legs["terminated"]
    assert ended.code == 128 + signal.SIGTERM, ended.err
    assert f"agentcompile compile --resume --run-dir {course.run}" in ended.err
    assert "Traceback" not in ended.err


def test_an_interrupted_run_ends_with_its_code_and_says_how_it_goes_on(course: Course) -> None:
    ended = course.legs["interrupted"]
    assert ended.code == 128 + signal.SIGINT, ended.err
    assert f"agentcompile compile --resume --run-dir {course.run}" in ended.err
    assert "Traceback" not in ended.err


def test_a_kill_is_a_kill(course: Course) -> None:
    assert course.legs["killed in the search"].code == -signal.SIGKILL
    assert course.legs["killed after a choice"].code == -signal.SIGKILL
    assert course.legs["killed before the step"].code == -signal.SIGKILL
    assert course.legs["killed between steps"].code == -signal.SIGKILL


@pytest.mark.parametrize(
    "name",
    [
        "terminated",
        "interrupted",
        "killed in the search",
        "killed after a choice",
        "killed before the step",
        "killed between steps",
        "done",
    ],
)
def test_no_process_outlives_its_run(name: str, course: Course) -> None:
    assert course.legs[name].left == ()


def test_a_run_that_was_ended_six_times_reaches_its_lock(course: Course) -> None:
    assert course.legs["done"].code == 0, course.legs["done"].err
    assert {plan.phase for plan in read_lock(course.lock).plan} == {"decode", "prefill"}


def test_no_acknowledged_trial_is_repeated(course: Course) -> None:
    def asked(event: TrialFinished) -> tuple[str, str, int]:
        m = event.trial.verdict.measurement if isinstance(event.trial.verdict, Measured) else None
        return (event.trial.candidate.id, event.trial.fidelity, m.rounds + m.dropped if m else 0)

    events = [event for event in RunDirectory.open(course.run).events() if isinstance(event, TrialFinished)]
    assert events
    # A measurement that others disturbed says nothing: it may be made again.
    trials = [asked(event) for event in events if not disturbed(event.trial)]
    assert [trial for trial, times in Counter(trials).items() if times > 1] == []


def test_no_step_that_was_timed_is_timed_again(course: Course) -> None:
    timed = [event.steps for event in RunDirectory.open(course.run).events() if isinstance(event, StepsTimed)]
    assert timed
    assert [steps for steps, times in Counter(timed).items() if times > 1] == []


def test_every_trial_of_a_killed_run_is_still_there(course: Course) -> None:
    """Sequence numbers rise by one through all the legs: no line was lost, none was written twice."""
    records = [record.seq for record, _ in RunDirectory.open(course.run).records()]
    assert records == list(range(len(records)))


@pytest.mark.parametrize(("stage", "number"), [("run-started", signal.SIGINT), ("stage-finished", signal.SIGTERM)])
def test_a_signal_while_the_model_is_read_ends_the_run_in_order(
    stage: str, number: signal.Signals, tmp_path: Path, checkpoint: Make
) -> None:
    home, run = tmp_path / "home", tmp_path / "run"
    start: list[object] = [
        "compile", checkpoint("tiny-qwen3", "fp32"), "--context", CONTEXT, "--out", tmp_path / "x", "--run-dir", run
    ]  # fmt: skip
    ended = leg(home, start, run, stage, 1, number)
    assert ended.code == 128 + number, ended.err
    assert "--resume" in ended.err
    assert "Traceback" not in ended.err
    assert ended.left == ()
    assert lines(run)[-1]["kind"] == "run-failed"


def test_a_signal_to_a_generation_ends_it_without_a_traceback(warm: Path, planted: Make) -> None:
    arguments = ("generate", planted("sample", "bf16"), "--model", flows.SAMPLE, "--prompt", "def f(")
    process = subprocess.Popen(
        flows.command(*arguments, "--threads", flows.THREADS), env=flows.environment(warm), cwd=flows.ROOT,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    first = process.stdout.read(1)  # the prompt is shown when the model is loaded
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode in (0, 130), err
    assert first == b"d", err
    assert b"Traceback" not in err + out


def test_two_compilers_do_not_share_a_run(tmp_path: Path, checkpoint: Make) -> None:
    home, run = tmp_path / "home", tmp_path / "run"
    start = ["compile", checkpoint("tiny-qwen3", "fp32"), "--context", CONTEXT, "--out", tmp_path / "x"]
    first = subprocess.Popen(
        flows.command(*start, "--run-dir", run), env=flows.environment(home), cwd=flows.ROOT,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 60
        while not lines(run) and time.monotonic() < deadline:
            time.sleep(0.02)
        flows.cli(home, "compile", "--resume", "--run-dir", run).refuses(6, str(run), "--run-dir")
    finally:
        os.kill(first.pid, signal.SIGKILL)
        first.wait(30)
