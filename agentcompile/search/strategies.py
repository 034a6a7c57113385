"""Strategies: pure functions of the space, the advice, the trials so far and the budget.

A strategy holds no state: after a crash it proposes exactly what is missing, and trials from the measurement database
count like fresh ones. An empty proposal ends the search of a region. How a candidate fared is read from its trials
alone, compared within a rung by the paired ratio to the baseline of the same rounds.
"""

from __future__ import annotations

import difflib
import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from agentcompile.errors import AgentCompileError
from agentcompile.ir.advice import Advice
from agentcompile.ir.template import Candidate
from agentcompile.ir.trial import Measured, Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What the search of one region may spend: distinct candidates."""

    trials: int
    seed: int = 0
    rounds: int = 5
    """Paired rounds of the first rung; every later rung doubles them."""
    finalists: int = 4
    """Survivors at which halving stops, to be confirmed on fresh data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """Candidates to judge next, each with this many paired rounds; none: the search is over."""

    candidates: tuple[Candidate, ...] = ()
    rounds: int = 0


_LEAST_PART = 8
"""Candidates that are proposed at once, where the budget has as many."""
_NOT_FAR = 0.3
"""As a logarithm: the best of another template within it is searched around too."""
Strategy = Callable[[Sequence[Candidate], Advice, Sequence[Trial], Budget], Proposal]


def exhaustive(space: Sequence[Candidate], advice: Advice, trials: Sequence[Trial], budget: Budget) -> Proposal:
    """Every candidate once, in the advised order, as far as the trials reach."""
    return _untried(advice.sorted(space), trials, budget)


def random_order(space: Sequence[Candidate], advice: Advice, trials: Sequence[Trial], budget: Budget) -> Proposal:
    """Every candidate once in an order drawn from the budget's seed, whatever the advice."""
    order = list(space)
    random.Random(budget.seed).shuffle(order)
    return _untried(order, trials, budget)


def halving(space: Sequence[Candidate], advice: Advice, trials: Sequence[Trial], budget: Budget) -> Proposal:
    """Successive halving (Jamieson and Talwalkar, 2016, section 3) with an advised first rung that climbs.

    The first rung is proposed a part at a time, at `budget.rounds`: the advised head with every template in it, then
    parts of which most differ in one parameter from what has done best so far, and the rest follow the advice. A
    template that only fails is put off before it eats the budget. Each later rung keeps the better half at twice the
    rounds, down to `budget.finalists`.
    """
    history = _by_candidate(trials)
    order = {candidate.id: candidate for candidate in _with_every_template(advice.sorted(space))}
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
        rung = [candidate for candidate in rung if not _failed(history[candidate.id])]
        reached = {candidate.id: _reached(history[candidate.id], rounds, level) for candidate in rung}
        missing = tuple(candidate for candidate in rung if reached[candidate.id] is None)
        if missing:
            return Proposal(candidates=missing, rounds=rounds)
        if len(rung) <= budget.finalists:
            break
        keep = max(budget.finalists, math.ceil(len(rung) / 2))
        rung = sorted(rung, key=lambda candidate: -(reached[candidate.id] or 0.0))[:keep]
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
    ratios = {id: _or_last(_reached(tried, rounds, 0)) for id, tried in known.items()}
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
        (failures if _failed(tried) else successes)[template] += 1
    return sorted(order, key=lambda id: failures[order[id].template] >= 2 and not successes[order[id].template])


def _untried(order: Sequence[Candidate], trials: Sequence[Trial], budget: Budget) -> Proposal:
    tried = {trial.candidate.id for trial in trials}
    left = budget.trials - len(tried)
    if left <= 0:
        return Proposal()
    fresh = [candidate for candidate in order if candidate.id not in tried][:left]
    return Proposal(candidates=tuple(fresh), rounds=budget.rounds if fresh else 0)


def _by_candidate(trials: Iterable[Trial]) -> dict[str, list[Trial]]:
    """Search trials only: what confirmation found later must not change what the search would have done."""
    history: dict[str, list[Trial]] = {}
    for trial in trials:
        if trial.fidelity == "search":
            history.setdefault(trial.candidate.id, []).append(trial)
    return history


def _failed(trials: Iterable[Trial]) -> bool:
    return any(not isinstance(trial.verdict, Measured) for trial in trials)


def _reached(trials: Iterable[Trial], rounds: int, level: int) -> float | None:
    """The log ratio with which a candidate stands in a rung; None when it is still to be measured there.

    The shortest measurement of at least `rounds` rounds, so that later and longer ones do not reorder past rungs; or
    the one of that rung by count, when the judge made fewer rounds than were asked.
    """
    measured = [trial.verdict.measurement for trial in trials if isinstance(trial.verdict, Measured)]
    enough = [one for one in measured if one.rounds + one.dropped >= rounds]
    if enough:
        return min(enough, key=lambda one: one.rounds + one.dropped).log_ratio
    return measured[level].log_ratio if len(measured) > level else None


STRATEGIES: tuple[tuple[str, Strategy], ...] = (
    ("halving", halving),
    ("exhaustive", exhaustive),
    ("random", random_order),
)
"""The first is the default."""


def strategy_of(name: str) -> Strategy:
    """The strategy of that name; raises `AgentCompileError` (usage) with the nearest one."""
    table = dict(STRATEGIES)
    if name in table:
        return table[name]
    near = difflib.get_close_matches(name, list(table), n=1)
    meant = f"did you mean {near[0]}? " if near else ""
    raise AgentCompileError(f"no search strategy {name}", hint=f"{meant}strategies: {', '.join(table)}")
