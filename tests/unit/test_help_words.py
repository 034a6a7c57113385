"""Every word of every help text is in a list that was read: a misspelt or unusual one is found at once."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.newcomer.helps import every, help_of

LIST = Path(__file__).parents[1] / "newcomer" / "words.txt"
OPTION = re.compile(r"(?<![\w-])--?[A-Za-z][\w-]*")
WORD = re.compile(r"(?<!\w)[A-Z]?[a-z]{2,}(?!\w)")


def words_of(text: str) -> set[str]:
    """The words of a help text of three letters or more, in lower case; names of options and metavars are none."""
    return {word.lower() for word in WORD.findall(OPTION.sub("", text)) if len(word) > 2}


def test_what_is_a_word() -> None:
    assert words_of("Where --top-k K is: a cuda:0 or qwen3, NAME.toml [default: --no-review] PyTorch") == {
        "where", "cuda", "toml", "default",
    }  # fmt: skip


def test_every_word_of_every_help_is_in_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    known = LIST.read_text(encoding="utf-8").split()
    assert known == sorted(set(known))
    helps = {" ".join(verb): words_of(help_of(verb)) for verb in every()}
    new = {f"{word} ({verb or 'agentcompile'})" for verb, words in helps.items() for word in words.difference(known)}
    assert new == set(), "look at each, then put what is right in tests/newcomer/words.txt"
    assert set(known) - set().union(*helps.values()) == set(), "words that no help has any more"
