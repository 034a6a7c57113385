"""Completes an adviser's partial ranking to an order of the whole space.

First the candidates that it ranked, then the others by its hints, ties in the order of a base advice. The result is a
permutation of the space, whatever the adviser said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from agentcompile.ir.advice import Advice
from agentcompile.ir.template import Candidate

_UNNAMED = 2.0
"""Distance of a value that no hint names, counted in places behind the last hinted value."""


def arranged(advice: Advice, base: Advice, candidates: Sequence[Candidate]) -> Advice:
    """Return `advice` with an order of all `candidates`: its own ranking, then by its hints, ties as in `base`."""
    own = {candidate.id for candidate in candidates}
    named = [id for id in dict.fromkeys(advice.order) if id in own]
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
