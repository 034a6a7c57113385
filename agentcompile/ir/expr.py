"""The expression language of constraints and counts: a small part of Python with Python's meaning, on integers.

    hidden % (32 * VEC) == 0 and ROWS * 4 <= 32
    round_up(rows, ROWS) * threads if SPLIT > 1 else 0

It has whole numbers, names, ``+ - * // %``, comparisons (chained too), ``and or not``, ``a if c else b``, parentheses
and ``min max ceil_div round_up``. A text is parsed to a tree, which `agentcompile.ir.evaluate` evaluates. The checker,
advisers, people and lockfiles all use the same text. Nothing is ever given to Python's ``eval``. Size, depth and
magnitude are bounded, so a hostile manifest costs microseconds.
"""

from __future__ import annotations

import functools
import keyword
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, assert_never, cast

MAX_TEXT = 500
MAX_NODES = 200
MAX_DEPTH = 32
MAX_VALUE = 2**63 - 1
"""Largest magnitude of a literal and of every intermediate result."""

Arithmetic = Literal["+", "-", "*", "//", "%"]
Relation = Literal["==", "!=", "<", "<=", ">", ">="]
Function = Literal["min", "max", "ceil_div", "round_up"]
FUNCTIONS: tuple[Function, ...] = ("min", "max", "ceil_div", "round_up")
KEYWORDS = ("and", "or", "not", "if", "else")


class ExprError(ValueError):
    """A text that is not an expression of the language; `column` counts from 1."""

    def __init__(self, reason: str, text: str, column: int) -> None:
        super().__init__(f"{reason} at column {column} of `{text[:MAX_TEXT]}`")
        self.reason = reason
        self.text = text
        self.column = column


@dataclass(frozen=True, slots=True)
class Int:
    """A whole number."""

    value: int


@dataclass(frozen=True, slots=True)
class Name:
    """A dimension (lower case), a parameter (upper case) or a fact of the target."""

    name: str


@dataclass(frozen=True, slots=True)
class Negate:
    """The negation ``-operand``."""

    operand: Expr


@dataclass(frozen=True, slots=True)
class BinaryOp:
    """The operation ``left op right``; ``//`` and ``%`` round towards minus infinity, as in Python."""

    op: Arithmetic
    left: Expr
    right: Expr


@dataclass(frozen=True, slots=True)
class Compare:
    """The comparison ``first op1 second op2 third …``, true when every neighbouring pair is."""

    ops: tuple[Relation, ...]
    operands: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Logic:
    """The chain ``a and b and …`` or ``a or b or …``; its value is the deciding operand, the last one evaluated."""

    op: Literal["and", "or"]
    operands: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Not:
    """The logical negation ``not operand``."""

    operand: Expr


@dataclass(frozen=True, slots=True)
class IfElse:
    """The condition ``yes if condition else no``; only the chosen side is evaluated."""

    condition: Expr
    yes: Expr
    no: Expr


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A call of one of the four functions.

    ``ceil_div`` rounds a/b up, and ``round_up(a, b)`` is the multiple of b at or above a.
    """

    function: Function
    arguments: tuple[Expr, ...]


Expr = Int | Name | Negate | BinaryOp | Compare | Logic | Not | IfElse | FunctionCall


def children(expr: Expr) -> tuple[Expr, ...]:
    """Return the direct operands, in reading order."""
    match expr:
        case Int() | Name():
            return ()
        case Negate(operand) | Not(operand):
            return (operand,)
        case BinaryOp(_, left, right):
            return (left, right)
        case Compare(_, operands) | Logic(_, operands) | FunctionCall(_, operands):
            return operands
        case IfElse(condition, yes, no):
            return (yes, condition, no)
        case _:
            assert_never(expr)


def free_names(expr: Expr) -> tuple[str, ...]:
    """Return every name that the expression reads, once, in reading order."""

    def walk(at: Expr) -> Iterator[str]:
        if isinstance(at, Name):
            yield at.name
        for child in children(at):
            yield from walk(child)

    return tuple(dict.fromkeys(walk(expr)))


_STRENGTH = {"or": 1, "and": 2, "+": 5, "-": 5, "*": 6, "//": 6, "%": 6}


def canonical(expr: Expr) -> str:
    """Return the one spelling of a tree: single spaces, the fewest parentheses; it parses to the same tree."""
    return _print(expr)[0]


def _print(expr: Expr) -> tuple[str, int]:
    """Return text and precedence: 0 if-else, 1 or, 2 and, 3 not, 4 comparison, 5 sum, 6 product, 7 minus, 8 atom."""
    match expr:
        case Int(value):
            return str(value), 8
        case Name(name):
            return name, 8
        case Negate(operand):
            return f"-{_within(operand, 7)}", 7
        case Not(operand):
            return f"not {_within(operand, 3)}", 3
        case BinaryOp(op, left, right):
            strength = _STRENGTH[op]
            return f"{_within(left, strength)} {op} {_within(right, strength + 1)}", strength
        case Compare(ops, operands):
            texts = [_within(operand, 5) for operand in operands]
            return " ".join([texts[0], *(f"{op} {text}" for op, text in zip(ops, texts[1:], strict=True))]), 4
        case Logic(op, operands):
            strength = _STRENGTH[op]
            return f" {op} ".join(_within(operand, strength + 1) for operand in operands), strength
        case IfElse(condition, yes, no):
            return f"{_within(yes, 1)} if {_within(condition, 1)} else {_within(no, 0)}", 0
        case FunctionCall(function, arguments):
            return f"{function}({', '.join(canonical(argument) for argument in arguments)})", 8
        case _:
            assert_never(expr)


def _within(expr: Expr, least: int) -> str:
    text, strength = _print(expr)
    return text if strength >= least else f"({text})"


@functools.lru_cache(maxsize=4096)
def parse(text: str) -> Expr:
    """Parse one expression.

    Raises:
        ExprError: the text is not an expression, or too long; the error has the column of the first fault.
    """
    if len(text) > MAX_TEXT:
        raise ExprError(f"more than {MAX_TEXT} characters", text, MAX_TEXT + 1)
    return _Parser(text).whole()


_TOKEN = re.compile(
    r"\s*(?:(?P<int>[0-9]+)|(?P<name>[A-Za-z_][A-Za-z0-9_]*)|(?P<op>//|==|!=|<=|>=|[-+*%<>(),]))", re.ASCII
)


@dataclass(frozen=True, slots=True)
class _Token:
    kind: Literal["int", "name", "op", "end"]
    text: str
    column: int


class _Parser:
    """A recursive-descent parser, with one method a precedence level, loosest first."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = self._tokens()
        self.at = 0
        self.nodes = 0
        self.depth = 0

    def _tokens(self) -> list[_Token]:
        tokens, at = [], 0
        end = len(self.text.rstrip())
        while at < end:
            match = _TOKEN.match(self.text, at)
            if match is None or match.lastgroup is None:
                at += len(self.text[at:]) - len(self.text[at:].lstrip())
                raise ExprError(f"unexpected {self.text[at]!r}", self.text, at + 1)
            kind = cast(Literal["int", "name", "op"], match.lastgroup)
            tokens.append(_Token(kind, match[kind], match.start(kind) + 1))
            at = match.end()
            if kind == "int" and at < end and (self.text[at].isalnum() or self.text[at] in "._"):
                raise ExprError(f"unexpected {self.text[at]!r} after a number", self.text, at + 1)
        return [*tokens, _Token("end", "the end", end + 1)]

    def whole(self) -> Expr:
        expr = self.ternary()
        if self.peek().kind != "end":
            raise self.unexpected()
        return expr

    def peek(self) -> _Token:
        return self.tokens[self.at]

    def unexpected(self) -> ExprError:
        token = self.peek()
        shown = token.text if token.kind == "end" else repr(token.text)
        return ExprError(f"unexpected {shown}", self.text, token.column)

    def take(self, *texts: str) -> str:
        """Consume the next token if it is one of `texts`; otherwise return an empty string."""
        token = self.peek()
        if token.kind in ("op", "name") and token.text in texts:
            self.at += 1
            return token.text
        return ""

    def expect(self, text: str) -> None:
        if not self.take(text):
            token = self.peek()
            shown = token.text if token.kind == "end" else repr(token.text)
            raise ExprError(f"expected {text!r}, found {shown}", self.text, token.column)

    def made(self, expr: Expr) -> Expr:
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise ExprError(f"more than {MAX_NODES} terms", self.text, self.peek().column)
        return expr

    def deeper(self) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise ExprError(f"nested deeper than {MAX_DEPTH}", self.text, self.peek().column)

    def ternary(self) -> Expr:
        self.deeper()
        yes = self.disjunction()
        if self.take("if"):
            condition = self.disjunction()
            self.expect("else")
            yes = self.made(IfElse(condition, yes, self.ternary()))
        self.depth -= 1
        return yes

    def disjunction(self) -> Expr:
        operands = [self.conjunction()]
        while self.take("or"):
            operands.append(self.conjunction())
        return operands[0] if len(operands) == 1 else self.made(Logic("or", tuple(operands)))

    def conjunction(self) -> Expr:
        operands = [self.negation()]
        while self.take("and"):
            operands.append(self.negation())
        return operands[0] if len(operands) == 1 else self.made(Logic("and", tuple(operands)))

    def negation(self) -> Expr:
        if not self.take("not"):
            return self.comparison()
        self.deeper()
        operand = self.negation()
        self.depth -= 1
        return self.made(Not(operand))

    def comparison(self) -> Expr:
        ops: list[Relation] = []
        operands = [self.sum()]
        while op := self.take("==", "!=", "<", "<=", ">", ">="):
            ops.append(cast(Relation, op))
            operands.append(self.sum())
        return self.made(Compare(tuple(ops), tuple(operands))) if ops else operands[0]

    def sum(self) -> Expr:
        left = self.product()
        while op := self.take("+", "-"):
            left = self.made(BinaryOp(cast(Arithmetic, op), left, self.product()))
        return left

    def product(self) -> Expr:
        left = self.factor()
        while op := self.take("*", "//", "%"):
            left = self.made(BinaryOp(cast(Arithmetic, op), left, self.factor()))
        return left

    def factor(self) -> Expr:
        if not self.take("-"):
            return self.atom()
        self.deeper()
        operand = self.factor()
        self.depth -= 1
        return self.made(Negate(operand))

    def atom(self) -> Expr:
        token = self.peek()
        if token.kind == "int":
            if len(token.text) > len(str(MAX_VALUE)) or int(token.text) > MAX_VALUE:
                raise ExprError("a number above 2^63 - 1", self.text, token.column)
            if len(token.text) > 1 and token.text[0] == "0":
                raise ExprError("a number with a leading 0", self.text, token.column)
            self.at += 1
            return self.made(Int(int(token.text)))
        if token.kind == "name" and token.text not in KEYWORDS:
            self.at += 1
            return self.call(token) if self.take("(") else self.made(self.plain_name(token))
        if self.take("("):
            inner = self.ternary()
            self.expect(")")
            return inner
        raise self.unexpected()

    def plain_name(self, token: _Token) -> Name:
        if token.text in FUNCTIONS:
            raise ExprError(f"{token.text} without its arguments", self.text, token.column)
        if keyword.iskeyword(token.text):  # Python would read it otherwise than as a name
            raise ExprError(f"unexpected {token.text!r}", self.text, token.column)
        return Name(token.text)

    def call(self, token: _Token) -> Expr:
        if token.text not in FUNCTIONS:
            raise ExprError(f"no function {token.text!r} (there are {', '.join(FUNCTIONS)})", self.text, token.column)
        arguments = [self.ternary()]
        while self.take(","):
            arguments.append(self.ternary())
        self.expect(")")
        function: Function = token.text
        if len(arguments) < 2 or (function in ("ceil_div", "round_up") and len(arguments) > 2):
            raise ExprError(f"{function} takes two arguments, not {len(arguments)}", self.text, token.column)
        return self.made(FunctionCall(function, tuple(arguments)))
