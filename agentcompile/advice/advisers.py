"""The advisers and how the command line names them: ``none``, ``heuristic``, ``random:SEED``; and those that stand in
until a model has answered."""

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
    """Answers questions about regions, from the question alone: asked again, it says the same."""

    @property
    def label(self) -> str:
        """Who this is, for events and locks."""
        ...

    def advise(self, question: Question) -> Advice:
        """Order the candidates of one region, with hints, risks and a sentence for each of the head."""
        ...


@dataclass(frozen=True, slots=True)
class NoAdvice:
    """The space's own order."""

    label: str = "none"

    def advise(self, question: Question) -> Advice:
        """Nothing."""
        return Advice(label=self.label)


@dataclass(frozen=True, slots=True)
class RandomOrder:
    """A seeded shuffle, the same for the same region on every machine: what advice has to beat."""

    seed: int

    @property
    def label(self) -> str:
        """`random:SEED`."""
        return f"random:{self.seed}"

    def advise(self, question: Question) -> Advice:
        """A permutation that depends on the seed and the space alone."""
        ids = [candidate.id for candidate in question.candidates]
        random.Random(f"{self.seed}/{question.region.id}").shuffle(ids)
        return Advice(label=self.label, order=tuple(ids))


@dataclass(frozen=True, slots=True)
class Meanwhile:
    """What holds until a model, or a record of one, has answered, and where it says nothing: the heuristic's order."""

    label: str

    def advise(self, question: Question) -> Advice:
        """As `Heuristic` does."""
        return Heuristic().advise(question)


def _none(argument: str) -> Adviser | None:
    return None if argument else NoAdvice()


def _heuristic(argument: str) -> Adviser | None:
    return None if argument else Heuristic()


def _random(argument: str) -> Adviser | None:
    return RandomOrder(int(argument)) if argument.isascii() and argument.isdecimal() else None


def _openai(argument: str) -> Adviser | None:
    return Meanwhile(f"openai:{argument}") if argument else None


def _replay(argument: str) -> Adviser | None:
    return Meanwhile(f"replay:{argument}") if argument else None


ADVISERS: tuple[tuple[str, str, Callable[[str], Adviser | None]], ...] = (
    ("heuristic", "heuristic", _heuristic),
    ("none", "none", _none),
    ("random", "random:SEED", _random),
    ("openai", "openai:MODEL[@BASE_URL]", _openai),
    ("replay", "replay:DIR", _replay),
)
"""Name, usage, and what makes one of the text after the colon (None when that text is wrong)."""


def adviser_of(spec: str) -> Adviser:
    """The adviser that ``NAME`` or ``NAME:ARGUMENT`` names; raises `AgentCompileError` with the nearest name."""
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
