from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from reviewed import EVENTS as REVIEWED
from runs import TARGET, WHOLE

from agentcompile.cli import compiling, looking, running
from agentcompile.cli import main as cli
from agentcompile.cli.exits import Stopped, Terminated, guarded
from agentcompile.cli.flow import Flow
from agentcompile.cli.render import Format, Screen
from agentcompile.cli.reviewing import undecided
from agentcompile.control.steering import Steering
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.events import DriftFound, Emit, RunFailed, StageStarted
from agentcompile.ir.trial import Trial
from agentcompile.options import Options
from agentcompile.replay.load import Replayed
from agentcompile.runs import session
from agentcompile.runs.folders import resuming
from agentcompile.runs.progress import fold


def paper(format: Format = "text") -> tuple[Screen, io.StringIO, io.StringIO]:
    out, err = io.StringIO(), io.StringIO()
    return Screen(out=out, err=err, format=format), out, err


def compiles(options: Options, emit: Emit, past: Sequence[Trial], steering: Steering) -> None:
    """A flow that tells a whole run."""
    for event in WHOLE:
        emit(event)


def flow(**functions: object) -> Flow:
    made = Flow()
    vars(made).update({"compile": compiles, "target": lambda options: TARGET, **functions})
    return made


def run_of(home: Path) -> session.RunDirectory:
    (path,) = session.runs_in(home / "runs")
    return session.RunDirectory.open(path)


@pytest.fixture
def home() -> Path:
    return Path(os.environ["AGENTCOMPILE_HOME"])


def test_compile_leaves_a_run_that_can_be_read_again_and_shows_the_regions(home: Path) -> None:
    screen, out, err = paper()
    assert compiling.compile({"model": "sample"}, resume=False, screen=screen, flow=flow()) == 0
    assert tuple(run_of(home).events()) == WHOLE
    assert "linear/rows(ROWS=4)" in out.getvalue()
    assert "wrote x.lock.toml" in err.getvalue()


def test_compile_in_json_says_where_its_run_lies(home: Path) -> None:
    screen, out, _ = paper("json")
    compiling.compile({"model": "sample"}, resume=False, screen=screen, flow=flow())
    data = json.loads(out.getvalue())
    assert (data["run"], data["status"]) == (str(run_of(home).path), "done")


def test_a_compile_that_waits_for_review_is_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    def reviewed() -> int:
        raise undecided(fold(REVIEWED), Path("RUN"))

    assert guarded(reviewed) == 7
    err = capsys.readouterr().err
    assert err.startswith("review: RUN: ")
    assert "hint: look with `agentcompile decide RUN`" in err
    assert "error" not in err


def test_compile_without_a_model_says_how(home: Path) -> None:
    with pytest.raises(AgentCompileError, match="no model") as caught:
        compiling.compile({}, resume=False, screen=paper()[0], flow=flow())
    assert caught.value.exit_code is ExitCode.USAGE


def stopping(error: BaseException, after: int = 10) -> object:
    def broken(options: Options, emit: Emit, past: Sequence[Trial], steering: Steering) -> None:
        for event in WHOLE[:after]:
            emit(event)
        raise error

    return broken


def test_an_interrupted_run_says_how_to_go_on_and_resuming_it_repeats_no_trial(home: Path) -> None:
    with pytest.raises(Stopped) as caught:
        compiling.compile(
            {"model": "m"}, resume=False, screen=paper()[0], flow=flow(compile=stopping(KeyboardInterrupt()))
        )
    run = run_of(home)
    assert caught.value.number == signal.SIGINT
    assert f"agentcompile compile --resume --run-dir {run.path}" in caught.value.hint
    assert run.state().failure == RunFailed(exit_code=130, message="stopped by a signal", hint=caught.value.hint)

    seen: list[Sequence[Trial]] = []

    def resumes(options: Options, emit: Emit, past: Sequence[Trial], steering: Steering) -> None:
        seen.append(past)
        compiles(options, emit, past, steering)

    assert compiling.compile({}, resume=True, screen=paper()[0], flow=flow(compile=resumes)) == 0
    assert [len(past) for past in seen] == [1]
    assert run.state().status == "finished"
    assert run.state().counts.total == 2, "the trial that was told again counts once"


def test_resuming_takes_the_options_of_the_run(home: Path) -> None:
    stops = flow(compile=stopping(KeyboardInterrupt()))
    with pytest.raises(Stopped):
        compiling.compile({"model": "m", "budget": "7"}, resume=False, screen=paper()[0], flow=stops)
    seen: list[Options] = []
    compiling.compile({}, resume=True, screen=paper()[0], flow=flow(compile=lambda o, e, p, s: seen.append(o)))
    assert (seen[0].budget, Path(seen[0].model).name) == (7, "m")


def test_resuming_with_other_settings_is_refused(home: Path) -> None:
    with pytest.raises(Stopped):
        compiling.compile(
            {"model": "m"}, resume=False, screen=paper()[0], flow=flow(compile=stopping(KeyboardInterrupt()))
        )
    with pytest.raises(AgentCompileError, match="--budget"):
        compiling.compile({"budget": "3"}, resume=True, screen=paper()[0], flow=flow())


def test_there_is_nothing_to_resume_after_a_finished_run(home: Path) -> None:
    compiling.compile({"model": "m"}, resume=False, screen=paper()[0], flow=flow())
    with pytest.raises(AgentCompileError, match="no unfinished run"):
        compiling.compile({}, resume=True, screen=paper()[0], flow=flow())


def test_an_error_that_the_user_can_fix_is_the_runs_last_event(home: Path) -> None:
    error = AgentCompileError("weights.safetensors: cut off", exit_code=ExitCode.USAGE, hint="fetch it again")
    with pytest.raises(AgentCompileError, match="cut off"):
        compiling.compile({"model": "m"}, resume=False, screen=paper()[0], flow=flow(compile=stopping(error)))
    failure = run_of(home).state().failure
    assert failure is not None
    assert (failure.exit_code, failure.hint) == (2, "fetch it again")


def test_a_fault_of_ours_leaves_a_report_in_the_run_and_no_traceback(home: Path) -> None:
    with pytest.raises(AgentCompileError, match="internal error: ZeroDivisionError") as caught:
        compiling.compile(
            {"model": "m"}, resume=False, screen=paper()[0], flow=flow(compile=stopping(ZeroDivisionError("x")))
        )
    assert caught.value.exit_code is ExitCode.INTERNAL
    assert "ZeroDivisionError" in (run_of(home).path / session.CRASH).read_text()


@pytest.mark.parametrize("error", [ZeroDivisionError, AgentCompileError])
def test_however_a_run_ends_the_key_of_its_adviser_is_in_no_file_of_it(
    home: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    key = "sk-0123456789-secret"
    monkeypatch.setenv("A_KEY", key)
    flags = {"model": "m", "advisor": "openai:x@http://127.0.0.1:1/v1", "advisor_key": "A_KEY"}
    failing = flow(compile=stopping(error(f"header 'Bearer {key}' is not allowed")))
    screen, out, err = paper()
    with pytest.raises(AgentCompileError) as caught:
        compiling.compile(flags, resume=False, screen=screen, flow=failing)
    files = [path for path in home.rglob("*") if path.is_file()]
    assert any("Bearer [redacted]" in path.read_text() for path in files), "what happened is there"
    assert [path for path in files if key in path.read_text()] == []
    assert key not in out.getvalue() + err.getvalue()
    assert key not in caught.value.message + caught.value.hint


def test_inspect_shows_regions_and_makes_no_run(home: Path) -> None:
    def inspects(options: Options, emit: Emit) -> None:
        for event in WHOLE[:6]:
            emit(event)

    screen, out, _ = paper()
    assert compiling.inspect({"model": "m"}, screen=screen, flow=flow(inspect=inspects)) == 0
    assert out.getvalue().split()[-1] == "40", "the candidates of its one region"
    assert session.runs_in(home / "runs") == ()


DRIFTED = DriftFound(field="target.device", locked="a", here="b", grade="remeasure", remedy="compile again")


def test_replay_counts_what_drifted() -> None:
    def replays(lock: Path, options: Options, emit: Emit, locked: bool, check: bool) -> Replayed:
        emit(DRIFTED)
        return Replayed(model="m", kernels=2)

    screen, out, err = paper()
    assert (
        running.replay({}, Path("x.lock.toml"), locked=False, check=True, screen=screen, flow=flow(replay=replays)) == 0
    )
    assert "x.lock.toml holds here" in out.getvalue()
    assert "1 drifted field" in out.getvalue()
    assert "drift: target.device: locked a, here b" in err.getvalue()


def test_verify_takes_a_prompt_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "prompts").write_text("one\n\ntwo\n")
    seen: list[str] = []

    def verifies(lock: Path, options: Options, prompts: Sequence[str], emit: Emit) -> Mapping[str, float | str]:
        seen.extend(prompts)
        return {"mean KL": 0.00125}

    screen, out, _ = paper()
    assert running.verify({}, Path("x"), tmp_path / "prompts", screen=screen, flow=flow(verify=verifies)) == 0
    assert seen == ["one", "two"]
    assert "0.00125" in out.getvalue()
    (tmp_path / "prompts").write_text("\n")
    with pytest.raises(AgentCompileError, match="holds no prompt"):
        running.verify({}, Path("x"), tmp_path / "prompts", screen=screen, flow=flow(verify=verifies))
    seen.clear()
    monkeypatch.setattr("sys.stdin", io.StringIO("three\n\nfour\n"))
    assert running.verify({}, Path("x"), Path("-"), screen=screen, flow=flow(verify=verifies)) == 0
    assert seen == ["three", "four"]
    with pytest.raises(AgentCompileError, match="stdin: holds no prompt"):
        running.verify({}, Path("x"), Path("-"), screen=screen, flow=flow(verify=verifies))


def test_commands_that_go_on_with_a_run_are_quoted() -> None:
    assert resuming("/a b/run") == "agentcompile compile --resume --run-dir '/a b/run'"
    assert resuming(Path("/a"), "refine") == "agentcompile refine --resume --run-dir /a"


def test_explain_lists_every_trial_of_a_region(home: Path) -> None:
    compiling.compile({"model": "m"}, resume=False, screen=paper()[0], flow=flow())
    screen, out, _ = paper()
    assert looking.explain({}, "linear", screen=screen) == 0
    assert "runs linear/rows(ROWS=4): 1.65×" in out.getvalue()
    assert "measured (confirm)" in out.getvalue()
    with pytest.raises(AgentCompileError, match="no region is called 'nonsense'") as caught:
        looking.explain({}, "nonsense", screen=screen)
    assert "linear@aaaaaa" in caught.value.hint


def test_runs_are_listed_with_how_they_ended(home: Path) -> None:
    compiling.compile({"model": "m"}, resume=False, screen=paper()[0], flow=flow())
    run = session.RunDirectory.create(home / "runs" / "29990101-killed", {})
    with session.Journal(run) as journal:
        journal.append(WHOLE[0])
        journal.append(StageStarted(stage="capture"))
    screen, out, _ = paper("json")
    assert looking.runs_list({}, screen=screen) == 0
    assert [row["status"] for row in json.loads(out.getvalue())] == ["done", "interrupted"]
    screen, out, _ = paper()
    assert looking.runs_status({}, "29990101-killed", screen=screen) == 0
    assert "interrupted, capture, 0 of 10 candidates, 0 trials" in out.getvalue()


def test_a_run_is_deleted_when_it_is_confirmed_and_nobody_works_on_it(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [session.RunDirectory.create(home / "runs" / f"2999010{at}-m", {}) for at in range(3)]
    screen, out, _ = paper("json")
    with pytest.raises(AgentCompileError, match="nothing was deleted") as refused:
        looking.runs_remove({}, ["29990100-m"], sure=False, screen=screen)
    assert "--yes" in refused.value.hint
    with session.Journal(runs[0]), pytest.raises(AgentCompileError, match=f"process {os.getpid()} works on this run"):
        looking.runs_remove({}, ["29990101-m", "29990100-m"], sure=True, screen=screen)
    with pytest.raises(AgentCompileError, match="holds no run"):
        looking.runs_remove({}, [str(home)], sure=True, screen=screen)
    assert all(run.path.is_dir() for run in runs), "one that may not go keeps all"
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    assert looking.runs_remove({}, ["latest"], sure=False, screen=paper()[0], ask=lambda _: "n") == 0
    assert runs[2].path.is_dir()
    assert looking.runs_remove({}, ["latest"], sure=False, screen=paper()[0], ask=lambda _: "y") == 0
    assert looking.runs_remove({}, ["29990100-m"], sure=True, screen=screen) == 0
    assert json.loads(out.getvalue())["deleted"] == [str(runs[0].path)]
    assert [run.path.is_dir() for run in runs] == [False, True, False]


def test_config_show_says_where_each_value_comes_from() -> None:
    screen, out, _ = paper("json")
    assert looking.config_show({"budget": "3"}, screen=screen) == 0
    data = json.loads(out.getvalue())
    assert data["budget"] == {"value": 3, "from": "flag"}
    assert data["context"]["from"] == "default"


def test_the_cache_is_listed_and_pruned(home: Path) -> None:
    options = Options(home=str(home))
    options.store.mkdir(parents=True)
    (options.store / "old").write_bytes(b"x" * 2_000_000)
    screen, out, _ = paper()
    assert looking.cache_list({}, screen=screen) == 0
    assert "2 MB" in out.getvalue()
    assert looking.cache_prune({}, keep_mb=0, screen=screen) == 0
    assert "freed 2 MB" in out.getvalue()


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (AgentCompileError("x", exit_code=ExitCode.DRIFT), 3),
        (AgentCompileError("x", exit_code=ExitCode.ENVIRONMENT), 6),
        (KeyboardInterrupt(), 130),
        (Terminated(signal.SIGTERM), 143),
        (Stopped(signal.SIGTERM, "resume"), 143),
        (ValueError("x"), 1),
    ],
)
def test_every_exception_has_its_exit_code(error: BaseException, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    def raises() -> int:
        raise error

    assert guarded(raises) == code
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--version"], 0, "agentcompile "),
        (["--help"], 0, "compile"),
        (["compile", "--help"], 0, "--resume"),
        (["config", "show"], 0, "advisor"),
        (["compil"], 2, "compile"),
        (["compile"], 2, "no model was named"),
        (["compile", "x", "--json", "--events", "jsonl"], 2, "share stdout"),
        (["compile", "x", "--events", "xml"], 2, "jsonl"),
        (["compile", "x", "--context", "0"], 2, "--context"),
        (["tui"], 2, "headless"),
        (["bench", "nonsense"], 2, "no recipe"),
        (["runs", "list"], 0, ""),
        (["explain", "linear"], 2, "no runs"),
    ],
)
def test_a_command_line_ends_with_its_exit_code(
    arguments: list[str], code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments) == code
    captured = capsys.readouterr()
    assert words in captured.out + captured.err
    assert "Traceback" not in captured.err


SLOW = """
import sys, time; sys.path.insert(0, {unit!r})
from runs import WHOLE
from agentcompile.cli import compiling
from agentcompile.cli.flow import Flow
from agentcompile.cli.exits import guarded
from agentcompile.cli.render import Screen

def slow(options, emit, past, steering):
    for event in WHOLE[:10]:
        emit(event)
    print("ready", flush=True)
    time.sleep(60)

screen = Screen.standard(quiet=True)
flow = Flow()
flow.compile = slow
sys.exit(guarded(lambda: compiling.compile({{"model": "m"}}, resume=False, screen=screen, flow=flow)))
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_ends_a_run_in_order_with_the_command_that_resumes_it(number: int, code: int, home: Path) -> None:
    script = SLOW.format(unit=str(Path(__file__).parent))
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    time.sleep(0.05)
    child.send_signal(number)
    _, err = child.communicate(timeout=20)
    assert child.returncode == code
    assert "nothing is lost; resume with: agentcompile compile --resume" in err
    assert "Traceback" not in err
    assert run_of(home).state().counts.total == 1


def test_a_reader_that_goes_away_is_no_error() -> None:
    command = f"{sys.executable} -m agentcompile config show --json | head -c 1"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=30, check=False)
    assert result.stderr == ""
