"""Evaluates expressions, and explains why a constraint does not hold; `agentcompile.ir.expr` defines the language.

In: a tree and the values of its names. Out: a whole number or a truth value, or a reason with figures in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import assert_never

from agentcompile.ir.expr import (
    MAX_VALUE,
    Arithmetic,
    BinaryOp,
    Compare,
    Expr,
    Function,
    FunctionCall,
    IfElse,
    Int,
    Logic,
    Name,
    Negate,
    Not,
    Relation,
    canonical,
    free_names,
)


class EvaluationError(ValueError):
    """An expression without a value for these names: an unknown name, a division by zero, a result out of bounds."""


def evaluate(expr: Expr, names: Mapping[str, int]) -> int:
    """Return the value of `expr`: an int, or a bool for comparisons and ``not``.

    Raises:
        EvaluationError: a name is unknown, a divisor is zero, or a result exceeds 2^63 - 1.
    """
    match expr:
        case Int(value):
            return value
        case Name(name):
            if name not in names:
                raise EvaluationError(f"unknown name {name}")
            return names[name]
        case Negate(operand):
            return -evaluate(operand, names)
        case BinaryOp(op, left, right):
            return _bounded(expr, _arithmetic(expr, op, evaluate(left, names), evaluate(right, names)))
        case Compare(ops, operands):
            return _compare(ops, operands, names)
        case Logic(op, operands):
            value = 0
            for operand in operands:
                value = evaluate(operand, names)
                if bool(value) is (op == "or"):
                    break
            return value
        case Not(operand):
            return not evaluate(operand, names)
        case IfElse(condition, yes, no):
            return evaluate(yes if evaluate(condition, names) else no, names)
        case FunctionCall(function, arguments):
            return _bounded(expr, _call(expr, function, [evaluate(argument, names) for argument in arguments]))
        case _:
            assert_never(expr)


def _bounded(expr: Expr, value: int) -> int:
    if abs(value) > MAX_VALUE:
        raise EvaluationError(f"`{canonical(expr)}` exceeds 2^63 - 1")
    return value


def _arithmetic(expr: Expr, op: Arithmetic, left: int, right: int) -> int:
    match op:
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
        case "//" | "%":
            if right == 0:
                raise EvaluationError(f"division by zero in `{canonical(expr)}`")
            return left // right if op == "//" else left % right
        case _:
            assert_never(op)


def _compare(ops: tuple[Relation, ...], operands: tuple[Expr, ...], names: Mapping[str, int]) -> bool:
    left = evaluate(operands[0], names)
    for op, operand in zip(ops, operands[1:], strict=True):
        right = evaluate(operand, names)
        if not _holds(op, left, right):
            return False
        left = right
    return True


def _holds(op: Relation, left: int, right: int) -> bool:
    match op:
        case "==":
            return left == right
        case "!=":
            return left != right
        case "<":
            return left < right
        case "<=":
            return left <= right
        case ">":
            return left > right
        case ">=":
            return left >= right
        case _:
            assert_never(op)


def _call(expr: Expr, function: Function, values: list[int]) -> int:
    match function:
        case "min":
            return min(values)
        case "max":
            return max(values)
        case "ceil_div" | "round_up":
            a, b = values
            if b == 0:
                raise EvaluationError(f"division by zero in `{canonical(expr)}`")
            return -(-a // b) if function == "ceil_div" else -(-a // b) * b
        case _:
            assert_never(function)


def explain(expr: Expr, names: Mapping[str, int]) -> str:
    """Explain with figures why `expr` has the value it has, or why it has none.

    An example: ``hidden % 32 == 0 with hidden=1000 → 1000 % 32 = 8``.
    """
    shown = ", ".join(f"{name}={int(names[name])}" for name in free_names(expr) if name in names)
    head = f"{canonical(expr)} with {shown}" if shown else canonical(expr)
    try:
        evaluate(expr, names)
        steps = _steps(_culprit(expr, names), names)
    except EvaluationError as error:
        return f"{head} → {error}"
    return f"{head} → {', '.join(steps)}" if steps else head


def _culprit(expr: Expr, names: Mapping[str, int]) -> Expr:
    """Return the part that decides: the first false operand of an `and`, or the chosen side of a condition."""
    match expr:
        case Logic("and", operands):
            decisive = next((operand for operand in operands if not evaluate(operand, names)), expr)
            return decisive if decisive is expr else _culprit(decisive, names)
        case IfElse(condition, yes, no):
            return _culprit(yes if evaluate(condition, names) else no, names)
        case _:
            return expr


def _steps(expr: Expr, names: Mapping[str, int]) -> list[str]:
    """Return texts like ``1000 % 32 = 8`` for every side of a comparison that is neither a number nor a name."""
    match expr:
        case Compare(_, operands):
            sides = [side for side in operands if not isinstance(side, (Int, Name))]
            return [f"{canonical(_filled(side, names))} = {int(evaluate(side, names))}" for side in sides]
        case Logic(_, operands):
            return [step for operand in operands for step in _steps(operand, names)]
        case Not(operand):
            return _steps(operand, names)
        case _:
            return []


def _filled(expr: Expr, names: Mapping[str, int]) -> Expr:
    """Return the same tree with every known name replaced by its value."""

    def all_of(parts: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return tuple(_filled(part, names) for part in parts)

    match expr:
        case Name(name):
            return Int(int(names[name])) if name in names else expr
        case Int():
            return expr
        case Negate(operand):
            return Negate(_filled(operand, names))
        case Not(operand):
            return Not(_filled(operand, names))
        case BinaryOp(op, left, right):
            return BinaryOp(op, _filled(left, names), _filled(right, names))
        case Compare(ops, operands):
            return Compare(ops, all_of(operands))
        case Logic(op, operands):
            return Logic(op, all_of(operands))
        case IfElse(condition, yes, no):
            return IfElse(*all_of((condition, yes, no)))
        case FunctionCall(function, arguments):
            return FunctionCall(function, all_of(arguments))
        case _:
            assert_never(expr)
