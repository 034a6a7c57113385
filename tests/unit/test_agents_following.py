"""A journal that another process writes, read as it grows; and commands that were left, seen before they are taken."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentcompile.agents.folder import Command, SessionFolder
from agentcompile.agents.journal import Entry, JournalFollower, Opened, Pruned, SessionJournal
from agentcompile.errors import AgentCompileError
from agentcompile.ir.codec import encode
from agentcompile.ir.digest import canonical
from tests.unit.refined import node

OPENED = Opened(
    contract="c", arm="stark", strategy="greedy", seed=0, floor_ns=1.0, reference_ns=1000.0, incumbent_ns=900.0
)


def line(entry: Entry) -> bytes:
    return canonical(encode(entry)) + b"\n"


def test_whole_lines_are_read_once_and_the_rest_is_left(tmp_path: Path) -> None:
    path = tmp_path / "refine.jsonl"
    reader = JournalFollower(path)
    assert not reader.poll()
    first = node(1, 0, 500.0)
    path.write_bytes(line(OPENED) + line(first)[:20])
    assert reader.poll()
    assert reader.entries == (OPENED,)
    assert not reader.poll()
    path.write_bytes(line(OPENED) + line(first) + line(Pruned(node=1)))
    assert reader.poll()
    assert reader.entries == (OPENED, first, Pruned(node=1))
    assert not reader.poll()


def test_a_journal_that_became_shorter_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "refine.jsonl"
    path.write_bytes(line(OPENED) + line(node(1, 0, 500.0)))
    reader = JournalFollower(path)
    assert reader.poll()
    path.write_bytes(line(OPENED))
    assert reader.poll()
    assert reader.entries == (OPENED,)
    path.unlink()
    assert reader.poll()
    assert reader.entries == ()


@pytest.mark.parametrize(
    ("rest", "words"),
    [
        (b"nonsense\n", "2: no entry of a session"),
        (line(node(2, 0, 500.0)), "2: node 2 is not the next one"),
        (line(OPENED), "2: a session is opened once"),
        (line(node(1, 0, 500.0, feedback="no JSON")), "2: no entry of a session"),
        (line(node(1, 0, 500.0, feedback="[" * 100_000)), "2: no entry of a session"),
    ],
    ids=["nonsense", "number", "opened", "feedback", "depth"],
)
def test_a_line_that_is_no_entry_names_its_number_and_keeps_what_was_read(
    tmp_path: Path, rest: bytes, words: str
) -> None:
    path = tmp_path / "refine.jsonl"
    path.write_bytes(line(OPENED))
    reader = JournalFollower(path)
    assert reader.poll()
    with path.open("ab") as file:
        file.write(rest)
    with pytest.raises(AgentCompileError, match=words):
        reader.poll()
    assert reader.entries == (OPENED,)
    with pytest.raises(AgentCompileError, match=words):
        SessionJournal(path)


def test_commands_are_seen_before_they_are_taken(tmp_path: Path) -> None:
    folder = SessionFolder(tmp_path)
    assert folder.waiting() == ()
    folder.ask(Command(what="pause"))
    folder.ask(Command(what="prune", node=3))
    (tmp_path / "asked" / "9.json").write_text("{}")
    both = (Command(what="pause"), Command(what="prune", node=3))
    assert folder.waiting() == both
    assert folder.take() == both
    assert folder.waiting() == ()
