"""How long a question may be for the server that answers it, from what the server refused or left unfinished.

In: refusals of a question as too long, in the wordings of common servers, answers that end early, or a size that a
setting names. Out: whether a question fits and how long its answer may be. Without any of them every question fits.
What is learnt is kept for a run.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from typing import Protocol

from agentcompile.advice.detail import SHORTER
from agentcompile.advice.ledger import LEAST_ANSWER
from agentcompile.advice.prompt import Prompt, prompt_of
from agentcompile.advice.wire import Reply

_NEVER = (401, 402, 403, 404)
"""Statuses that are about the key or the model, whatever the text says."""
_RULES, _DATA = 3.5, 1.8
"""Fewest characters a token of rules and of data: 3.8 and 1.9 with a vocabulary of 49,152, more with larger ones."""
_MARGIN = 64
"""Tokens that the server's chat template, and what one way of asking adds to the rules, may take."""
_SHRINK = 0.8
"""What is left of the room after a refusal that says nothing new."""
_MOST = 1 << 30
_NUMBER = r"(\d{3,9})(?!\d)"
_TOO_LONG = re.compile(
    r"context[ _-](length|size|window)"
    r"|\b(prompt|input|inputs|message|messages|request|request entity)\W{1,3}(\S+ ){0,6}(is |are )?too (long|large)"
    r"|inputs\W{1,3}(tokens \+ \W?max_new_tokens\W |)must (be <=|have less than)"
    r"|exceeds? (the )?(maximum|max|limit)\b.{0,30}tokens"
    r"|reduce the length",
    re.IGNORECASE,
)
_LIMITS = tuple(
    re.compile(form, re.IGNORECASE)
    for form in (
        rf'"n_ctx"\W+{_NUMBER}',
        rf"context (?:length|size|window)\D{{0,24}}{_NUMBER}",
        rf"{_NUMBER} maximum context",
        rf"must (?:be <=|have less than) {_NUMBER}",
        rf"> {_NUMBER} maximum",
        rf"tokens allowed \({_NUMBER}",
        rf"\blimit(?: of|:)? {_NUMBER}",
    )
)
"""Where servers say how many tokens they hold, the clearest first."""
_LENGTHS = tuple(
    re.compile(form, re.IGNORECASE)
    for form in (
        rf'"n_prompt_tokens"\W+{_NUMBER}',
        rf"{_NUMBER} (?:in the messages|in your prompt|input tokens|tokens from the input|\W?inputs\W? tokens)",
        rf"(?:request|prompt|input|tokens) \({_NUMBER}",
        rf"(?:resulted in|given:|contains|too long:) {_NUMBER}",
    )
)
"""Where they say how many tokens the question has."""


class Sized(Protocol):
    """A question, as far as its length goes."""

    @property
    def system(self) -> str:
        """The first message."""
        ...

    @property
    def user(self) -> str:
        """The second message."""
        ...

    @property
    def answers(self) -> int:
        """How many answers it asks for, each of which needs room."""
        ...


def is_too_long(status: int, text: str) -> bool:
    """Return whether a response says that the question is too long for the server's context."""
    return status != 200 and status not in _NEVER and _TOO_LONG.search(text) is not None


def halves(prompt: Prompt) -> tuple[Prompt, Prompt]:
    """Return two questions about half of the regions each."""
    questions = [asked.question for asked in prompt.asked]
    middle = (len(questions) + 1) // 2
    return prompt_of(questions[:middle]), prompt_of(questions[middle:])


class Room:
    """The room that a server has for a question and its answer; safe to use from several threads."""

    def __init__(self, tokens: int = 0) -> None:
        """Begin with a context of that many tokens, which question and answer share; 0: not known."""
        self._tokens = tokens
        self._scale = 1.0
        self._lock = threading.Lock()
        self.said = ""
        """The last refusal that something was learnt from."""

    @property
    def tokens(self) -> int:
        """The tokens that the server holds, as far as known; 0 before anything is."""
        return self._tokens

    def fits(self, prompt: Sized) -> bool:
        """Return whether a question leaves room for its answer: a quarter of the context, and some for each region."""
        tokens = self._tokens
        return not tokens or self.length(prompt) + max(tokens // 4, LEAST_ANSWER * prompt.answers) <= tokens

    def length(self, prompt: Sized) -> int:
        """Return an estimate of a question's tokens, rather too many than too few."""
        return round((len(prompt.system) / _RULES + len(prompt.user) / _DATA) * self._scale) + _MARGIN

    def answer(self, prompt: Sized) -> int:
        """Return the most tokens of an answer to a question; 0 where it does not fit."""
        tokens = self._tokens
        if not tokens:
            return _MOST
        return max(tokens - self.length(prompt), 0) if self.fits(prompt) else 0

    def cut(self, prompt: Prompt) -> Prompt | None:
        """Return a question about one region, cut to what fits; None when even the shortest is too long."""
        questions = [asked.question for asked in prompt.asked]
        shorter = (prompt_of(questions, detail) for detail in SHORTER)
        return prompt if self.fits(prompt) else next(filter(self.fits, shorter), None)

    def refused(self, prompt: Sized, answer: int, said: str) -> None:
        """Learn from a refusal of a question with room for `answer` tokens; `said` is what the server said.

        Nothing is learnt from a question that was sent before a smaller room was known. Otherwise the room gets
        smaller with every refusal, whatever the server says, so that asking ends.
        """
        with self._lock:
            if answer > self.answer(prompt):
                return
            self.said = said
            found, length = _number(_LIMITS, said), _number(_LENGTHS, said)
            estimate = self.length(prompt)
            if length and (length > estimate or (not self._tokens and "at least" not in said)):
                self._scale *= min(max(length / estimate, 0.4), 4.0)
            if not found or found > self.length(prompt) + answer:  # a size that does not explain the refusal
                found = _MOST
            self._tokens = max(min(found, round(self._tokens * _SHRINK) or self.length(prompt)), 1)

    def ran_out(self, prompt: Prompt, reply: Reply) -> bool:
        """Learn from an answer that was cut off; return whether a shorter question may get a whole one.

        A server that holds the question may end the answer where its context is full, before it has the tokens that it
        was allowed: then both together are what it holds.
        """
        used = reply.usage
        if used is None or not used.tokens or used.completion_tokens >= reply.allowed:
            return False
        with self._lock:
            if self._tokens and used.tokens > self._tokens * _SHRINK:
                return False
            self.said = f"the answer was cut off after {used.completion_tokens} tokens"
            self._scale *= min(max(used.prompt_tokens / self.length(prompt), 0.4), 4.0)
            self._tokens = used.tokens
        return True


def _number(forms: Sequence[re.Pattern[str]], text: str) -> int:
    return next((int(found[1]) for form in forms if (found := form.search(text)) is not None), 0)
