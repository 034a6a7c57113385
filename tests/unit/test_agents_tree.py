"""The tree's functions, the windows by set equality, and the journal."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from agentcompile.agents.journal import Entry, Opened, Pruned, Refused, SessionJournal, attempts_of, nodes_of, spent_of
from agentcompile.agents.tree import (
    Node,
    RoleStep,
    best,
    children,
    dead,
    expandable,
    failing_lineage,
    leaderboard,
    leaves,
    siblings,
)
from agentcompile.agents.windows import alone, window
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.ir.advice import Usage
from agentcompile.ir.attempt import Evaluated, Role, Times, Written
from agentcompile.ir.trial import Cancelled, Disturbed
from tests.unit.refined import BROKEN, node, tree

FAILED = math.inf
#                0
#        1 800   2 ✗       3 700
#      4 ✗ 5 600  6 ✗ 7 ✗  8 650  9 ✗
#                 10 ✗
TREE = tree(
    (0, 800), (0, FAILED), (0, 700), (1, FAILED), (1, 600), (2, FAILED), (2, FAILED), (3, 650), (3, FAILED), (6, FAILED)
)


def ids(nodes: tuple[object, ...]) -> list[int]:
    return [one.id for one in nodes]  # type: ignore[attr-defined]


def test_children_siblings_and_leaves() -> None:
    assert ids(children(TREE, 0)) == [1, 2, 3]
    assert ids(siblings(TREE, 2)) == [1, 3]
    assert siblings(TREE, 0) == ()
    assert ids(leaves(TREE)) == [4, 5, 7, 8, 9, 10]


def test_the_leaderboard_has_the_fastest_sound_kernels() -> None:
    assert ids(leaderboard(TREE)) == [5, 8, 3, 1]
    assert ids(leaderboard(TREE, 2)) == [5, 8]
    again = (*TREE, node(11, 5, 600, repeats=5))
    assert ids(leaderboard(again, 2)) == [5, 8]
    assert best(TREE[:1]) is None
    found = best(TREE)
    assert found is not None
    assert found.id == 5


def test_a_branch_is_dead_after_three_failed_children_and_no_success() -> None:
    assert dead(TREE) == frozenset()
    three = (*TREE, node(11, 2))
    assert dead(three) == {2, 6, 7, 10, 11}
    assert ids(expandable(three)) == [4, 5, 8, 9]
    mended = (*three, node(12, 10, 900))
    assert dead(mended) == frozenset(), "a success below keeps it alive"
    assert dead(tree((0, FAILED), (0, FAILED), (0, FAILED))) == frozenset(), "never the root"


def test_a_child_that_was_disturbed_is_no_failed_one() -> None:
    for verdict in (Disturbed(stage="measure", detail="killed by SIGKILL"), Cancelled(stage="measure")):
        assert dead((*TREE, replace(node(11, 2), verdict=verdict))) == frozenset()
        assert dead((*TREE, replace(node(11, 2), verdict=verdict), node(12, 2))) == {2, 6, 7, 10, 11, 12}


def test_the_failing_lineage_goes_up_to_the_nearest_sound_node() -> None:
    assert ids(failing_lineage(TREE, 10)) == [10, 6, 2]
    assert ids(failing_lineage(TREE, 4)) == [4]
    assert failing_lineage(TREE, 5) == ()


WINDOWS = {
    # {i, root} ∪ children(i) ∪ leaderboard
    ("plan", 0): {0, 1, 2, 3, 5, 8},
    ("plan", 1): {0, 1, 4, 5, 8, 3},
    ("plan", 5): {0, 5, 8, 3, 1},
    # {i, root} ∪ children(i) ∪ children of siblings(i)
    ("code", 0): {0, 1, 2, 3},
    ("code", 1): {0, 1, 4, 5, 6, 7, 8, 9},
    ("code", 3): {0, 3, 8, 9, 4, 5, 6, 7},
    ("code", 7): {0, 7, 10},
    # {i, root} ∪ siblings(i)
    ("debug", 2): {0, 2, 1, 3},
    ("debug", 10): {0, 10},
    ("debug", 7): {0, 7, 6},
}


@pytest.mark.parametrize(("role", "id"), WINDOWS)
def test_a_window_is_exactly_the_paper_s_set(role: Role, id: int) -> None:
    found = window(role, TREE, id)
    assert found.shown == WINDOWS[role, id]
    assert (found.role, found.node) == (role, id)


def test_debug_alone_sees_the_logs_of_the_failing_lineage() -> None:
    assert window("debug", TREE, 10).logs == (10, 6, 2)
    assert window("plan", TREE, 5).logs == ()
    assert all(alone(role).shown == {0} for role in get_args(Role))


def test_the_leaderboard_of_a_window_can_be_shorter() -> None:
    assert window("plan", TREE, 0, top=1).shown == {0, 1, 2, 3, 5}


OPENED = Opened(
    contract="c", arm="stark", strategy="greedy", seed=1, floor_ns=1.0, reference_ns=1000.0, incumbent_ns=900.0
)
STEP = RoleStep(role="plan", model="m", exchange="e", usage=Usage(calls=1, prompt_tokens=5))
ENTRIES: list[Entry] = [
    OPENED,
    *TREE[1:3],
    Refused(node=2, reason="prose", log=(STEP, STEP)),
    *TREE[3:10],
    Pruned(node=1),
    TREE[10],
]


def filled(path: Path) -> Path:
    with SessionJournal(path) as journal:
        for entry in ENTRIES:
            journal.append(entry)
    return path


def test_a_journal_gives_the_same_tree(tmp_path: Path) -> None:
    with SessionJournal(filled(tmp_path / "session" / "journal.jsonl")) as journal:
        assert list(journal.entries) == ENTRIES
        assert nodes_of(journal.entries) == (TREE[0], replace(TREE[1], pruned=True), *TREE[2:])
        assert attempts_of(journal.entries) == 11
        assert spent_of(journal.entries).prompt_tokens == 10
    assert nodes_of(()) == ()
    assert len((tmp_path / "session" / "journal.jsonl").read_text().splitlines()) == len(ENTRIES)


def test_a_node_of_an_earlier_journal_has_its_share_of_the_time_that_the_session_opened_with() -> None:
    old = [replace(one, over_reference=math.inf) if isinstance(one, Node) else one for one in ENTRIES]
    assert nodes_of(old) == nodes_of(ENTRIES)
    newer = replace(TREE[1], times=Times(reference_ns=500.0, incumbent_ns=400.0))
    root, first, failed = nodes_of([OPENED, newer, TREE[2]])
    assert (root.ns, root.over_reference) == (500.0, 1.0)
    assert (first.over_reference, failed.over_reference) == (0.8, math.inf)


def test_a_torn_last_line_is_ignored_wherever_it_was_cut(tmp_path: Path) -> None:
    data = filled(tmp_path / "whole").read_bytes()
    before = data[:-1].rfind(b"\n") + 1
    path = tmp_path / "cut"
    for size in range(before, len(data)):
        path.write_bytes(data[:size])
        with SessionJournal(path) as journal:
            assert list(journal.entries) == ENTRIES[:-1], size
            journal.append(ENTRIES[-1])
        assert path.read_bytes() == data


@pytest.mark.parametrize(
    "wrong",
    [
        b"{}\n",
        b"nonsense\n",
        b'{"kind":"node"}\n',
        b"[" * 5000 + b"\n",
        b"\xff\xfe\n",
        b'{"kind":"opened","format":9}\n',
        json.dumps({"kind": "refused", "node": 99, "reason": "", "log": []}).encode() + b"\n",
    ],
)
def test_a_line_that_is_no_entry_is_refused_with_its_number(tmp_path: Path, wrong: bytes) -> None:
    path = filled(tmp_path / "journal")
    path.write_bytes(path.read_bytes() + wrong)
    with pytest.raises(AgentCompileError, match=rf"journal:{len(ENTRIES) + 1}: "):
        SessionJournal(path)


def test_entries_that_are_no_tree_are_refused(tmp_path: Path) -> None:
    lines = filled(tmp_path / "journal").read_bytes().splitlines(keepends=True)
    extra = b'{"kind":"pruned","node":%d}\n'
    for at, kept in enumerate(
        ([*lines, extra % 0], [*lines, extra % 99], lines[1:], [*lines[:1], *lines[2:]], [lines[0], *lines])
    ):
        path = tmp_path / f"wrong{at}"
        path.write_bytes(b"".join(kept))
        with pytest.raises(AgentCompileError):
            SessionJournal(path)


def test_a_folder_that_cannot_be_written_is_an_error_of_the_environment(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(AgentCompileError) as caught:
        SessionJournal(tmp_path / "file" / "journal")
    assert caught.value.exit_code == ExitCode.ENVIRONMENT


def test_a_disturbed_verdict_is_not_settled() -> None:
    assert TREE[2].settled
    assert not Node(id=1, parent=0, verdict=Disturbed(stage="measure")).settled
    assert not Node(id=1, parent=0, verdict=Cancelled(stage="measure")).settled
    assert not TREE[0].settled
    assert Evaluated(verdict=BROKEN).ns == math.inf
    assert Written(manifest="a", kernel="b").digest != Written(manifest="ab", kernel="").digest
