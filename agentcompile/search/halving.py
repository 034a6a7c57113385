"""Successive halving (Jamieson and Talwalkar, 2016, section 3) with an advised first rung that climbs."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from agentcompile.ir.template import Candidate
from agentcompile.ir.trial import Trial
from agentcompile.search.strategy import Budget, Proposal, SearchTask, by_candidate, failed, reached

_LEAST_PART = 8
"""Candidates that are proposed at once, where the budget has as many."""
_NOT_FAR = 0.3
"""As a logarithm: the best of another template within it is searched around too."""


class Halving:
    """Rungs of which each keeps the better half at twice the rounds, down to the finalists.

    The first rung is proposed a part at a time, at `budget.rounds`: the advised head with every template in it, then
    parts of which most differ in one parameter from what has done best so far, and the rest follow the advice. A
    template that only fails is put off before it eats the budget.
    """

    def propose(self, task: SearchTask, trials: Sequence[Trial], budget: Budget) -> Proposal[Candidate]:
        """Return what the rung that the trials have reached still lacks."""
        history = by_candidate(trials)
        order = {candidate.id: candidate for candidate in _with_every_template(task.advised)}
        chosen: list[str] = []
        while part := _part(order, chosen, history, budget):
            # Advice that came late may have moved what was tried out of this rung: it counts all the same.
            fresh = tuple(order[id] for id in part if id not in history)[: max(budget.trials - len(history), 0)]
            if fresh:
                return Proposal(candidates=fresh, rounds=budget.rounds)
            chosen += part
        rung = [candidate for id, candidate in order.items() if id in history]
        for level in itertools.count():
            rounds = budget.rounds << level
            rung = [candidate for candidate in rung if not failed(history[candidate.id])]
            ratios = {candidate.id: reached(history[candidate.id], rounds, level) for candidate in rung}
            missing = tuple(candidate for candidate in rung if ratios[candidate.id] is None)
            if missing:
                return Proposal(candidates=missing, rounds=rounds)
            if len(rung) <= budget.finalists:
                break
            keep = max(budget.finalists, math.ceil(len(rung) / 2))
            rung = sorted(rung, key=lambda candidate: -(ratios[candidate.id] or 0.0))[:keep]
        return Proposal()


def _part(
    order: Mapping[str, Candidate], chosen: Sequence[str], history: Mapping[str, list[Trial]], budget: Budget
) -> list[str]:
    """What follows `chosen` in the first rung, by the trials of these alone: a search that was cut goes on the same."""
    heads = len({candidate.template for candidate in order.values()})  # what a look has tried is in the first part
    size = min(max(_LEAST_PART, heads, math.ceil(budget.trials / 4)), budget.trials - len(chosen))
    known = {id: history[id] for id in chosen}
    left = {id: order[id] for id in _failing_last(order, known) if id not in known}
    near = list(itertools.islice(_near(_best(order, known, budget.rounds), left), size * 3 // 4))
    beside = set(near)
    return [*near, *(id for id in left if id not in beside)][:size]


def _best(order: Mapping[str, Candidate], known: Mapping[str, list[Trial]], rounds: int) -> list[Candidate]:
    """The fastest that is known, and of other templates those that are not far behind, fastest first."""
    ratios = {id: _or_last(reached(tried, rounds, 0)) for id, tried in known.items()}
    ranked = sorted(ratios, key=lambda id: -ratios[id])
    leaders = {order[id].template: id for id in reversed(ranked)}
    top = max(ratios.values(), default=-math.inf)
    return [order[id] for id in ranked if leaders[order[id].template] == id and ratios[id] > top - _NOT_FAR]


def _or_last(ratio: float | None) -> float:
    return -math.inf if ratio is None else ratio


def _near(parents: Sequence[Candidate], left: Mapping[str, Candidate]) -> Iterator[str]:
    """Those of `left` that differ from a parent in one parameter, a turn for each parent."""
    rows = [[id for id, candidate in left.items() if parent.distance(candidate) == 1] for parent in parents]
    for row in itertools.zip_longest(*rows):
        yield from (id for id in row if id is not None)


def _with_every_template(order: Sequence[Candidate]) -> list[Candidate]:
    """The best candidate of each template first, then the rest; both in order."""
    heads: dict[str, Candidate] = {}
    for candidate in order:
        heads.setdefault(candidate.template, candidate)
    return [*heads.values(), *(candidate for candidate in order if heads[candidate.template] is not candidate)]


def _failing_last(order: Mapping[str, Candidate], history: Mapping[str, list[Trial]]) -> list[str]:
    """The same order, but templates that failed at least twice and never ran come after all others."""
    failures, successes = Counter[str](), Counter[str]()
    for tried in history.values():
        template = tried[0].candidate.template
        (failures if failed(tried) else successes)[template] += 1
    return sorted(order, key=lambda id: failures[order[id].template] >= 2 and not successes[order[id].template])
