"""Mutated clamps and scalings of the exponential that change no result, recognised by the numbers in them."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping

from .loops import Asked

_CLAMP = re.compile(r"x = \(x (<|<=|>|>=) (.+)\) \? splat\((.+)\) : x;")
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
    found, plain = _CLAMP.fullmatch(asked.after), _CLAMP.fullmatch(asked.before)
    if found is None or plain is None or found[1][0] != plain[1][0]:
        return False
    least, most = _OVERFLOWS if found[1][0] == ">" else _VANISHES
    try:
        return all(least <= _value(found[part]) <= most for part in (2, 3))
    except (SyntaxError, ValueError):
        return False


def same_scalings(asked: Asked) -> bool:
    """Return whether an exponent is still split into two that floats hold, of which the first leaves a normal number.

    Then only the second product rounds or overflows, as before the mutation.
    """
    found = _SCALINGS.search(asked.after)
    if found is None or asked.after != asked.before.replace("half = k >> 1", found[0]):
        return False
    by = int(found[2])
    if by == 0:
        return False
    halves = [k >> by if found[1] == ">>" else int(k / by) for k in _POWERS]
    return all(abs(half) <= 125 and 1 <= k - half + 127 <= 254 for k, half in zip(_POWERS, halves, strict=True))


def _value(text: str) -> float:
    """Return the value of sums, differences and products of C numbers.

    Raises:
        ValueError: the text has any other operation.
        SyntaxError: the text is no expression.
    """

    def of(node: ast.expr) -> float:
        match node:
            case ast.Constant(value=float() | int() as value):
                return float(value)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -of(operand)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                return _OPERATORS[type(op)](of(left), of(right))
        raise ValueError(text)

    return of(ast.parse(re.sub(r"(?<=\d)f\b|(?<=\.)f\b", "", text), mode="eval").body)
