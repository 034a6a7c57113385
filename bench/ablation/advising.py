"""The advice that an arm gets on a recorded space: STRATEGY, or STRATEGY@ADVISER where the space has its question.

ADVISER is ``none`` (the default here), ``heuristic``, ``random`` (another order for each seed), ``worst`` (which knows
every time and says the opposite of it), ``replay:DIR`` (answers of a model that were recorded) or ``openai:MODEL@URL``,
which asks now and keeps every exchange in the folder of --record, so that the study can be repeated with ``replay:``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from agentcompile.advice.advisers import adviser_of
from agentcompile.advice.configure import client_of
from agentcompile.advice.counsel import Counsel
from agentcompile.advice.exchange import Cassette
from agentcompile.advice.prompt import prompt_of
from agentcompile.errors import AgentCompileError
from agentcompile.events import silent
from agentcompile.ir.advice import Advice, Question, SequenceCounts, Usage
from agentcompile.ir.trial import Trial
from agentcompile.options import resolve

from .compiles import Arm
from .spaces import RecordedSpace

NOBODY, WORST = "none", "worst"
_ASKED = ("replay:", "openai:")

_MISLED = 4
"""Points that the worst adviser proposes for each question."""

ConsultWith = Callable[[Sequence[Trial], tuple[str, ...], int], tuple[tuple[str, ...], ...] | None]
"""Asks a model what to try next, given all trials so far: see `agentcompile.search.strategy.Consult`."""


def arm_of(text: str) -> Arm:
    """Return the arm of a text; without an adviser, nobody advises."""
    strategy, _, adviser = text.partition("@")
    return Arm(strategy=strategy, adviser=adviser or NOBODY)


def folder_of(adviser: str) -> Path | None:
    """Return the folder of recorded answers that an adviser names; None where it names none."""
    return Path(adviser.partition(":")[2]) if adviser.startswith("replay:") else None


def check(adviser: str, record: Path | None) -> None:
    """Refuse an adviser that cannot be asked.

    Raises:
        AgentCompileError: there is no such adviser, its folder holds no exchange, or a model would be asked whose
            answers nobody records (usage).
    """
    folder = folder_of(adviser)
    if folder is not None:
        if not len(Cassette(folder)):
            hint = "record answers with an arm …@openai:MODEL@URL and --record DIR"
            raise AgentCompileError(f"@{adviser}: holds no exchange", hint=hint)
    elif adviser.startswith("openai:"):
        if record is None:
            hint = "add --record DIR; later runs then use @replay:DIR"
            raise AgentCompileError(f"@{adviser}: what a model answers must be recorded", hint=hint)
        resolve({"advisor": adviser})
    elif adviser not in ("random", WORST):
        adviser_of(adviser)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAnswers:
    """Whose answers a search used, and how legal what they proposed was."""

    model: str
    """Who answered, as it was recorded."""
    consulted: int = 0
    """Answers to questions in the middle of the search."""
    fallbacks: int = 0
    """Those of them that proposed nothing legal, so that the search went on as without a model."""
    sequences: SequenceCounts = SequenceCounts()  # noqa: RUF009 - frozen
    """How legal the sequences of all answers were, of the first one too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advising:
    """The advice about a space, who is asked in the middle of a search, and what the answers that were heard took."""

    advice: Advice
    consult: ConsultWith | None = None
    used: Callable[[], Usage] = Usage
    answers: Callable[[], ModelAnswers | None] = lambda: None


def advised(space: RecordedSpace, adviser: str, seed: int, record: str) -> Advising:
    """Return what an adviser says about a space.

    Raises:
        AgentCompileError: the space has no question, or there is no answer to it (usage).
    """
    if adviser == NOBODY:
        return Advising(advice=Advice(label=NOBODY))
    if adviser == WORST:
        return _misled(space)
    if space.question is None:
        hint = "record the space with `agentcompile bench spaces`, which writes its question, or leave the adviser out"
        raise AgentCompileError(f"@{adviser}: {space.name} has no question that could be asked", hint=hint)
    if adviser == "random":
        return Advising(advice=adviser_of(f"random:{seed}").advise(space.question))
    if adviser.startswith(_ASKED):
        return _counselled(space, space.question, adviser, record)
    return Advising(advice=_steady(space, space.question, adviser))


def _misled(space: RecordedSpace) -> Advising:
    """Return the worst advice that there can be: failures first, then the slowest, when asked in a search too."""
    times = space.times_ns
    order = sorted((one.id for one in space.candidates), key=lambda id: -times.get(id, math.inf))

    def consult(trials: Sequence[Trial], focus: tuple[str, ...], number: int) -> tuple[tuple[str, ...], ...]:
        tried = {trial.candidate.id for trial in trials}
        return tuple((id,) for id in order if id not in tried)[:_MISLED]

    return Advising(advice=Advice(label=WORST, order=tuple(order)), consult=consult)


_KEPT: dict[tuple[str, str], Advice] = {}


def _steady(space: RecordedSpace, asked: Question, adviser: str) -> Advice:
    """Return the advice of an adviser that says the same for every seed; it takes a second on a large space."""
    key = (space.digest, adviser)
    if key not in _KEPT:
        _KEPT[key] = adviser_of(adviser).advise(asked)
    return _KEPT[key]


def _counselled(space: RecordedSpace, asked: Question, adviser: str, record: str) -> Advising:
    folder, options = folder_of(adviser), resolve({"advisor": adviser}).options
    cassette = Cassette(folder or Path(record))
    counsel = Counsel(
        {asked.region.id: (asked, _steady(space, asked, "heuristic"))},
        asks=client_of(options, silent, Usage()) if folder is None else None,
        recalls=cassette,
        keeps=cassette if folder is None else None,
    )
    counsel.begin([prompt_of([asked])])
    counsel.wait(options.advisor_seconds)
    if not counsel.digests:
        hint = f"record an answer: --strategies 'halving@openai:MODEL@URL' --record {cassette.folder.name}"
        raise AgentCompileError(f"@{adviser}: nothing is recorded about {space.name}, or nobody answered", hint=hint)

    consulted: dict[tuple[tuple[str, ...], int], Advice] = {}

    def consult(trials: Sequence[Trial], focus: tuple[str, ...], number: int) -> tuple[tuple[str, ...], ...] | None:
        found = counsel.consult(replace(asked, history=tuple(trials), focus=focus, round=number))
        if found is None:
            return None
        consulted[focus, number] = found
        return tuple(sequence.points for sequence in found.sequences)

    def used() -> Usage:
        known = cassette.exchanges
        heard = [known[digest].usage for digest in counsel.digests]
        return replace(sum(heard, Usage()), calls=len(heard))

    def answers() -> ModelAnswers:
        known = cassette.exchanges
        who = {known[digest].answered_by or known[digest].model for digest in counsel.digests}
        counts = (one.sequence_counts for one in (advice, *consulted.values()))
        return ModelAnswers(
            model=", ".join(sorted(who)),
            consulted=len(consulted),
            fallbacks=sum(not one.sequences for one in consulted.values()),
            sequences=sum(counts, SequenceCounts()),
        )

    advice = counsel.advice(asked.region.id)
    return Advising(advice=advice, consult=consult, used=used, answers=answers)
