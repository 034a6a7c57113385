"""What every strategy is: a pure function of a task, the trials so far and the budget.

A strategy holds no state: after a crash it proposes exactly what is missing, and trials from the measurement database
count like fresh ones. An empty proposal ends the search of a task. How a candidate fared is read from its trials alone,
compared within a rung by the paired ratio to the baseline of the same rounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from agentcompile.ir.advice import Advice
from agentcompile.ir.template import Candidate
from agentcompile.ir.trial import Measured, Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchTask:
    """What a strategy chooses from: the legal candidates of one region, and the advice that holds now."""

    candidates: tuple[Candidate, ...]
    advice: Advice

    @property
    def advised(self) -> tuple[Candidate, ...]:
        """The candidates in the advised order."""
        return tuple(self.advice.sorted(self.candidates))


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What the search of one task may spend: distinct candidates."""

    trials: int
    seed: int = 0
    rounds: int = 5
    """Paired rounds of the first rung; every later rung doubles them."""
    finalists: int = 4
    """Survivors at which halving stops, to be confirmed on fresh data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """Candidates to evaluate next, each with this many paired rounds; none: the search is over."""

    candidates: tuple[Candidate, ...] = ()
    rounds: int = 0


class Strategy(Protocol):
    """Says what to try next."""

    def propose(self, task: SearchTask, trials: Sequence[Trial], budget: Budget) -> Proposal:
        """What to evaluate next, after `trials` of the task."""


def untried(order: Sequence[Candidate], trials: Sequence[Trial], budget: Budget) -> Proposal:
    """The first of `order` that have no trial, as many as the budget has left."""
    tried = {trial.candidate.id for trial in trials}
    left = budget.trials - len(tried)
    if left <= 0:
        return Proposal()
    fresh = [candidate for candidate in order if candidate.id not in tried][:left]
    return Proposal(candidates=tuple(fresh), rounds=budget.rounds if fresh else 0)


def by_candidate(trials: Iterable[Trial]) -> dict[str, list[Trial]]:
    """Search trials only: what confirmation found later must not change what the search would have done."""
    history: dict[str, list[Trial]] = {}
    for trial in trials:
        if trial.fidelity == "search":
            history.setdefault(trial.candidate.id, []).append(trial)
    return history


def failed(trials: Iterable[Trial]) -> bool:
    """Whether a candidate did not come to a time."""
    return any(not isinstance(trial.verdict, Measured) for trial in trials)


def reached(trials: Iterable[Trial], rounds: int, level: int) -> float | None:
    """The log ratio with which a candidate stands in a rung; None when it is still to be measured there.

    The shortest measurement of at least `rounds` rounds, so that later and longer ones do not reorder past rungs; or
    the one of that rung by count, when the judge made fewer rounds than were asked.
    """
    measured = [trial.verdict.measurement for trial in trials if isinstance(trial.verdict, Measured)]
    enough = [one for one in measured if one.rounds + one.dropped >= rounds]
    if enough:
        return min(enough, key=lambda one: one.rounds + one.dropped).log_ratio
    return measured[level].log_ratio if len(measured) > level else None
