"""What a row of the table of equivalents is, and the reasons that several of them share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from agentcompile.ir.region import Region

from .extents import anywhere
from .loops import Asked


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Mutations of one line that are equivalent; the file is matched whole, the other patterns are searched for."""

    why: str
    before: str
    after: str = ""
    """Regular expressions, as all patterns are."""
    file: str = r"_include/.*"
    region: str = r".*"
    """The kind, whole."""
    mutators: tuple[str, ...] = ()
    """Empty: any."""
    where: Callable[[Region, int], bool] = anywhere
    """Which regions, on how many threads."""
    counts: Callable[[Asked], bool] | None = None
    """Which mutations, where more than the region decides: found by counting (`loops.py`)."""
    unreached: bool = False
    """Holds only where a trap before the statement is never sprung (`probing.py`)."""
    undefined: bool = False
    """Holds only where the mutant leaves an array of its own, and a build that checks bounds says so."""


NO_ATTENTION = r"(?!.*attention).*"
PREFETCH = "a prefetch moves a line nearer and changes no value; one of an unmapped address does nothing"
AGAIN = "ranks do rows again that others do too: each writes the same value, from inputs that nobody writes"
QUIET = (
    "arithmetic sets a NaN's quiet bit, and what was a bf16 has its payload in the upper half: it stays a NaN, "
    "whatever of this bit or of rounding is left"
)
TIES = (
    "what lies half way, or next to that, rounds the other way: one unit roundoff at most, which the element bound "
    "allows. No output is an exact sum, whose rounding could be told"
)
BORDERS = "too large a count moves the borders between ranks alone: every share ends where its matrix or vector does"
ZEROS = "padding meets the zeros that a packed layout ends in, where anything reads it at all: it need only be finite"
