"""The advisers by their command-line names: ``none``, ``heuristic``, ``random:SEED``, ``openai:…``, ``replay:…``.

The last two ask a language model, or read its recorded answers; `Meanwhile` gives the order until those arrive.
"""

from __future__ import annotations

import difflib
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from agentcompile.advice.heuristic import Heuristic
from agentcompile.errors import AgentCompileError
from agentcompile.ir.advice import Advice, Question


class Adviser(Protocol):
    """An adviser that answers from the question alone: the same question always gets the same advice."""

    @property
    def label(self) -> str:
        """The adviser's name in events and locks."""
        ...

    def advise(self, question: Question) -> Advice:
        """Order the candidates of one region, with hints, risks and a sentence for each of the first few candidates."""
        ...


@dataclass(frozen=True, slots=True)
class NoAdvice:
    """An adviser that keeps the space's own order."""

    label: str = "none"

    def advise(self, question: Question) -> Advice:
        """Return empty advice."""
        return Advice(label=self.label)


@dataclass(frozen=True, slots=True)
class RandomAdviser:
    """A seeded shuffle, the same for the same region on every machine: the baseline that advice has to beat."""

    seed: int

    @property
    def label(self) -> str:
        """The label ``random:SEED``."""
        return f"random:{self.seed}"

    def advise(self, question: Question) -> Advice:
        """Return a permutation of the candidates that depends on the seed and the space alone."""
        ids = [candidate.id for candidate in question.candidates]
        random.Random(f"{self.seed}/{question.region.id}").shuffle(ids)
        return Advice(label=self.label, order=tuple(ids))


@dataclass(frozen=True, slots=True)
class Meanwhile:
    """The heuristic's order, used until a model or a record of one has answered, and where the answer says nothing."""

    label: str

    def advise(self, question: Question) -> Advice:
        """Return what `Heuristic` advises."""
        return Heuristic().advise(question)


def _random(argument: str) -> Adviser | None:
    return RandomAdviser(int(argument)) if argument.isascii() and argument.isdecimal() else None


ADVISERS: tuple[tuple[str, str, Callable[[str], Adviser | None]], ...] = (
    ("heuristic", "heuristic", lambda argument: None if argument else Heuristic()),
    ("none", "none", lambda argument: None if argument else NoAdvice()),
    ("random", "random:SEED", _random),
    ("openai", "openai:MODEL[@BASE_URL]", lambda argument: Meanwhile(f"openai:{argument}") if argument else None),
    ("replay", "replay:DIR", lambda argument: Meanwhile(f"replay:{argument}") if argument else None),
)
"""Name, usage, and a function that makes the adviser from the text after the colon (None when that text is invalid)."""


def adviser_of(spec: str) -> Adviser:
    """Return the adviser that ``NAME`` or ``NAME:ARGUMENT`` names.

    Raises:
        AgentCompileError: no adviser has that name (the hint suggests the nearest one), or the argument is invalid.
    """
    name, _, argument = spec.partition(":")
    usages = ", ".join(usage for _, usage, _ in ADVISERS)
    for known, usage, make in ADVISERS:
        if known == name:
            if adviser := make(argument):
                return adviser
            raise AgentCompileError(f"--advisor {spec}: it is written {usage}", hint=f"advisers: {usages}")
    near = difflib.get_close_matches(name, [known for known, _, _ in ADVISERS], n=1)
    meant = f"did you mean {near[0]}? " if near else ""
    raise AgentCompileError(f"--advisor {spec}: no such adviser", hint=f"{meant}advisers: {usages}")
