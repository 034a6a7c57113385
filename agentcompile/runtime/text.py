"""Conversion of token ids to text as they come: whole characters only; a possible stop string is held back."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from agentcompile.errors import AgentCompileError

_BROKEN = "\ufffd"


class Tokenizer:
    """The checkpoint's tokenizer.json; `template` renders chat messages as the checkpoint asks."""

    def __init__(self, directory: Path) -> None:
        from tokenizers import Tokenizer as Backend

        path = directory / "tokenizer.json"
        if not path.is_file():
            raise AgentCompileError(f"{path}: there is no tokenizer", hint="pass token ids instead of text")
        try:
            self._backend: Any = Backend.from_file(str(path))
        except Exception as error:  # the library raises a bare Exception for a bad file
            raise AgentCompileError(f"{path}: not a tokenizer ({error})", hint="copy the file again") from error
        self._directory = directory

    def encode(self, text: str) -> list[int]:
        """Return the token ids of `text`, with the special tokens that the checkpoint adds."""
        return [int(i) for i in self._backend.encode(text).ids]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of `ids` without special tokens."""
        return str(self._backend.decode(list(ids), skip_special_tokens=True))

    def template(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """Return the token ids of a conversation in the checkpoint's chat template, ready for the assistant's turn.

        Raises:
            AgentCompileError: the tokenizer has no chat template, or its template refuses the messages (usage).
        """
        from jinja2 import TemplateError

        try:
            rendered = self._templating.apply_chat_template(
                list(messages), add_generation_prompt=True, return_dict=True
            )
        except (TemplateError, TypeError) as error:  # `raise_exception` in a template, or what it cannot join
            text = f"{self._directory}: the chat template refuses these messages: {error}"
            raise AgentCompileError(text, hint="give roles in the order that this model was trained with") from error
        return [int(i) for i in rendered["input_ids"]]

    @cached_property
    def _templating(self) -> Any:
        """Transformers' tokenizer, which knows the template; reading it takes longer than a short answer.

        Raises:
            AgentCompileError: it cannot be read, or has no chat template (usage).
        """
        from transformers import AutoTokenizer

        try:
            tokenizer: Any = AutoTokenizer.from_pretrained(str(self._directory), local_files_only=True)
        except (OSError, ValueError, KeyError, ImportError) as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            text = f"{self._directory}: transformers cannot read the tokenizer: {reason}"
            raise AgentCompileError(text, hint="download tokenizer_config.json again") from error
        if not tokenizer.chat_template:
            hint = "pass the prompt as text: this is a base model"
            raise AgentCompileError(f"{self._directory}: the tokenizer has no chat template", hint=hint)
        return tokenizer


class TextStream:
    """A converter of growing token ids into text; decoding restarts at whole characters: it takes linear time."""

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()) -> None:
        self._tokenizer = tokenizer
        self._stop = tuple(s for s in stop if s)
        self._ids: list[int] = []
        self._start = 0
        self._shown = ""
        self._held = ""
        self.stopped = False  # whether a stop string was found; no text after it is returned

    def push(self, ids: Sequence[int]) -> str:
        """Add ids and return the text that is certain by now."""
        if self.stopped:
            return ""
        self._ids += ids
        text = self._tokenizer.decode(self._ids[self._start :])
        if text.endswith(_BROKEN):  # the middle of a character: wait for its other bytes
            return ""
        piece = text[len(self._shown) :]
        # Keep a little context before the next piece: some decoders join words by what stands before.
        self._start = max(self._start, len(self._ids) - 8)
        self._shown = self._tokenizer.decode(self._ids[self._start :])
        return self._release(piece)

    def finish(self) -> str:
        """Return the text that was held back."""
        if self.stopped:
            return ""
        text = self._tokenizer.decode(self._ids[self._start :])
        piece = self._held + text[len(self._shown) :]
        self._held, self._shown = "", text
        return self._cut(piece)

    def _release(self, piece: str) -> str:
        text = self._cut(self._held + piece)
        if self.stopped:
            self._held = ""
            return text
        hold = max((_overlap(text, s) for s in self._stop), default=0)
        self._held = text[len(text) - hold :]
        return text[: len(text) - hold]

    def _cut(self, text: str) -> str:
        ends = [at for s in self._stop if (at := text.find(s)) >= 0]
        if not ends:
            return text
        self.stopped = True
        return text[: min(ends)]


def push(stream: TextStream, tokens: Sequence[int], stop: Sequence[str]) -> tuple[str, int]:
    """Return the text of `tokens` and how many were used: with stop strings, up to the one that completes one."""
    if not stop:
        return stream.push(tokens), len(tokens)
    text = ""
    for pushed, token in enumerate(tokens, 1):
        text += stream.push((token,))
        if stream.stopped:
            return text, pushed
    return text, len(tokens)


def _overlap(text: str, stop: str) -> int:
    """Return the number of characters at the end of `text` that could be the start of `stop`."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
