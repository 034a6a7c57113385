"""What people read of a node: its state, and how it compares with the incumbent."""

from __future__ import annotations

import json

import pytest

from agentcompile.agents.tree import Node
from agentcompile.agents.views import faster, state_of
from agentcompile.ir.attempt import Written
from tests.unit.runs import measured


def node(feedback: dict[str, object]) -> Node:
    written = Written(manifest="m", kernel="k")
    return Node(id=1, parent=0, written=written, verdict=measured(), ns=500.0, feedback=json.dumps(feedback))


@pytest.mark.parametrize(
    ("feedback", "word"),
    [
        ({"admissible": True}, "admissible"),
        ({"admissible": True, "contended": True}, "admissible, contended"),
        ({"admissible": False, "contended": True}, "measured"),
    ],
)
def test_an_admissible_kernel_that_was_timed_beside_others_says_so(feedback: dict[str, object], word: str) -> None:
    assert state_of(node(feedback))[1] == word


def test_the_ratio_is_that_of_the_same_rounds_where_there_is_one() -> None:
    assert faster(node({"beside_incumbent": {"speedup": 1.37}}), 1000.0) == "1.37×"
    assert faster(node({"beside_incumbent": None}), 1000.0) == "2.00×"
    assert faster(node({}), 1000.0) == "2.00×"
