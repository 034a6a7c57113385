"""Survivors that are no faults: which mutation of which line, and why no input can tell it from the original.

The rows are in `equivalents.toml`, which says how they are read; the names in them are the region's extents, the
candidate's parameters, `threads`, and the rules of the modules below.
"""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from agentcompile.ir.evaluate import EvaluationError, evaluate
from agentcompile.ir.expr import ExprError, free_names, parse
from agentcompile.ir.region import Region

from . import clamps, cuda_extents, extents, loops, ranges
from .extents import Asked

RULES = {**extents.RULES, **cuda_extents.RULES, **clamps.RULES, **loops.RULES, **ranges.RULES}
_ROWS = Path(__file__).with_name("equivalents.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Excuse:
    """Mutations of one line that are equivalent; the file is matched whole, the other patterns are searched for."""

    why: str
    before: str
    after: str = ""
    """A regular expression, as all patterns are."""
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
    unreached: bool = False,
    undefined: bool = False,
) -> str:
    """Return why a mutation of a kernel of `region` on so many threads is equivalent; empty when no row says so.

    `params` are the candidate's, with ``LANES``, and `kernel` is its template; without them a row holds where it does
    for all.
    """
    asked = Asked(region=region, threads=threads, before=before, after=after, params=params or {}, kernel=kernel)
    for row in equivalents():
        mine = not row.mutators or mutator in row.mutators
        here = re.fullmatch(row.file, file) and re.fullmatch(row.region, region.kind)
        said = re.search(row.before, before) and re.search(row.after, after)
        proven = unreached >= row.unreached and undefined >= row.undefined
        if mine and here and said and proven and _holds(row.where, asked):
            return row.why
    return ""
