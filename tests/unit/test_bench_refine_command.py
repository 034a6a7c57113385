"""The command `agentcompile bench refine`: flags, files, a figure, cassettes that replay; gates are scripts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from agentcompile.errors import AgentCompileError, ExitCode
from bench.refine.gates import Gates
from bench.refine.recipe import read, run
from tests.unit.loopback import Play, completion, refusal, serving
from tests.unit.refined import capable
from tests.unit.test_bench_refine import World


@contextmanager
def opens(path: Path, text: str) -> Iterator[Gates]:
    """A task whose gate is a script."""
    with World(folder=path).opens(path, text) as gates:
        yield gates


def mind(request: dict[str, Any]) -> Play:
    data = json.loads(request["messages"][1]["content"])
    return completion(capable(data, data["role"]))


@pytest.fixture
def task(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.py"
    path.write_text("a task")
    return path


def test_the_command_writes_a_result_its_figure_and_cassettes_that_replay(
    task: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, again, record = tmp_path / "out" / "r.json", tmp_path / "again.json", tmp_path / "answers"
    words = [str(task), "--arms", "sampling,stark", "--attempts", "2", "--tokens", "0"]
    with serving(mind) as server:
        told = ["--advisor", f"openai:m@{server.url}", "--advisor-price", "1,10", "--answered-by", "somebody"]
        assert run([*words, *told, "--record", str(record), "--out", str(out)], opens) == 0
    asked = len(server.requests)
    assert asked == 2 + 4
    found = json.loads(out.read_text())
    assert str(tmp_path) not in out.read_text(), "no folder of this machine"
    assert found["command"].startswith("agentcompile bench refine tiny.py --arms sampling,stark")
    assert found["machine"]["kind"] == "cpu"
    assert found["versions"]["torch"]
    study = read(out)
    assert study.models == ("somebody",)
    assert {one.device for one in study.rows} == {"Test CPU"}
    assert study.unit == "threads"
    assert [one.cents for one in study.rows] == [pytest.approx(2 * 0.3), pytest.approx(4 * 0.3)]
    assert out.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert "stark" in out.with_suffix(".svg").read_text()
    assert {path.name for path in record.iterdir()} == {"tiny-sampling-0", "tiny-stark-0"}
    shown = capsys.readouterr().out
    assert "fast_1" in shown
    assert f"Kernels and PyTorch ran on {study.device}, {study.threads} threads." in shown
    assert run([*words, "--replay", str(record), "--out", str(again)], opens) == 0
    assert len(server.requests) == asked, "and the server is gone"
    assert [one.attempts for one in read(again).rows] == [one.attempts for one in study.rows]
    assert read(again).models == ("somebody",)
    capsys.readouterr()
    assert run(["--show", str(out)]) == 0
    assert capsys.readouterr().out == shown


def test_a_server_that_refuses_ends_the_command_with_what_goes_on(task: Path, tmp_path: Path) -> None:
    words = [str(task), "--arms", "sampling", "--attempts", "1", "--out", str(tmp_path / "r.json")]
    with serving(refusal(401)) as server, pytest.raises(AgentCompileError) as caught:
        run([*words, "--advisor", f"openai:m@{server.url}"], opens)
    assert caught.value.exit_code is ExitCode.ENVIRONMENT
    assert f"agentcompile bench refine {task} --arms sampling" in caught.value.hint


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "name who answers"),
        (["--advisor", "openai:m@http://127.0.0.1:1/v1", "--replay", "x"], "name who answers"),
        (["--replay", "x", "--record", "y"], "nothing new is asked"),
        (["--replay", "x", "--arms", "stark,clever"], "'clever' is no arm"),
        (["--replay", "x", "--arms", ","], "names no arm"),
        (["--replay", "x", "--strategy", "luck"], "luck"),
        (["--show", "nothing.json"], "cannot be read"),
        (["a/t.py", "b/t.py", "--replay", "x"], "two tasks are called t"),
        (["--advisor", "heuristic"], "no model"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_wrong_flags_are_refused_before_anything_runs(words: list[str], told: str, tmp_path: Path) -> None:
    out = [] if "--show" in words else ["--out", str(tmp_path / "r.json")]
    with pytest.raises(AgentCompileError) as caught:
        run([*words, *out], _never)
    assert caught.value.exit_code is ExitCode.USAGE
    assert told in caught.value.message
    assert caught.value.hint
    assert not list(tmp_path.iterdir())


def test_a_device_that_is_not_there_ends_the_command_before_anything_runs(task: Path, tmp_path: Path) -> None:
    words = [str(task), "--target", "cuda:77", "--advisor", "openai:m@http://127.0.0.1:1/v1"]
    with pytest.raises(AgentCompileError, match="cuda:77") as caught:
        run([*words, "--out", str(tmp_path / "r.json")], _never)
    assert caught.value.exit_code is ExitCode.ENVIRONMENT


def _never(path: Path, text: str) -> AbstractContextManager[Gates]:
    raise AssertionError(f"{path} is opened")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"kind": "other"}', '{"kind": "agentcompile bench refine"}'])
def test_what_is_no_result_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(AgentCompileError) as caught:
        read(tmp_path / "r.json")
    assert caught.value.exit_code is ExitCode.USAGE
