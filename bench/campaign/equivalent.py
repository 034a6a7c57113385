"""Survivors that are no faults: which mutation of which line, and why no input can tell it from the original.

A row is keyed by the template's or shared file, a mutator and the line before and after. "It passed" is no reason: a
reason says why the results are the same, or lie within what the template declares, whatever the inputs are.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Mutations of one line that are equivalent; patterns are matched against the whole."""

    file: str
    before: str
    after: str
    """Regular expressions."""
    why: str
    mutators: tuple[str, ...] = ()
    """Empty: any."""
    unreached: bool = False
    """Holds only where a trap before the statement is never sprung (`probing.py`)."""


def reason(mutator: str, file: str, before: str, after: str, *, unreached: bool) -> str:
    """Why a mutation is equivalent; empty when no row says so."""
    for row in EQUIVALENT:
        fits = (not row.mutators or mutator in row.mutators) and unreached >= row.unreached
        if fits and re.fullmatch(row.file, file) and re.search(row.before, before) and re.search(row.after, after):
            return row.why
    return ""


EQUIVALENT: tuple[Row, ...] = ()
