"""Successive halving (Jamieson and Talwalkar, 2016, section 3) with an advised first rung that climbs."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from agentcompile.ir.template import Candidate
from agentcompile.ir.trial import Trial
from agentcompile.search.ladder import climb
from agentcompile.search.strategy import Budget, Proposal, SearchTask, by_candidate, failed, proposal_of, reached

_LEAST_PART = 8
"""The least number of candidates that are proposed at once, where the budget has as many."""
_NOT_FAR = 0.3
"""Difference of log ratios: the best candidate of another template is searched around too when it is within this."""


class Halving:
    """Successive halving: each rung keeps the better half and doubles the rounds, until only finalists are left.

    The first rung is proposed in parts, at `budget.rounds`. The first part follows the advice and has a candidate of
    every template. Most candidates of the later parts differ in one parameter from the fastest so far, and the others
    follow the advice. A template that only fails is moved to the end, so that it does not use up the budget.
    """

    def propose(self, task: SearchTask, trials: Sequence[Trial], budget: Budget) -> Proposal[Candidate]:
        """Return the candidates that have no trial yet in the rung that `trials` have reached."""
        history = by_candidate(trials)
        order = {candidate.id: candidate for candidate in _with_every_template(task.advised)}
        chosen: list[str] = []
        while part := _part(order, chosen, history, budget):
            # Late advice may have moved tried candidates out of this rung: they count against the budget all the same.
            fresh = tuple(order[id] for id in part if id not in history)[: max(budget.trials - len(history), 0)]
            if fresh:
                return proposal_of(fresh, budget.rounds, "order")
            chosen += part
        rung = [candidate for id, candidate in order.items() if id in history]
        return climb(rung, history, budget)


def _part(
    order: Mapping[str, Candidate], chosen: Sequence[str], history: Mapping[str, list[Trial]], budget: Budget
) -> list[str]:
    """Return the candidate ids that follow `chosen` in the first rung.

    Only the trials of `chosen` count, so that an interrupted search continues exactly as it would have.
    """
    heads = len(
        {candidate.template for candidate in order.values()}
    )  # the first part has what `try_first_candidates` tried
    size = min(max(_LEAST_PART, heads, math.ceil(budget.trials / 4)), budget.trials - len(chosen))
    known = {id: history[id] for id in chosen}
    left = {id: order[id] for id in _failing_last(order, known) if id not in known}
    near = list(itertools.islice(_near(_best(order, known, budget.rounds), left), size * 3 // 4))
    beside = set(near)
    return [*near, *(id for id in left if id not in beside)][:size]


def _best(order: Mapping[str, Candidate], known: Mapping[str, list[Trial]], rounds: int) -> list[Candidate]:
    """Return the fastest known candidate of each template within `_NOT_FAR` of the best, fastest first."""
    ratios = {id: _or_last(reached(tried, rounds, 0)) for id, tried in known.items()}
    ranked = sorted(ratios, key=lambda id: -ratios[id])
    leaders = {order[id].template: id for id in reversed(ranked)}
    top = max(ratios.values(), default=-math.inf)
    return [order[id] for id in ranked if leaders[order[id].template] == id and ratios[id] > top - _NOT_FAR]


def _or_last(ratio: float | None) -> float:
    return -math.inf if ratio is None else ratio


def _near(parents: Sequence[Candidate], left: Mapping[str, Candidate]) -> Iterator[str]:
    """Yield the ids of `left` that differ from a parent in one parameter, taking turns among the parents."""
    rows = [[id for id, candidate in left.items() if parent.distance(candidate) == 1] for parent in parents]
    for row in itertools.zip_longest(*rows):
        yield from (id for id in row if id is not None)


def _with_every_template(order: Sequence[Candidate]) -> list[Candidate]:
    """Return the first candidate of each template, then all others; both groups in the given order."""
    heads: dict[str, Candidate] = {}
    for candidate in order:
        heads.setdefault(candidate.template, candidate)
    return [*heads.values(), *(candidate for candidate in order if heads[candidate.template] is not candidate)]


def _failing_last(order: Mapping[str, Candidate], history: Mapping[str, list[Trial]]) -> list[str]:
    """Return the ids in the same order, but templates that failed at least twice and never ran come last."""
    failures, successes = Counter[str](), Counter[str]()
    for tried in history.values():
        template = tried[0].candidate.template
        (failures if failed(tried) else successes)[template] += 1
    return sorted(order, key=lambda id: failures[order[id].template] >= 2 and not successes[order[id].template])
