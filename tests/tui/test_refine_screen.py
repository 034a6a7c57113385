"""The screens of a session of `refine`: how they look, what each key does, and what a hostile model can do to them."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path

import pytest
from agentcompile.tui.frame import frame
from agentcompile.tui.ink import Ink
from agentcompile.tui.keys import acts, bound, here, offers
from agentcompile.tui.nodes import READ
from agentcompile.tui.refine_session import RefineSession
from agentcompile.tui.scene import Page, Steer, View
from agentcompile.tui.screens import REFINE_SCREENS, SCREENS
from agentcompile.tui.update import press
from refine_folders import (
    FAILED,
    FINISHED,
    HOSTILE,
    OPENED,
    STOPPED,
    SUBJECT,
    TREE,
    admitted,
    append,
    folder,
    made,
    opened,
    pressed,
    read,
    step,
    text,
)
from rich.cells import cell_len
from test_screens import held

from agentcompile.agents.folder import JOURNAL, SessionFolder
from agentcompile.agents.journal import Entry, Pruned, Refused
from agentcompile.cli import main as cli
from agentcompile.events import RunFinished, Steered
from agentcompile.ir.attempt import Written
from agentcompile.options import resolve
from agentcompile.runs import session
from agentcompile.runs.status import STOPPED as BY_A_PERSON
from tests.unit.refined import CONTRACT

SIZES = ((80, 24), (140, 45))
NAMES = [screen.name for screen in REFINE_SCREENS]


@pytest.fixture
def here_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory, so that folders have the same name in every test."""
    monkeypatch.chdir(tmp_path)
    return Path("run")


def unused(arguments: Sequence[str]) -> tuple[int, str, str]:
    """A command line that nothing may run."""
    raise AssertionError(arguments)


@pytest.mark.parametrize("ascii", [False, True], ids=["unicode", "ascii"])
@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_every_screen_and_dialog_looks_as_it_did(here_in: Path, size: tuple[int, int], ascii: bool) -> None:
    one = folder(here_in, TREE, FINISHED)
    screens = []
    for name, keys in (
        ("tree", "jj"), ("node", "jj\n"), ("refused", "jjj\n"), ("reference", "\n"), ("leaderboard", "2"),
        ("prune", "jjx"), ("promote", "2GP"), ("changes", "jjD"), ("answers", "jja"), ("log", "3"),
    ):  # fmt: skip
        known = opened(one, unused, *size)
        for key in keys:
            known.key("enter" if key == "\n" else key, key.strip())
        screens.append(f"== {name}\n" + text(known, ascii=ascii))
    held(f"refine-{size[0]}x{size[1]}-{'ascii' if ascii else 'unicode'}", "".join(screens))


@pytest.mark.parametrize("size", [(60, 16), (79, 24), (100, 30), (140, 45), (200, 60)])
@pytest.mark.parametrize("ascii", [False, True])
def test_hostile_texts_are_drawn_as_text_and_no_line_is_wider_than_the_screen(
    attacked: RefineSession, size: tuple[int, int], ascii: bool
) -> None:
    known = attacked
    for keys in ((), ("G",), ("j",), *(("j", key) for key in ("enter", "D", "v", "a", "P", "x")), ("2",), ("3",)):
        known.view = View(mode="refine", width=size[0], height=size[1])
        pressed(known, *keys)
        lines = frame(known.scene, known.view, Ink(ascii=ascii), known.screens)
        assert {cell_len(line.plain) for line in lines} == {size[0]}, keys
        drawn = "".join(line.plain for line in lines)
        assert not ascii or drawn.isascii()
        assert not set(drawn) & {"\x1b", "\x07", "\r", "\n", "\x00", "\x9b", "\u202e"}
        assert lines[-1].plain.rstrip().endswith("? help  q quit")


def hostile() -> tuple[Entry, ...]:
    """A tree whose models write ten megabytes of anything."""
    long = HOSTILE * 20
    one = replace(
        admitted(1, 0, 400.0),
        written=Written(manifest=HOSTILE + "\n" + long, kernel=(HOSTILE + "\n") * 2000 + "x" * 10_000_000),
        log=(step("plan", long, HOSTILE, HOSTILE), step("code", notes=long)),
        feedback=json.dumps({"admissible": True, HOSTILE: long, "log": [[[[[[HOSTILE]]]]]]}),
    )  # fmt: skip
    return (OPENED, one, Refused(node=1, reason=long, log=(step("code", notes=HOSTILE, model=HOSTILE),)))


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> RefineSession:
    """A session whose models write anything."""
    path = tmp_path_factory.mktemp("attacked") / "run"
    return opened(folder(path, hostile(), region=HOSTILE, answered_by=HOSTILE), unused)


@pytest.mark.parametrize("size", [(60, 16), (80, 24), (140, 45)], ids=lambda size: f"{size[0]}x{size[1]}")
def test_a_deep_tree_keeps_the_number_of_every_node(here_in: Path, size: tuple[int, int]) -> None:
    chain = [made(id, id - 1, 900.0 - id) for id in range(1, 40)]
    known = opened(folder(here_in, (OPENED, *chain, Refused(node=39, reason="why", log=()))), unused, *size)
    rows = REFINE_SCREENS[0].entries(known.scene, known.view)
    assert [one.key for one in rows] == [*map(str, range(40)), "r40"]
    drawn = pressed(known, "G")
    assert "┗━39 " in drawn
    assert "└─- " in drawn


def test_what_was_changed_is_coloured_and_marked(here_in: Path) -> None:
    known = opened(folder(here_in), unused, 140, 45)
    pressed(known, "j", "j")
    drawn = {span for line in frame(known.scene, known.view, Ink(), known.screens) for span in line.spans}
    assert {("-    // 1", "removed"), ("+    // 2", "added")} <= drawn


def test_a_text_that_is_too_long_says_that_it_is_cut(attacked: RefineSession) -> None:
    known = attacked
    known.view = View(mode="refine")
    pressed(known, "j", "v")
    assert isinstance(known.view.overlay, Page)
    assert sum(map(len, known.view.overlay.lines)) < 2 * READ
    assert any("cut: the whole text has 10," in line for line in known.view.overlay.lines)


@pytest.mark.parametrize(
    ("entries", "events", "words"),
    [
        ((), (), ("‖ interrupted", "No attempt yet.", "Resume with: agentcompile refine --resume --run-dir run")),
        ((OPENED,), FINISHED[:1], ("0 of 12 attempts   no attempt is finished yet", "0          ◆ reference")),
        ((OPENED, made(1, 0)), FINISHED[:1], ("1 of 12 attempts   no kernel passed every gate yet",)),
        (TREE, FINISHED[:1], ("‖ interrupted", "Interrupted. Resume with: agentcompile refine --resume --run-dir run")),
        (TREE, STOPPED, ("‖ stopped", "stopped by a signal", "agentcompile refine --resume --run-dir run")),
        ((), FAILED, ("✗ failed", "no region is called that; regions: mul, add")),
        (TREE, FINISHED, ("✓ done", "Node 4 is admissible: P makes it a")),
        (TREE[:2], FINISHED, ("✓ done", "No kernel is surely faster than the incumbent.")),
        (
            TREE,
            (*FINISHED[:1], RunFinished(detail=BY_A_PERSON)),
            ("‖ stopped", "Stopped by user. Resume with: agentcompile"),
        ),
    ],
    ids=["unopened", "opened", "no-kernel", "interrupted", "signalled", "failed", "done", "in-vain", "stopped"],
)
def test_a_session_says_how_it_stands(
    here_in: Path, entries: Sequence[Entry], events: Sequence[object], words: Sequence[str]
) -> None:
    known = opened(folder(here_in, entries, events), unused)  # type: ignore[arg-type]
    found = " ".join(text(known).split())
    assert all(" ".join(one.split()) in found for one in words), text(known)
    for mode in "23":
        assert pressed(known, mode)


def test_a_session_that_a_process_works_on_says_what_it_does(here_in: Path) -> None:
    one = folder(here_in, (), ())
    with session.Journal(one.run) as journal:
        assert "● running" in text(opened(one, unused))
        one.introduce(SUBJECT, CONTRACT)
        append(one, OPENED)
        assert "● running" in text(opened(one, unused))
        assert "The first attempt is running." in text(opened(one, unused))
        append(one, *TREE[1:3])
        assert "The last attempt made node 2 from node 1: ● admissible, 600 ns, 1.50×." in text(opened(one, unused))
        append(one, TREE[3])
        assert "The last attempt, from node 2, was refused: code: line 1" in text(opened(one, unused))
        journal.append(Steered(what="pause"))
        assert "Paused before the next attempt: space resumes it." in text(opened(one, unused))


def said(known: RefineSession, *keys: str) -> str:
    """What is said after some keys."""
    pressed(known, *keys)
    return known.view.message


def taken(one: SessionFolder) -> list[tuple[str, int]]:
    """What a session would read before its next attempt."""
    return [(command.what, command.node) for command in one.take()]


def test_a_live_session_is_paused_resumed_pruned_and_stopped_through_its_folder(here_in: Path) -> None:
    one = folder(here_in)
    with session.Journal(one.run):
        known = opened(one, unused)
        assert said(known, "space") == "The session waits before its next attempt."
        assert "space resume" in text(known)
        assert "Asked, and done before the next attempt: pause." in pressed(known, "j")
        assert taken(one) == [("pause", 0)]
        read(known)
        pressed(known, "space", "space")
        assert taken(one) == [("pause", 0), ("resume", 0)]
        known.view = replace(known.view, candidate="2")
        assert said(known, "x", "enter") == "Node 2 is closed before the next attempt."
        assert said(known, "x") == "x: Node 2 is closed before the next attempt already."
        goes_on = "agentcompile refine --resume --run-dir run"
        assert "No further attempt is made." in pressed(known, "S")
        assert taken(one) == [("prune", 2)]
        assert said(known, "enter") == f"The session ends after its attempt; resume with: {goes_on}."
        assert said(known, "S") == "S: It ends after its attempt already."
        assert taken(one) == [("stop", 0)]


def test_a_session_that_nobody_works_on_names_the_command_that_goes_on_and_is_pruned_at_once(here_in: Path) -> None:
    one = folder(here_in)
    known = opened(one, unused)
    for key in ("space", "S", "Q"):
        why = "No process works on this session; resume it: agentcompile refine --resume --run-dir run"
        assert said(known, key) == f"{key}: {why}"
    assert taken(one) == []
    known.view = replace(known.view, candidate="2")
    assert "It holds 5 nodes: node 2 and those made from it." in pressed(known, "x")
    assert said(known, "escape") == "Nothing was changed."
    assert not [entry for entry in one.entries() if isinstance(entry, Pruned)]
    assert said(known, "x", "y", "enter") == "Node 2 is closed."
    assert "⊘ pruned" in text(known)
    assert one.entries()[-1] == Pruned(node=2)
    assert said(known, "x") == "x: The branch of node 2 is closed already."


@pytest.mark.parametrize(
    ("node", "why"),
    [
        ("0", "Node 0 is the reference: it has no kernel, and begins no branch."),
        ("1", "Node 1 is build-failed: only a node that was measured can be a template."),
        ("r3", "A refused answer made no node."),
    ],
)
def test_what_has_no_time_is_not_promoted_and_says_why(here_in: Path, node: str, why: str) -> None:
    known = opened(folder(here_in), unused)
    known.view = replace(known.view, candidate=node)
    assert said(known, "P") == f"P: {why}"
    assert known.view.overlay is None


def test_a_promotion_names_its_folder_warns_and_takes_another_name(here_in: Path) -> None:
    ran: list[Sequence[str]] = []

    def run(arguments: Sequence[str]) -> tuple[int, str, str]:
        ran.append(arguments)
        return 0, json.dumps({"template": "TEMPLATES/rmsnorm/wide"}), "warning: it is slow\n"

    known = opened(folder(here_in), run)
    known.view = replace(known.view, candidate="3")
    usual = one_written(known, 3)
    asked = pressed(known, "P")
    assert f"folder    TEMPLATES/rmsnorm/{usual}" in asked
    assert "▲ Node 3 is not surely faster than the incumbent, rmsnorm/rows(ROWS=4)." in asked
    assert said(known, "escape") == "Nothing was changed."
    assert ran == []
    assert "folder    TEMPLATES/rmsnorm/wide" in pressed(known, "P", "ctrl+u", *"wide")
    done = said(known, "enter")
    assert ran == [["refine", "promote", "run", "3", "--json", "--name=wide"]]
    assert done == "Node 3 is the template TEMPLATES/rmsnorm/wide; `agentcompile compile` searches it."
    known.view = replace(known.view, candidate="4")
    assert "not surely faster" not in pressed(known, "P")


def one_written(known: RefineSession, node: int) -> str:
    refined = known.scene.refined
    assert refined is not None
    one = refined.nodes[node].written
    assert one is not None
    return one.variant


def test_a_promotion_that_is_refused_says_why(here_in: Path) -> None:
    known = opened(folder(here_in), lambda arguments: (2, "", "noise\nerror: \x1b[1mno name\nhint: another\n"))
    outcome = known.act(Steer(what="promote", node=4))
    assert (outcome.ok, outcome.text) == (False, "error: no name; hint: another")
    silent = opened(SessionFolder(here_in), lambda arguments: (-9, "", ""))
    assert silent.act(Steer(what="promote", node=4)).text == "it ended with exit code -9"


def test_the_verb_itself_writes_the_template(here_in: Path) -> None:
    from tests.cpu.written import written

    def here_and_now(arguments: Sequence[str]) -> tuple[int, str, str]:
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            code = cli.main(arguments)
        return code, out.getvalue(), err.getvalue()

    one = folder(
        here_in, (OPENED, replace(admitted(1, 0, 500.0), written=written())), FINISHED,
        subject=replace(SUBJECT, kind="linear"),
    )  # fmt: skip
    done = said(opened(one, here_and_now), "j", "P", "ctrl+u", *"by-hand", "enter")
    (template,) = resolve().options.written.glob("linear/*")
    assert template.name == "by-hand"
    assert done == f"Node 1 is the template {template}; `agentcompile compile` searches it."


def test_a_verb_runs_in_a_process_of_its_own(here_in: Path) -> None:
    outcome = opened(folder(here_in)).act(Steer(what="promote", node=99, name="-x"))
    assert (outcome.ok, outcome.text) == (False, "error: there is no node 99; hint: nodes: 0 to 6")


HOLDS = """
import fcntl, os, signal
with open("run/run.lock", "ab") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    os.truncate("run/run.lock", 0)
    lock.write(f"{os.getpid()}\\n".encode()); lock.flush()
    print("held", flush=True)
    signal.pause()
"""


def test_a_session_is_stopped_in_the_middle_of_its_attempt_and_the_app_leaves(here_in: Path) -> None:
    one = folder(here_in)
    child = subprocess.Popen([sys.executable, "-Ic", HOLDS], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "held\n"
    asks = opened(one, unused)
    assert asks.key("Q", "Q") == ()
    assert "Lost: the attempt that is running" in text(asks)
    (effect,) = asks.key("enter", "")
    assert effect == Steer(what="stop-now")
    known = opened(one, unused)
    assert known.act(effect).leave
    assert child.wait(20) == -15
    child.stdout.close()


def test_the_tree_grows_as_the_journal_does(here_in: Path) -> None:
    one = folder(here_in, TREE[:3])
    known = opened(one, unused)
    assert "6 of 12 attempts" not in text(known)
    assert not known.poll()
    append(one, *TREE[3:])
    assert known.poll()
    assert "7 of 12 attempts, 1 refused" in text(known)
    with (one.path / JOURNAL).open("ab") as file:
        file.write(b'{"kind":"pru')
    assert not known.poll()
    with (one.path / JOURNAL).open("ab") as file:
        file.write(b"nonsense\n")
    assert known.poll()
    assert "refine.jsonl:9: no entry of a session" in " ".join(text(known).split())
    assert "7 of 12 attempts" in text(known), "what was read stays"


def test_every_key_does_something_or_says_why_not_and_means_one_thing(here_in: Path) -> None:
    known = opened(folder(here_in), unused)
    for screen in REFINE_SCREENS:
        keys = [key for act in acts(REFINE_SCREENS) if (own := here(act, screen, REFINE_SCREENS)) for key in own.keys]
        assert len(keys) == len(set(keys)), screen.name
        view = replace(known.view, mode=screen.name)
        for act, why in offers(known.scene, view, REFINE_SCREENS):
            key = act.keys[0]
            if why and bound(key, screen, REFINE_SCREENS) == act:
                after = press(known.scene, view, key, key if len(key) == 1 else "", REFINE_SCREENS)
                assert why in after.view.message
                assert not after.effects
    assert {"pause", "prune", "promote", "finish", "stop"} <= {act.name for act in acts(REFINE_SCREENS)}
    assert "next attempt" in next(act.help for act in acts(REFINE_SCREENS) if act.name == "pause")
    assert "next candidate" in next(act.help for act in acts(SCREENS) if act.name == "pause")


def test_the_command_that_shows_the_same_names_the_node(here_in: Path) -> None:
    known = opened(folder(here_in), unused)
    pressed(known, "j", "j")
    assert known.command() == "agentcompile refine show run --node 2"
    pressed(known, "j")
    assert known.command() == "agentcompile refine show run"
    pressed(known, "3")
    assert known.command() == "agentcompile refine show run"
