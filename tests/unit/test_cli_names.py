"""What a person may call a run, a lock or a difference on the command line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from test_cli import flow, home, paper, run_of, stopping

from agentcompile.cli import compiling, looking, running
from agentcompile.cli import main as cli
from agentcompile.cli.exits import Stopped
from agentcompile.errors import AgentCompileError
from agentcompile.lockfile.drift import difference
from agentcompile.runs import session

__all__ = ["home"]


def test_a_run_is_resumed_and_explained_by_its_name_and_by_its_folder(home: Path) -> None:
    with pytest.raises(Stopped):
        compiling.compile(
            {"model": "m"}, resume=False, screen=paper()[0], flow=flow(compile=stopping(KeyboardInterrupt()))
        )
    run = run_of(home).path
    assert compiling.compile({"run_dir": run.name}, resume=True, screen=paper()[0], flow=flow()) == 0
    for name in (run.name, str(run), "latest"):
        screen, out, _ = paper()
        assert looking.explain({"run_dir": name}, "linear", screen=screen) == 0
        assert "runs linear/rows(ROWS=4)" in out.getvalue()
    with pytest.raises(AgentCompileError, match="holds no run"):
        looking.explain({"run_dir": str(home / run.name)}, "linear", screen=paper()[0])


def test_latest_is_the_run_that_was_started_last_in_every_verb(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = home / "runs" / "zz-mine"  # a name of one's own says nothing of when it began
    for flags in ({"model": "m", "run_dir": str(first)}, {"model": "m"}):
        compiling.compile(flags, resume=False, screen=paper()[0], flow=flow())
    (newest,) = set((home / "runs").iterdir()) - {first}
    assert session.runs_in(home / "runs") == (first, newest)
    lines = (
        ["runs", "status", "latest"], ["runs", "attach", "latest"], ["runs", "view", "latest", "--speed", "0"],
        ["watch", "latest"], ["decide", "latest"], ["explain", "linear", "--run-dir", "latest"],
        ["runs", "pack", "latest", "--out", str(tmp_path / "a.xz")],
        ["report", "latest", "--out", str(tmp_path / "a.html")], ["runs", "rm", "latest", "--yes"],
    )  # fmt: skip
    for line in lines:
        assert cli.main([*line, "--json"]) == 0, line
        out = capsys.readouterr().out
        assert newest.name in out, line
        assert first.name not in out, line
    assert session.runs_in(home / "runs") == (first,)


def test_runs_of_one_second_are_in_their_order(tmp_path: Path) -> None:
    names = ["20260101-000000-m", *(f"20260101-000000-m-{at}" for at in range(2, 12))]
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / session.OPTIONS).touch()
        os.utime(tmp_path / name / session.OPTIONS, (1, 1))
    assert [path.name for path in session.runs_in(tmp_path)] == names


@pytest.mark.parametrize(
    "verb",
    [
        ["runs", "status"], ["runs", "pack"], ["report"], ["watch"], ["diff", "x.lock.toml"],
        ["export", "--format", "t4", "--out", "o"], ["refine", "show"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_name_that_no_file_system_takes_is_a_usage_error(verb: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    Path("x.lock.toml").touch()
    assert cli.main([*verb, "n" * 300]) == 2
    err = capsys.readouterr().err
    assert "255 in each part" in err
    assert "internal" not in err


@pytest.mark.parametrize("name", ["folder", "preset:sample", "m.gguf"])
def test_a_checkpoint_in_the_place_of_a_lock_says_what_to_run_first(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "config.json").write_text("{}")
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    lock = name if name.startswith("preset:") else str(tmp_path / name)
    (tmp_path / "prompts").write_text("one")
    for verb in (["generate", lock, "--prompt", "x"], ["replay", lock], ["bundle", lock]):
        assert cli.main(verb) == 2
        err = capsys.readouterr().err
        assert f"error: {lock}: is a checkpoint, not a lock\n" in err
        assert f"hint: run `agentcompile compile {lock}` first" in err
    with pytest.raises(AgentCompileError, match="is a checkpoint, not a lock"):
        running.verify({}, Path(lock), tmp_path / "prompts", screen=paper()[0])


def test_instruction_sets_that_differ_are_named_alone() -> None:
    lacks = difference("target.isa", "avx avx2 avx_vnni fma", "avx avx2 fma sse4_2")
    assert lacks == "target.isa: the lock needs avx_vnni, which this CPU lacks"
    more = difference("target.isa", "avx avx2", "avx avx2 avx512f")
    assert more == "target.isa: this CPU also has avx512f, which the lock does not use"
    assert difference("target.threads", "2", "4") == "target.threads: locked 2, here 4"
