"""A text that is far too long is refused by its beginning, whether it comes as a prompt or in a chat."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from agentcompile.errors import AgentCompileError
from agentcompile.runtime.request import tokens_of

INFO: Any = SimpleNamespace(name="a model", context=64, vocab=300)
LONG = "word " * 2_000_000


class Bytes:
    """A tokenizer whose tokens are bytes; it remembers how many characters it was given."""

    def __init__(self) -> None:
        self.read = 0

    def encode(self, text: str) -> list[int]:
        self.read += len(text)
        return list(text.encode())

    def template(self, messages: list[dict[str, str]]) -> list[int]:
        return self.encode("".join(f"<{one['role']}>{one['content']}" for one in messages))


@pytest.mark.parametrize(
    "prompt",
    [
        LONG,
        [{"role": "user", "content": LONG}],
        [
            {"role": "user", "content": "hello"},
            {"role": "assistant", "content": LONG},
            {"role": "user", "content": "?"},
        ],
        [{"role": "user", "content": "word"}, {"role": "assistant", "content": "word"}] * 100_000,
    ],
    ids=["text", "one message", "a message among others", "very many messages"],
)
def test_ten_megabytes_are_refused_after_some_of_them(prompt: Any) -> None:
    tokenizer: Any = Bytes()
    with pytest.raises(AgentCompileError, match="longer than the cache of 64 tokens"):
        tokens_of(INFO, tokenizer, prompt)
    assert tokenizer.read < 200_000


def test_a_chat_that_fits_is_rendered() -> None:
    tokenizer: Any = Bytes()
    assert bytes(list(tokens_of(INFO, tokenizer, [{"role": "user", "content": "hi"}]))).decode() == "<user>hi"
