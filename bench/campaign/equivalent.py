"""Survivors that are no faults: which mutation of which line, and why no input can tell it from the original.

The rows are in `equivalents.toml`, which says how they are read; their predicates are functions of the modules named
in `PREDICATES`.
"""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from agentcompile.ir.region import Region

from . import clamps, cuda_extents, extents, loops, ranges
from .loops import Asked

PREDICATES: Mapping[str, ModuleType] = {
    "extents": extents,
    "cuda": cuda_extents,
    "clamps": clamps,
    "loops": loops,
    "ranges": ranges,
}
"""Where a predicate is: ``extents.alone`` is `alone` of the first."""
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
    where: Callable[[Region, int], bool] = extents.anywhere
    """Which regions, on how many threads."""
    counts: Callable[[Asked], bool] | None = None
    """Which mutations, where more than the region decides: found by counting (`loops.py`)."""
    unreached: bool = False
    """Holds only where a trap before the statement is never sprung (`probing.py`)."""
    undefined: bool = False
    """Holds only where the mutant leaves an array of its own, and a build that checks bounds says so."""


@functools.cache
def equivalents() -> tuple[Excuse, ...]:
    """Return the rows in the order in which they are asked."""
    return tuple(_excuse(row) for row in tomllib.loads(_ROWS.read_text(encoding="utf-8"))["row"])


def _excuse(row: dict[str, Any]) -> Excuse:
    found = {name: _predicate(row.pop(name)) for name in ("where", "counts") if name in row}
    return Excuse(**found, mutators=tuple(row.pop("mutators", ())), **row)


def _predicate(name: str) -> Any:
    module, _, function = name.partition(".")
    return getattr(PREDICATES[module], function)


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
    question = Asked(region=region, threads=threads, before=before, after=after, params=params or {}, kernel=kernel)
    for row in equivalents():
        asked = (
            (not row.mutators or mutator in row.mutators) and unreached >= row.unreached and undefined >= row.undefined
        )
        here = re.fullmatch(row.file, file) and re.fullmatch(row.region, region.kind)
        said = asked and here and re.search(row.before, before) and re.search(row.after, after)
        if said and row.where(region, threads) and (row.counts is None or row.counts(question)):
            return row.why
    return ""
