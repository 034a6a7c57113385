"""The constraints of a candidate's template with what their names are worth: the strings that the checker reads."""

from __future__ import annotations

from collections.abc import Mapping

from agentcompile.ir.evaluate import EvaluationError, evaluate
from agentcompile.ir.expr import ExprError, free_names, parse
from agentcompile.runs.progress import State

from .trials import latest


def worth(state: State, region: str, candidate: str) -> dict[str, str]:
    """Constraint to the values of its names and whether it holds, for one candidate; empty when it has none."""
    trial = latest(state, region).get(candidate)
    row = state.row(region)
    if trial is None or row is None:
        return {}
    point = trial.candidate
    names = dict(row.dims) | {name: value for name, value in point.params if isinstance(value, int)}
    stated = next((offer.requires for offer in row.offers if offer.template == point.template), ())
    return {text: _worth(text, names) for text in stated}


def _worth(text: str, names: Mapping[str, int]) -> str:
    try:
        tree = parse(text)
    except ExprError as error:
        return f"unreadable: {error}"
    known = ", ".join(f"{name}={names[name]}" for name in sorted(free_names(tree)) if name in names)
    try:
        return f"{'✓ holds' if evaluate(tree, names) else '✗ does not hold'}{': ' + known if known else ''}"
    except EvaluationError:
        return f"held by the compiler{': ' + known if known else ''}"
