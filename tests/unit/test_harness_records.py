"""The command that a committed result names: no folder of whoever ran it."""

from __future__ import annotations

import pytest

from bench.harness.records import nameless


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        ("preset:sample", "preset:sample"),
        ("/home/me/models/llama", "llama"),
        ("--out=/home/me/x.json", "--out=x.json"),
        ("halving;mcts@none", "halving;mcts@none"),
        ("halving@replay:/home/me/answers;mcts@replay:a/b", "halving@replay:answers;mcts@replay:b"),
        ("a@openai:m@http://127.0.0.1:1/v1;b@heuristic", "a@openai:m@http://127.0.0.1:1/v1;b@heuristic"),
        ("--strategies=a@replay:/home/me/answers", "--strategies=a@replay:answers"),
        ("http://127.0.0.1:1/v1", "http://127.0.0.1:1/v1"),
    ],
)
def test_paths_are_cut_to_their_last_part_and_addresses_stay(word: str, shown: str) -> None:
    assert nameless([word]) == [shown]
