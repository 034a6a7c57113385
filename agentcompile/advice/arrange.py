"""From what an adviser said to an order of the whole space: what it ranked, then by its hints, then as another would.

A permutation of the space and nothing else, whatever was said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from agentcompile.ir.advice import Advice
from agentcompile.ir.template import Candidate

_UNNAMED = 2.0
"""Places behind the last hinted value at which a value that no hint names stands."""


def arranged(advice: Advice, base: Advice, candidates: Sequence[Candidate]) -> Advice:
    """`advice` with an order of all of `candidates`: its own, then those its hints prefer, ties as in `base`."""
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
    """How far a point is from the hinted values, summed over its template's parameters; a template that no hint names
    comes after all that some hint names."""
    if candidate.template not in hinted:
        return float("inf")
    total = 0.0
    for name, value in candidate.params:
        values = hints.get((candidate.template, name))
        if values is not None:
            total += values.index(value) if value in values else len(values) - 1 + _UNNAMED
    return total
