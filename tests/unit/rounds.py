"""A space with one summit, an evaluator and a scripted model for tests of the search in rounds."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentcompile.ir.advice import Advice
from agentcompile.ir.search_events import ProposalNode
from agentcompile.ir.template import Candidate
from agentcompile.ir.trial import BuildFailed, Trial
from agentcompile.search import Budget, SearchTask
from agentcompile.search.course import Explorer
from agentcompile.search.llm_rounds import LlmRounds
from agentcompile.search.strategy import Consult
from tests.unit.fakes import measured
from tests.unit.test_mcts import SPACE, space_of

WIDE = space_of(range(1, 9), range(1, 9), range(1, 9))
"""512 points."""
ORDER = Advice(label="some", order=tuple(one.id for one in random.Random(1).sample(WIDE, len(WIDE))))
BUDGET = Budget(trials=120, seed=3, batch=8)


def values(candidate: Candidate) -> list[int]:
    return [int(value) for _, value in candidate.params]


def smooth() -> dict[str, float]:
    """Speeds of `WIDE` with one summit, at 7, 2, 5; no two are the same."""
    weights = zip((7, 2, 5), (0.1, 0.0731, 0.0417), strict=True)
    slow = [(at, weight) for at, weight in weights]
    return {
        one.label: 0.5 - sum(weight * abs(value - at) for value, (at, weight) in zip(values(one), slow, strict=True))
        for one in WIDE
    }


@dataclass(kw_only=True)
class AttemptEvaluator:
    """Answers by a table; noise depends on candidate and rounds alone, and some fail when they are timed again."""

    table: Mapping[str, float]
    noise: float = 0.0
    crash: Mapping[str, int] = field(default_factory=dict[str, int])
    """Labels that fail when they are timed for longer than so many rounds."""
    log: list[Any] = field(default_factory=list)

    def evaluate(self, candidates: Sequence[Candidate], rounds: int) -> list[Trial]:
        self.log.append((rounds, tuple(one.label for one in candidates)))
        return [self._trial(one, rounds) for one in candidates]

    def _trial(self, one: Candidate, rounds: int) -> Trial:
        if one.label not in self.table or rounds > self.crash.get(one.label, rounds):
            return Trial(candidate=one, source="", verdict=BuildFailed(log="error: no such thing"))
        noise = random.Random(f"{one.label} {rounds}").gauss(0, self.noise) / math.sqrt(rounds)
        return measured(one, self.table[one.label] + noise, rounds=rounds)


@dataclass(kw_only=True)
class Search:
    """A search to its end: the nodes of each proposal with its rounds, and all trials."""

    proposals: list[tuple[int, tuple[ProposalNode, ...]]]
    trials: list[Trial]

    @property
    def nodes(self) -> list[ProposalNode]:
        """What was proposed for the first time."""
        return [node for _, nodes in self.proposals for node in nodes if node.origin != "timed-again"]

    @property
    def rounds(self) -> list[list[ProposalNode]]:
        """The proposals of candidates that were not tried before."""
        return [list(nodes) for _, nodes in self.proposals if nodes[0].origin != "timed-again"]


def search(
    evaluator: AttemptEvaluator,
    consult: Consult | None = None,
    *,
    candidates: Sequence[Candidate] = WIDE,
    advice: Advice = ORDER,
    budget: Budget = BUDGET,
    course: LlmRounds = LlmRounds(),  # noqa: B008 - frozen
    trials: Sequence[Trial] = (),
) -> Search:
    task = SearchTask(candidates=tuple(candidates), advice=advice, consult=consult)
    strategy, found = Explorer(course), Search(proposals=[], trials=list(trials))
    while (proposal := strategy.propose(task, found.trials, budget)).candidates:
        assert [node.candidate for node in proposal.nodes] == [one.id for one in proposal.candidates]
        found.proposals.append((proposal.rounds, proposal.nodes))
        found.trials += evaluator.evaluate(proposal.candidates, proposal.rounds)
        assert len(found.trials) < 10_000, "the search does not end"
    return found


LABELS = {one.id: one.label for one in (*WIDE, *SPACE)}
BY_VALUES = {tuple(values(one)): one.id for one in WIDE}


class Model:
    """Answers with what a function says of focus and round; keeps what it was asked, in a log too."""

    def __init__(self, say: Callable[[tuple[str, ...], int], Any], log: list[Any] | None = None) -> None:
        self.say, self.log, self.asked = say, [] if log is None else log, list[tuple[int, tuple[str, ...]]]()

    def __call__(self, focus: tuple[str, ...], number: int) -> Any:
        self.asked.append((number, focus))
        self.log.append(("asked", number, focus))
        return self.say(focus, number)


def upwards(focus: tuple[str, ...], number: int) -> Any:
    """One sequence from each of the fastest: a parameter after the other one greater, as far as that is legal."""
    ways = []
    for id in focus:
        at, way = next(values(one) for one in WIDE if one.id == id), []
        for place in range(3):
            at[place] = min(at[place] + 1, 8)
            way.append(BY_VALUES[tuple(at)])
        ways.append(tuple(way))
    return tuple(ways)


def nothing(focus: tuple[str, ...], number: int) -> None:
    """No answer."""
