"""What a verb says last: the command that follows on its result, for people alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from reviewed import EVENTS as REVIEWED
from runs import WHOLE
from test_cli import flow, home, paper, run_of, stopping

from agentcompile.cli import compiling, deciding, looking, reporting, running, watching
from agentcompile.cli.exits import Stopped
from agentcompile.events import Emit
from agentcompile.options import Options
from agentcompile.replay.load import Replayed
from agentcompile.runs.session import Journal, RunDirectory

__all__ = ["home"]


def last(err: object) -> str:
    return str(getattr(err, "getvalue")()).splitlines()[-1]  # noqa: B009 - a stream of text


def test_a_lock_is_tried_next_and_an_inspected_model_compiled(home: Path) -> None:
    screen, _, err = paper()
    compiling.compile({"model": "m", "out": "a b.lock.toml"}, resume=False, screen=screen, flow=flow())
    assert last(err) == "next: agentcompile generate 'a b.lock.toml' --prompt TEXT"

    def inspects(options: Options, emit: Emit) -> None:
        for event in WHOLE[:6]:
            emit(event)

    screen, _, err = paper()
    compiling.inspect({"model": "preset:sample"}, screen=screen, flow=flow(inspect=inspects))
    assert last(err) == "next: agentcompile compile preset:sample"


def test_verbs_on_a_lock_name_what_follows(tmp_path: Path) -> None:
    def replays(lock: Path, options: Options, emit: Emit, locked: bool, check: bool) -> Replayed:
        return Replayed(model="m", kernels=2)

    def verifies(lock: Path, options: Options, prompts: Sequence[str], emit: Emit) -> Mapping[str, float | str]:
        return {"mean KL": 0.00125}

    (tmp_path / "prompts").write_text("one\n")
    for check, said in ((True, "replay x.lock.toml"), (False, "generate x.lock.toml --prompt TEXT")):
        screen, _, err = paper()
        running.replay({}, Path("x.lock.toml"), locked=False, check=check, screen=screen, flow=flow(replay=replays))
        assert last(err) == f"next: agentcompile {said}"
    screen, _, err = paper()
    running.verify({}, Path("x.lock.toml"), tmp_path / "prompts", screen=screen, flow=flow(verify=verifies))
    assert last(err) == "next: agentcompile generate x.lock.toml --prompt TEXT"


def test_verbs_on_a_run_name_what_its_status_asks_for(home: Path, tmp_path: Path) -> None:
    screen, _, err = paper()
    looking.runs_list({}, screen=screen)
    assert last(err) == "next: agentcompile compile MODEL", "there is none yet"
    with pytest.raises(Stopped):
        compiling.compile(
            {"model": "m"}, resume=False, screen=paper()[0], flow=flow(compile=stopping(KeyboardInterrupt()))
        )
    run = run_of(home).path
    screen, _, err = paper()
    looking.runs_status({}, "", screen=screen)
    assert last(err) == f"next: agentcompile compile --resume --run-dir {run}"
    compiling.compile({}, resume=True, screen=paper()[0], flow=flow())
    screen, _, err = paper()
    assert watching.watch({}, "latest", once=False, screen=screen) == 0
    assert last(err) == f"next: agentcompile report {run}"
    screen, _, err = paper()
    looking.runs_list({}, screen=screen)
    assert last(err) == f"next: agentcompile runs status {run.name}"
    screen, _, err = paper()
    looking.explain({}, "linear", screen=screen)
    assert last(err) == f"next: agentcompile report {run.name}"
    screen, _, err = paper()
    reporting.report({}, "", tmp_path / "a.html", screen=screen)
    assert last(err).startswith(f"next: open {tmp_path / 'a.html'} in a browser")


def test_a_review_is_decided_on_next(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "reviewed", {})
    with Journal(run) as journal:
        for event in REVIEWED:
            journal.append(event)
    screen, _, err = paper()
    looking.runs_status({}, str(run.path), screen=screen)
    assert last(err) == f"next: agentcompile decide {run.path}"
    screen, _, err = paper()
    deciding.decide({}, str(run.path), deciding.DecideFlags(), screen=screen)
    assert last(err).startswith(f"next: agentcompile decide {run.path} --approve-safe")


def test_programs_and_who_wants_quiet_are_told_nothing() -> None:
    screen, _, err = paper("json")
    looking.cache_list({}, screen=screen)
    assert err.getvalue() == ""
