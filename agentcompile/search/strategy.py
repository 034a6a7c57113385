"""What every strategy is: a pure function of a task, the trials so far and the budget.

The same interface searches a region, whose candidates are points of its space, and a whole step, whose candidates are
moves that replace one choice or two. A strategy holds no state: after a crash it proposes exactly what is missing, and
trials from the measurement database count like fresh ones. An empty proposal ends the search of a task.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from agentcompile.ir.advice import Advice
from agentcompile.ir.search_events import Origin, ProposalNode
from agentcompile.ir.template import Candidate
from agentcompile.ir.trial import Measured, Trial


class Point(Protocol):
    """A point that can be tried: a candidate of a region, or a move of a step."""

    @property
    def id(self) -> str:
        """Its identity among the candidates of the task."""


P = TypeVar("P", bound=Point)
P_co = TypeVar("P_co", bound=Point, covariant=True)
T_contra = TypeVar("T_contra", contravariant=True)
R_contra = TypeVar("R_contra", contravariant=True)


class Task(Protocol[P_co]):
    """The part of a task that a strategy for both regions and steps uses."""

    @property
    def candidates(self) -> tuple[P_co, ...]:
        """All legal candidates."""

    @property
    def advised(self) -> tuple[P_co, ...]:
        """The candidates, the most promising first."""


class AnyTrial(Protocol):
    """The part of a trial that a strategy for both regions and steps uses."""

    @property
    def candidate(self) -> Point:
        """The candidate or move that was tried."""


Consult = Callable[[tuple[str, ...], int], tuple[tuple[str, ...], ...] | None]
"""Asks a model what to try next, from the focus and the round of a question (`ir.advice.Question`).

The focus is the id of a candidate to change, its parent's, …, and the round 0; or it is the ids of the fastest
candidates, and the round that they are to lead to. The answer is the ids of the legal candidates that each proposed
sequence of transformations passes; None where there was none. The same question gets the same answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchTask:
    """The task of a region: its legal candidates, and the advice that holds now."""

    candidates: tuple[Candidate, ...]
    advice: Advice
    consult: Consult | None = None
    """Who is asked in the middle of the search; None where no model is."""

    @property
    def advised(self) -> tuple[Candidate, ...]:
        """The candidates in the advised order."""
        return tuple(self.advice.sorted(self.candidates))


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The budget for the search of one task: `trials` counts distinct candidates."""

    trials: int
    seed: int = 0
    rounds: int = 5
    """Paired rounds of the first rung; every later rung doubles them."""
    finalists: int = 4
    """Survivors at which halving stops, to be confirmed on fresh data."""
    batch: int = 8
    """The most candidates of a proposal of a strategy that learns from each answer; a batch is built in parallel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal(Generic[P_co]):
    """Candidates to evaluate next, each with `rounds` paired rounds. No candidates: the search is over."""

    candidates: tuple[P_co, ...] = ()
    rounds: int = 0
    nodes: tuple[ProposalNode, ...] = ()
    """Where each candidate came from, in their order; empty where the strategy does not say."""


class Strategy(Protocol[T_contra, R_contra, P_co]):
    """A pure function that proposes what to try next."""

    def propose(self, task: T_contra, trials: Sequence[R_contra], budget: Budget) -> Proposal[P_co]:
        """Return what to evaluate next, given the `trials` of the task so far."""


RegionStrategy = Strategy[SearchTask, Trial, Candidate]
"""A strategy that searches the space of one region."""


def proposal_of(candidates: Iterable[P], rounds: int, origin: Origin) -> Proposal[P]:
    """Return a proposal of candidates that were made from no other; without any, the empty one."""
    chosen = tuple(candidates)
    nodes = tuple(ProposalNode(candidate=one.id, origin=origin) for one in chosen)
    return Proposal(candidates=chosen, rounds=rounds if chosen else 0, nodes=nodes)


def untried(order: Sequence[P], trials: Sequence[AnyTrial], budget: Budget, origin: Origin = "order") -> Proposal[P]:
    """Return the first candidates of `order` that have no trial, as many as the budget has left."""
    tried = {trial.candidate.id for trial in trials}
    left = budget.trials - len(tried)
    if left <= 0:
        return Proposal()
    fresh = [candidate for candidate in order if candidate.id not in tried][:left]
    return proposal_of(fresh, budget.rounds, origin)


def by_candidate(trials: Iterable[Trial]) -> dict[str, list[Trial]]:
    """Group the search trials by candidate id.

    Confirming trials are left out: what they found must not change what the search would have done.
    """
    history: dict[str, list[Trial]] = {}
    for trial in trials:
        if trial.fidelity == "search":
            history.setdefault(trial.candidate.id, []).append(trial)
    return history


def failed(trials: Iterable[Trial]) -> bool:
    """Return whether any of a candidate's trials ended without a time."""
    return any(not isinstance(trial.verdict, Measured) for trial in trials)


def reached(trials: Iterable[Trial], rounds: int, level: int) -> float | None:
    """Return the log ratio of a candidate in the rung of that `level`; None when it must still be measured there.

    It is that of the first measurement with at least `rounds` rounds, or, where measurements were cut short, of the one
    at index `level`; minus infinity where a trial until then failed. What follows, longer measurements and failures,
    does not change it, so that past rungs stay as they were.
    """
    for at, trial in enumerate(trials):
        if not isinstance(trial.verdict, Measured):
            return -math.inf
        found = trial.verdict.measurement
        if found.rounds + found.dropped >= rounds or at == level:
            return found.log_ratio
    return None
