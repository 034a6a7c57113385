"""Survivors that are no faults: which mutation of which line, and why no input can tell it from the original.

The rows are in `equivalents.toml`, which says how they are read; the names in them are the region's extents, the
candidate's parameters, `threads`, and the rules of the modules beside this one. Mutated clamps and
scalings of the exponential are recognised here, by the numbers in them.
"""

from __future__ import annotations

import ast
import functools
import math
import operator
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from agentcompile.ir.evaluate import EvaluationError, evaluate
from agentcompile.ir.expr import ExprError, free_names, parse
from agentcompile.ir.region import Region

from . import extents, loops, ranges
from .extents import Asked
from .loops import matched

_ROWS = Path(__file__).with_name("equivalents.toml")
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Excuse:
    """Mutations of one line that are equivalent; the file is matched whole, the other patterns are searched for."""

    why: str
    before: str
    after: str = ""
    """A regular expression, as all patterns are."""
    behind: str = ""
    """Of the line behind, where a file has the mutated line more than once."""
    file: str = r"_include/.*"
    region: str = r".*"
    """The kind, whole."""
    mutators: tuple[str, ...] = ()
    """The names of mutators; empty: any."""
    where: str = "1"
    """Which regions, on how many threads, or which mutations: an expression as in a template (`ir/expr.py`)."""
    unreached: bool = False
    """Holds only where a trap before the statement is never sprung (`probing.py`)."""
    undefined: bool = False
    """Holds only where the mutant leaves an array of its own, and a build that checks bounds says so."""


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


RULES: Mapping[str, Callable[[Asked], int]] = {
    **{rule.__name__: rule for rule in (same_clamp, same_scalings)},
    **extents.RULES,
    **loops.RULES,
    **ranges.RULES,
}


@functools.cache
def equivalents() -> tuple[Excuse, ...]:
    """Return the rows in the order in which they are asked."""
    rows = tomllib.loads(_ROWS.read_text(encoding="utf-8"))["row"]
    return tuple(Excuse(**{**row, "mutators": tuple(row.get("mutators", ()))}) for row in rows)


def _holds(where: str, asked: Asked) -> bool:
    """Return whether a row's condition holds; what has no value does not."""
    expr, known = parse(where), {**asked.dims, **asked.params, "threads": asked.threads}
    try:
        names = {name: RULES[name](asked) if name in RULES else known[name] for name in free_names(expr)}
        return bool(evaluate(expr, names))
    except (EvaluationError, ExprError, KeyError, SyntaxError):
        return False


def reason(
    mutator: str,
    region: Region,
    file: str,
    before: str,
    after: str,
    *,
    threads: int,
    params: Mapping[str, int] | None = None,
    kernel: str = "",
    behind: str = "",
    unreached: bool = False,
    undefined: bool = False,
) -> str:
    """Return why a mutation of a kernel of `region` on so many threads is equivalent; empty when no row says so.

    `params` are the candidate's, with ``LANES``, and `kernel` is its template; without them a row holds where it does
    for all. `behind` is the line behind the mutated one.
    """
    asked = Asked(region=region, threads=threads, before=before, after=after, params=params or {}, kernel=kernel)
    for row in equivalents():
        mine = not row.mutators or mutator in row.mutators
        here = re.fullmatch(row.file, file) and re.fullmatch(row.region, region.kind)
        said = re.search(row.before, before) and re.search(row.after, after) and re.search(row.behind, behind)
        holds_of_all = unreached >= row.unreached and undefined >= row.undefined
        if mine and here and said and holds_of_all and _holds(row.where, asked):
            return row.why
    return ""
