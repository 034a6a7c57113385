"""Mutated clamps and scalings of the exponential that change no result, recognised by the numbers in them."""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping

from .extents import Asked
from .loops import matched

_CLAMP = r"x = \(x (<|<=|>|>=) (.+)\) \? splat\((.+)\) : x;"
_OVERFLOWS = (88.72284, 177.5)
_VANISHES = (-150.0, -103.9719)
_SCALINGS = re.compile(r"half = k (>>|/) (\d+)(?=;)")
_POWERS = range(-150, 131)
"""The exponents of two that the clamps let through."""
_OPERATORS: Mapping[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}


def same_clamp(asked: Asked) -> bool:
    """Return whether a changed clamp gives the same results.

    Both its bound and the value that it substitutes must lie where the exponential overflows, or vanishes, anyway.
    """
    (sign, *_), (relation, *values) = (matched(_CLAMP, line) for line in (asked.before, asked.after))
    least, most = _OVERFLOWS if sign[0] == ">" else _VANISHES
    plain = (re.sub(r"(?<=[\d.])f\b", "", text) for text in values)
    return relation[0] == sign[0] and all(least <= _value(ast.parse(text, mode="eval").body) <= most for text in plain)


def same_scalings(asked: Asked) -> bool:
    """Return whether an exponent is still split into two that floats hold, of which the first leaves a normal number.

    Then only the second product rounds or overflows, as before the mutation.
    """
    found = _SCALINGS.search(asked.after)
    if found is None or asked.after != asked.before.replace("half = k >> 1", found[0]) or not int(found[2]):
        return False
    by = int(found[2])
    halves = {k: k >> by if found[1] == ">>" else int(k / by) for k in _POWERS}
    return all(abs(half) <= 125 and 1 <= k - half + 127 <= 254 for k, half in halves.items())


def _value(node: ast.expr) -> float:
    """Return the value of sums, differences and products of numbers; NaN for anything else."""
    match node:
        case ast.Constant(value=float() | int() as value):
            return float(value)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(left), _value(right))
    return math.nan


RULES: Mapping[str, Callable[[Asked], int]] = {"same_clamp": same_clamp, "same_scalings": same_scalings}
"""Rules by the name that `equivalents.toml` has for them."""
