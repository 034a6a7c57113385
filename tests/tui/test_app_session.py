"""What the app does outside the screen: programs of candidates, the clipboard's command, locks, checks of a lock."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest
from agentcompile.tui.decided import changes
from agentcompile.tui.locking import lock_facts
from agentcompile.tui.scene import Call, Page, Send, View
from agentcompile.tui.session import Session
from agentcompile.tui.trials import latest
from recorded import run_directory, session, text

from agentcompile.control.commands import Approve, Command, Reply, Stop
from agentcompile.control.desk import deliver
from agentcompile.errors import AgentCompileError
from agentcompile.ir.codec import encode
from agentcompile.lockfile.files import read_lock
from agentcompile.options import Options
from agentcompile.runs.session import OPTIONS, options_bytes


def read(one: Session) -> None:
    """All that there is of its run."""
    while one.feed is not None and not one.feed.caught_up:
        one.poll(1.0)


@pytest.fixture
def known(tmp_path: Path) -> Session:
    """A session that has read a whole run, whose store is a folder of the test's own."""
    path = run_directory(tmp_path / "run", "finished")
    (path / OPTIONS).write_bytes(options_bytes(encode(Options(model="m", home=str(tmp_path / "home")))))
    one = session(path)
    read(one)
    one.view = View(mode="tune")
    return one


def kept(one: Session, tmp_path: Path, digest: str, text: str) -> None:
    """Put a program where a compiler keeps it."""
    file = Options(home=str(tmp_path / "home")).store / digest[:2] / f"{digest}.source"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_a_candidates_program_is_shown_clean_and_as_a_difference(known: Session, tmp_path: Path) -> None:
    region = max(known.scene.state.rows, key=lambda row: row.counts.measured).region
    known.view = replace(known.view, region=region)
    found = latest(known.scene.state, region)
    first, second = list(found)[:2]
    kept(known, tmp_path, found[first].source, "int a;\nint b;\x1b]0;x\x07\n")
    kept(known, tmp_path, found[second].source, "int a;\nint c;\n")
    page = known.act(Call(what="source", text=first)).page
    assert isinstance(page, Page)
    assert page.lines == ("int a;", "int b;", "")
    assert page.title == found[first].candidate.label
    gone = known.act(Call(what="source", text=list(found)[2]))
    assert not gone.ok
    assert "not kept here any more" in gone.text


def test_a_difference_is_taken_to_what_the_region_runs(known: Session, tmp_path: Path) -> None:
    region = max(known.scene.state.rows, key=lambda row: row.counts.measured).region
    known.view = replace(known.view, region=region)
    for number, one in enumerate(latest(known.scene.state, region).values()):
        kept(known, tmp_path, one.source, f"int a;\nint x{number};\n")
    first = next(iter(latest(known.scene.state, region)))
    page = known.act(Call(what="diff", text=first)).page
    assert isinstance(page, Page)
    assert page.kind == "diff"
    assert [line[:1] for line in page.lines if line[:1] in "+-" and line[:3] not in ("+++", "---")] == ["-", "+"]


def test_the_clipboard_gets_the_command_that_does_the_same(known: Session) -> None:
    known.view = View(mode="review")
    assert known.command().startswith("agentcompile decide ")
    assert known.command().endswith("--approve")
    known.view = View(mode="lock")
    assert known.command().startswith("agentcompile replay ")
    known.view = View(mode="tune")
    assert known.command().startswith("agentcompile explain ")
    assert known.act(Call(what="copy")).copy == known.command()


def test_a_compiler_that_gives_no_answer_is_said(tmp_path: Path) -> None:
    def silent(path: Path, command: Command) -> Reply:
        raise AgentCompileError("the compiler gave no reply", hint="try again")

    one = session(run_directory(tmp_path / "run", "finished"), deliver=silent)
    outcome = one.act(Send(command=Stop()))
    assert not outcome.ok
    assert outcome.text == "the compiler gave no reply; try again"
    assert one.act(Call(what="stop")).leave


def checked(one: Session, what: str, seconds: float = 120.0) -> int:
    """Compare or replay the lock, and wait for the exit code."""
    one.act(Call(what=what))  # type: ignore[arg-type]
    end = time.monotonic() + seconds
    while one.scene.replay is None or one.scene.replay.exit_code is None:
        assert time.monotonic() < end
        one.poll()
        time.sleep(0.05)
    return one.scene.replay.exit_code


def test_a_lock_by_itself_is_shown_and_compared_with_this_host(repository: Path, tmp_path: Path) -> None:
    lock = repository / "bench" / "results" / "sample.lock.toml"
    one = Session(
        None, name=lock.name, lock=lock, deliver=lambda path, command: Reply(ok=True, text=""), store=tmp_path
    )
    assert one.view.mode == "lock"
    assert dict(one.scene.lock_facts)["target.arch"] == "x86_64"
    assert any("decided by measurement" in value for _, value in one.scene.lock_facts)
    code = checked(one, "check")
    assert code in (0, 3)
    assert one.scene.replay is not None
    assert (code == 3) <= any(drift.grade == "refuse" for drift in one.scene.replay.state.drift)
    one.end()


def test_a_lock_s_plan_says_how_prompts_run_where_that_was_chosen(repository: Path) -> None:
    lock = read_lock(repository / "bench" / "results" / "sample.lock.toml")
    usual = dict(lock_facts(lock))
    (prefill,) = (plan for plan in lock.plan if plan.phase == "prefill")
    changed = replace(prefill, chunk=128, steps_up_to=4)
    chosen = dict(lock_facts(replace(lock, plan=tuple(changed if plan is prefill else plan for plan in lock.plan))))
    name = next(name for name in usual if name.startswith("plan prefill"))
    ways = ("prompts run in chunks of 128", "up to 4 tokens of a prompt run in decode steps")
    assert chosen[name] == "; ".join((usual[name], *ways))


def test_a_lock_that_was_edited_says_so(repository: Path, tmp_path: Path) -> None:
    lock = tmp_path / "x.lock.toml"
    text = (repository / "bench" / "results" / "sample.lock.toml").read_text()
    lock.write_text(text.replace('use = "kernel"', 'use = "fallback"', 1))
    one = Session(
        None, name=lock.name, lock=lock, deliver=lambda path, command: Reply(ok=True, text=""), store=tmp_path
    )
    assert "content-hash" in one.scene.fault


def test_what_was_approved_is_there_when_the_app_comes_back(tmp_path: Path) -> None:
    path = run_directory(tmp_path / "run", "finished")
    first = session(path, deliver=deliver)
    read(first)
    first.view = View(mode="review")
    (approve,) = first.key("y", "y")
    assert first.act(approve).ok
    first.view = replace(first.view, region=changes(first.scene.state)[1].row.region)
    first.key("n", "n")
    for letter in "no":
        first.key(letter, letter)
    (reject,) = first.key("enter")
    assert first.act(reject).ok
    again = session(path)  # the first one is gone without a word
    read(again)
    words = [change.decided.word for change in changes(again.scene.state)]
    assert words[:2] == ["approved", "rejected"]
    assert "no" in text(again.scene, View(mode="review", region=changes(again.scene.state)[1].row.region, detail=True))


def test_an_approval_of_something_else_than_was_on_the_screen_is_refused(tmp_path: Path) -> None:
    path = run_directory(tmp_path / "run", "finished")
    one = session(path, deliver=deliver)
    read(one)
    one.view = View(mode="review")
    (approve,) = one.key("y", "y")
    assert isinstance(approve, Send)
    assert isinstance(approve.command, Approve)
    outcome = one.act(Send(command=replace(approve.command, approval="0" * 64)))
    assert not outcome.ok
    assert outcome.text
