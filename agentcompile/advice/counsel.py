"""Advice during a search: a model is asked in the background, and its answers order the remaining candidates.

In: questions with the heuristic's advice, and optionally somebody to ask. Out: the current advice for each region.
Answers are taken only on the caller's thread, when it asks for advice; nothing blocks unless `wait` is called.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from agentcompile.advice.answer import Reading
from agentcompile.advice.asked import PromptRegion
from agentcompile.advice.claims import measured
from agentcompile.advice.client import Unanswered
from agentcompile.advice.exchange import Answered, Cassette, Exchange
from agentcompile.advice.prompt import Prompt, prompt_of
from agentcompile.errors import AgentCompileError
from agentcompile.events import AdviceMissed, AdviceTaken, ClaimSettled, Consulted, Emit, silent
from agentcompile.ir.advice import Advice, Question, SequenceCounts
from agentcompile.ir.template import Candidate
from agentcompile.ir.trial import Trial

ALONE = 5
"""Regions that get a request of their own: those that move the most bytes."""
TOGETHER = 16
"""Most regions in one shared request."""
_HEAD = 3
_UNNAMED = 2.0
"""Distance of a value that no hint names, counted in places behind the last hinted value."""


class PromptAnswerer(Protocol):
    """A client that answers prompts: a language model, recorded answers, or a script in tests."""

    def ask(self, prompt: Prompt) -> Answered | Unanswered:
        """Answer a prompt, or say why not; called from several threads."""
        ...


def prompts_of(questions: Sequence[Question], hot: Collection[str]) -> tuple[Prompt, ...]:
    """Return the prompts about a model: one each for the regions that move the most bytes, the others in groups.

    The `hot` regions come first. A region with a single candidate is left out, since there is nothing to order.
    """
    open = [question for question in questions if len(question.candidates) > 1]
    open.sort(key=lambda question: (question.region.id not in hot, -_moved(question), question.region.id))
    alone, rest = open[:ALONE], open[ALONE:]
    groups = [[question] for question in alone]
    groups += [rest[at : at + TOGETHER] for at in range(0, len(rest), TOGETHER)]
    return tuple(prompt_of(group) for group in groups)


def _moved(question: Question) -> int:
    return question.region.cost.bytes * max(len(question.region.sites), 1)


def arranged(advice: Advice, base: Advice, candidates: Sequence[Candidate]) -> Advice:
    """Return `advice` with an order of all `candidates`: its ranking, its sequences, its hints, ties as in `base`.

    Of the sequences come first where they end, in their order, because that is what they were proposed for; then what
    lies on the way, from the end backwards, because later points hold more of the proposed changes.
    """
    own = {candidate.id for candidate in candidates}
    ends = [sequence.points[-1] for sequence in advice.sequences]
    between = [id for sequence in advice.sequences for id in sequence.points[-2::-1]]
    named = [id for id in dict.fromkeys((*advice.order, *ends, *between)) if id in own]
    ranked = set(named)
    hints = {(hint.template, hint.param): hint.values for hint in advice.hints}
    hinted = {template for template, _ in hints}
    rest = [candidate for candidate in base.sorted(candidates) if candidate.id not in ranked]
    if hints:
        at = {candidate.id: place for place, candidate in enumerate(rest)}
        rest.sort(key=lambda candidate: (_away(candidate, hints, hinted), at[candidate.id]))
    return replace(advice, order=(*named, *(candidate.id for candidate in rest)))


def _away(candidate: Candidate, hints: dict[tuple[str, str], tuple[int | str, ...]], hinted: set[str]) -> float:
    """Return how far a candidate is from the hinted values, summed over its template's parameters.

    The distance is infinite for a template without hints, so that it sorts after every template with hints.
    """
    if candidate.template not in hinted:
        return float("inf")
    total = 0.0
    for name, value in candidate.params:
        values = hints.get((candidate.template, name))
        if values is not None:
            total += values.index(value) if value in values else len(values) - 1 + _UNNAMED
    return total


class Counsel:
    """Advice about every region of a run.

    Close it, or use it in a `with` block; its threads end with the process.
    """

    def __init__(
        self,
        first: Mapping[str, tuple[Question, Advice]],
        *,
        asks: PromptAnswerer | None = None,
        recalls: Cassette | None = None,
        keeps: Cassette | None = None,
        tell: Emit = silent,
    ) -> None:
        """Create a counsel from `first`, the question and the initial advice by region.

        `recalls` is searched before `asks` is asked; `keeps` stores every exchange that advice was taken from.
        """
        self._first = dict(first)
        self._now = {region: advice for region, (_, advice) in first.items()}
        self.asks, self._recalls, self._keeps, self._tell = asks, recalls, keeps, tell
        self._came: queue.SimpleQueue[tuple[Prompt, Answered | Unanswered | AgentCompileError]] = queue.SimpleQueue()
        self.waiting = 0
        """The number of requests that are still open."""
        self._closed = False
        self._exchanges: dict[str, Exchange] = {}
        self._consulted: dict[str, Answered | Unanswered] = {}
        """What came of the questions in the middle of a search, by key."""

    def __enter__(self) -> Counsel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def digests(self) -> tuple[str, ...]:
        """The digests of the exchanges that advice was taken from, sorted."""
        return tuple(sorted(self._exchanges))

    def begin(self, prompts: Sequence[Prompt]) -> None:
        """Take recorded answers, and ask about all other regions at once, one background thread a prompt."""
        for prompt in prompts:
            left = tuple(asked for asked in prompt.asked if not self._recall(prompt, asked.question))
            if not left:
                continue
            if self.asks is None:
                self._tell(
                    AdviceMissed(
                        regions=tuple(asked.question.region.id for asked in left), reason="nothing is recorded about it"
                    )
                )
                continue
            fresh = prompt if len(left) == len(prompt.asked) else prompt_of([asked.question for asked in left])
            self._start(self.asks, fresh)

    def _start(self, asks: PromptAnswerer, prompt: Prompt) -> None:
        self.waiting += 1
        threading.Thread(target=self._ask, args=(asks, prompt), daemon=True, name="adviser").start()

    def advice(self, region: str) -> Advice:
        """Return the current advice for a region; KeyError for a region outside the run."""
        self.take()
        return self._now[region]

    @property
    def consultable(self) -> bool:
        """Whether anybody, or anything recorded, answers a question in the middle of a search."""
        return self.asks is not None or self._recalls is not None

    def consult(self, question: Question, *, asks: bool = True) -> Advice | None:
        """Ask about one region now, wait for the answer and return it; None when there is none.

        What is recorded about the same focus is taken first, so that a resumed search gets the same answer; a question
        that got no answer is not asked again. Without `asks` only what is recorded counts.

        Raises:
            AgentCompileError: the exchange cannot be written (environment).
        """
        prompt = prompt_of([question])
        (asked,) = prompt.asked
        if asked.key not in self._consulted:
            found: Answered | Unanswered | None = self._recorded(asked)
            if found is None and not asks:
                return None
            self._consulted[asked.key] = found = found or self._answer_now(prompt)
            self._tell_of(question, found)
        answered = self._consulted[asked.key]
        if isinstance(answered, Unanswered):
            return None
        return answered.reading.advice.get(question.region.id, Advice(label=""))

    def _recorded(self, asked: PromptRegion) -> Answered | None:
        cassettes = (one for one in (self._recalls, self._keeps) if one is not None)
        return next((found for one in cassettes if (found := one.recall(asked)) is not None), None)

    def _answer_now(self, prompt: Prompt) -> Answered | Unanswered:
        if self.asks is None:
            return Unanswered(reason="nothing is recorded about it")
        got = _answer(self.asks, prompt)
        if isinstance(got, Answered) and self._keeps is not None:
            self._keeps.keep(got.exchange)
        return got

    def _tell_of(self, question: Question, found: Answered | Unanswered) -> None:
        region, focus = question.region.id, question.focus[0] if question.focus else ""
        if isinstance(found, Unanswered):
            self._tell(Consulted(region=region, candidate=focus, round=question.round, reason=found.reason))
            return
        self._exchanges[found.exchange.digest] = found.exchange
        advice = found.reading.advice.get(region)
        counts = advice.sequence_counts if advice is not None else SequenceCounts()
        self._tell(
            Consulted(
                region=region,
                candidate=focus,
                round=question.round,
                exchange=found.exchange.digest,
                full=counts.full,
                partial=counts.partial,
                dropped=counts.dropped,
            )
        )

    def take(self) -> None:
        """Take every answer that has arrived, without blocking."""
        while True:
            try:
                prompt, got = self._came.get_nowait()
            except queue.Empty:
                return
            self._took(prompt, got)

    def wait(self, seconds: float) -> None:
        """Take answers until all have arrived, or until `seconds` have passed."""
        end = time.monotonic() + seconds
        while self.waiting and (left := end - time.monotonic()) > 0:
            try:
                prompt, got = self._came.get(timeout=left)
            except queue.Empty:
                return
            self._took(prompt, got)

    def settle(self, trials: Mapping[str, Sequence[Trial]]) -> None:
        """Compare open claims with the trials of their region, and report each claim whose standing changed."""
        for region, advice in self._now.items():
            claims = tuple(measured(claim, trials.get(region, ())) for claim in advice.claims)
            for before, now in zip(advice.claims, claims, strict=True):
                if now.standing != before.standing:
                    self._tell(ClaimSettled(region=region, claim=now))
            if claims != advice.claims:
                self._now[region] = replace(advice, claims=claims)

    def close(self) -> None:
        """Take the answers that have arrived; later ones are dropped."""
        self._closed = True
        self.take()
        if self.waiting:
            self._tell(
                AdviceMissed(regions=(), reason=f"{self.waiting} requests were still open when the search ended")
            )
            self.waiting = 0

    def _ask(self, asks: PromptAnswerer, prompt: Prompt) -> None:
        try:
            self._came.put((prompt, _answer(asks, prompt)))
        except AgentCompileError as error:  # for example a full disk: raised again when the answer is taken
            self._came.put((prompt, error))

    def _recall(self, prompt: Prompt, question: Question) -> bool:
        asked = next(asked for asked in prompt.asked if asked.question is question)
        found = self._recalls.recall(asked) if self._recalls is not None else None
        if found is None:
            return False
        advice = found.reading.advice.get(question.region.id)
        if advice is None:
            self._tell(
                AdviceMissed(
                    regions=(question.region.id,),
                    reason="what is recorded says nothing about it",
                    refused=found.reading.refused,
                )
            )
        else:
            self._hold(question.region.id, advice, found.exchange)
        return True

    def _took(self, prompt: Prompt, got: Answered | Unanswered | AgentCompileError) -> None:
        self.waiting = max(self.waiting - 1, 0)
        if isinstance(got, AgentCompileError):
            raise got
        if isinstance(got, Unanswered):
            if got.instead and self.asks is not None and not self._closed:
                for part in got.instead:
                    self._start(self.asks, part)
                return
            self._tell(AdviceMissed(regions=prompt.regions, reason=got.reason))
            return
        if self._keeps is not None:
            self._keeps.keep(got.exchange)
        reading: Reading = got.reading
        silent = tuple(region for region in prompt.regions if region not in reading.advice)
        if reading.refused or silent:
            self._tell(AdviceMissed(regions=silent, reason="parts of an answer were refused", refused=reading.refused))
        for region, advice in reading.advice.items():
            self._hold(region, advice, got.exchange)

    def _hold(self, region: str, advice: Advice, exchange: Exchange) -> None:
        if region not in self._first:
            return
        question, first = self._first[region]
        if self._keeps is not None and exchange.digest not in self._keeps.exchanges:
            self._keeps.keep(exchange)
        self._exchanges[exchange.digest] = exchange
        self._now[region] = arranged(advice, first, question.candidates)
        now = self._now[region]
        head = tuple(candidate.label for candidate in now.sorted(question.candidates)[:_HEAD])
        ranked = replace(now, order=now.order[: len(now.rationales)])
        self._tell(AdviceTaken(region=region, exchange=exchange.digest, advice=ranked, head=head))


def _answer(asks: PromptAnswerer, prompt: Prompt) -> Answered | Unanswered:
    """Ask; an adviser that fails in any way is one that said nothing.

    Raises:
        AgentCompileError: for example, the disk is full.
    """
    try:
        return asks.ask(prompt)
    except AgentCompileError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever it is
        return Unanswered(reason=f"{type(error).__name__} while asking")
