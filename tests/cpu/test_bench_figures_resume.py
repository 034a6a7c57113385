"""A run of the figures that is killed, stopped or out of time, and goes on: nothing timed is lost or timed twice."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from agentcompile.bench.harness.partial import OutOfTime, Partial, Progress, read_partial
from agentcompile.bench.harness.trial import Outcome

from tests.cpu import flows
from tests.cpu.trials import ARMS, MEETING, PROCESSES, ROUNDS, Commands, setup, trial


def terminated(words: str, command: list[str], environment: dict[str, str]) -> tuple[int, str]:
    """Run until a line with these words is said, then send SIGTERM; the exit code and all that was said."""
    process = subprocess.Popen(
        command, env=environment, cwd=flows.ROOT, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert process.stdout is not None
    said = []
    for heard in process.stdout:
        said.append(heard)
        if words in heard:
            process.terminate()
            break
    rest, _ = process.communicate(timeout=60)
    return process.returncode, "".join([*said, rest])


IMPATIENT = """
import sys
from functools import partial
from agentcompile.bench.figures.recipe import run
from agentcompile.bench.harness import course
from agentcompile.cli.exits import guarded
from tests.cpu.trials import Commands
course.Setup = partial(course.Setup, command=Commands({'hf-eager': 'import time; time.sleep(1)'}))
sys.exit(guarded(lambda: run(sys.argv[1:], calm=lambda _: None)))
"""
"""The recipe as a program that does not wait for a machine without other work, and whose arm is made up: it takes its
time, so that a signal finds it at work, and imports no PyTorch. Real arms go on in test_suite_run.py."""


def only(cache: Path) -> Partial:
    (path,) = cache.glob("figures-*.json")
    return read_partial(path)


def test_a_killed_trial_keeps_its_rounds_and_adds_the_missing_ones_with_fresh_processes(tmp_path: Path) -> None:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "tests.cpu.trials", str(tmp_path), *words]
        return subprocess.run(command, cwd=flows.ROOT, capture_output=True, text=True, timeout=120, check=False)

    killed = run("--killed-after", "process 2 round 1")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    before = only(tmp_path).models["x"].outcome
    assert len(before.rounds) == ROUNDS + 1
    ended = run("--resume")
    assert ended.returncode == 0, ended.stderr
    after = only(tmp_path).models["x"].outcome
    assert after.rounds[: len(before.rounds)] == before.rounds
    assert [one.process for one in after.rounds] == [process for process in range(PROCESSES) for _ in range(ROUNDS)]
    assert ended.stdout.count("tokens/s") == len(after.rounds) - len(before.rounds)
    assert only(tmp_path).resumed == 1
    assert after.reference == before.reference
    assert all(after.load_s[arm][:-1] == before.load_s[arm] for arm in ARMS)
    assert all(after.facts[arm]["pid"] != before.facts[arm]["pid"] for arm in ARMS)


def stop_after(rounds: int, outcome: Outcome) -> Callable[[], None]:
    def pause() -> None:
        if len(outcome.rounds) >= rounds:
            raise OutOfTime

    return pause


def test_a_trial_out_of_time_leaves_no_process_and_goes_on(tmp_path: Path) -> None:
    commands, outcome = Commands(), Outcome()
    with pytest.raises(OutOfTime):
        trial(setup(tmp_path, commands, pause=stop_after(1, outcome)), outcome)
    (timed,) = outcome.rounds
    assert not Path(f"/proc/{outcome.facts['fast']['pid']}").exists()
    trial(setup(tmp_path, commands), outcome)
    assert outcome.rounds[0] is timed
    assert len(outcome.rounds) == ROUNDS * PROCESSES
    # The reference once; both arms for the round that was made, for those that were missing, and for the second time.
    assert commands.started == ["fp32", *ARMS, *ARMS, *ARMS]
    assert dict.fromkeys(ARMS, "") == outcome.agreement


def test_where_a_trial_is_cut_does_not_change_the_order_of_later_visits(tmp_path: Path) -> None:
    seen = tmp_path / "seen"

    def orders(*cuts: int) -> list[str]:
        seen.write_text("")
        acts = {name: f"open({str(seen)!r}, 'a').write({name!r} + ' ')" for name in ARMS}
        outcome = Outcome()
        for cut in cuts:
            with pytest.raises(OutOfTime):
                trial(setup(tmp_path, Commands(acts), pause=stop_after(cut, outcome)), outcome)
        trial(setup(tmp_path, Commands(acts)), outcome)
        # A visit asks several times, and again when others disturbed it.
        return [name for name, _ in itertools.groupby(seen.read_text().split())]

    assert orders() == orders(1, 2, 4, 5)


def test_a_finished_trial_starts_nothing(tmp_path: Path) -> None:
    outcome = trial(setup(tmp_path, Commands()), Outcome())
    commands = Commands()
    assert trial(setup(tmp_path, commands), outcome).rounds == outcome.rounds
    assert commands.started == []


def test_an_arm_that_failed_keeps_its_reason_unless_it_is_to_be_tried_again(tmp_path: Path) -> None:
    broken = Commands({"slow": "raise RuntimeError('out of ideas')"})
    progress = Progress()
    with pytest.raises(OutOfTime):
        trial(setup(tmp_path, broken, pause=stop_after(1, progress.outcome)), progress.outcome)
    assert "out of ideas" in progress.outcome.reasons["slow"]
    mended = Commands()
    with pytest.raises(OutOfTime):
        trial(setup(tmp_path, mended, pause=stop_after(2, progress.outcome)), progress.outcome)
    assert mended.started == ["fast"]
    assert "out of ideas" in progress.outcome.reasons["slow"]
    progress.forget_failures(ROUNDS * PROCESSES)
    trial(setup(tmp_path, mended), progress.outcome)
    assert not progress.outcome.reasons
    assert [set(one.visits) for one in progress.outcome.rounds] == [{"fast"}] * 2 + [set(ARMS)] * 4


def test_the_recipe_goes_on_where_its_time_ended_and_where_a_signal_came(tmp_path: Path) -> None:
    cache, out = tmp_path / "cache", tmp_path / "out.json"
    asked = [
        *("--model", "sample", "--arms", "hf-eager", "--rounds", "2", "--processes", "1", "--threads", "1"),
        *("--cache", str(cache), "--out", str(out)),
    ]
    command = [sys.executable, "-c", IMPATIENT, *asked]
    environment = flows.environment(tmp_path / "home")

    def end(*more: str, program: Sequence[str] = ("-c", IMPATIENT)) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, *program, *asked, *more]
        return subprocess.run(
            words, env=environment, cwd=flows.ROOT, capture_output=True, text=True, timeout=300, check=False
        )

    stopped = end("--minutes", "1e-6")
    assert stopped.returncode == 7, stopped.stderr
    assert "0 of 2 rounds" in stopped.stderr
    assert stopped.stderr.rstrip().endswith("--resume")
    imported = only(cache).imported
    assert imported is not None

    refused = end("--resume", "--seed", "5", program=("-m", "agentcompile.bench.figures"))
    assert refused.returncode == 2, refused.stderr
    assert "seed: 0 there, 5 here" in refused.stderr

    code, said = terminated("round 1:", [*command, "--resume"], environment)
    assert code == 128 + signal.SIGTERM, said
    assert "--resume" in said.splitlines()[-1], said
    assert "Traceback" not in said
    outcome = only(cache).models["sample"].outcome
    assert len(outcome.rounds) == 1

    done = end("--resume", "--minutes", "30")
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    assert found["resumed"] == 2
    assert found["import"]["samples_ms"] == list(imported.samples_ms)
    first, second = found["models"]["sample"]["rounds"]
    visits = outcome.rounds[0].visits["hf-eager"]
    assert [visit["token_s"] for visit in first["visits"]["hf-eager"]] == [visit.token_s for visit in visits]
    assert first["read_bytes_per_s"] == outcome.rounds[0].read_bytes_per_s
    assert second["visits"] != first["visits"]
    assert len(found["models"]["sample"]["arms"]["hf-eager"]["load_s"]) == 2
    assert not list(cache.glob("figures-*"))


def test_arms_that_have_compiled_load_side_by_side_on_a_gpu(tmp_path: Path) -> None:
    folder = tmp_path / "begun"
    folder.mkdir()
    # fp32 and the first process come one by one; of the second process none is through before all have begun.
    commands = Commands(load=MEETING.format(folder=str(folder), waiting=(4,)))
    said: list[str] = []
    found = trial(setup(tmp_path, commands, say=said.append, device="cuda:0"), Outcome())
    assert len(found.rounds) == PROCESSES * ROUNDS
    assert not found.reasons
    assert {name: len(found.load_s[name]) for name in ARMS} == dict.fromkeys(ARMS, 1)
    assert sum("beside the others" in line for line in said) == len(ARMS)


def test_arms_that_fail_side_by_side_get_their_reasons(tmp_path: Path) -> None:
    # Both loads of the second process fail.
    folder = tmp_path / "begun"
    folder.mkdir()
    load = MEETING.format(folder=str(folder), waiting=()) + "\n    if len(list(folder.iterdir())) > 3: sys.exit(3)"
    found = trial(setup(tmp_path, Commands(load=load), device="cuda:0"), Outcome())
    assert set(found.reasons) == set(ARMS)
    assert all("exit code 3" in reason for reason in found.reasons.values())
    assert sum(bool(one.visits) for one in found.rounds) == ROUNDS
