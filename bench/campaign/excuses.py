"""The type of a row in the table of equivalent mutants, and the reasons that several rows share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from agentcompile.ir.region import Region

from .extents import anywhere
from .loops import Asked


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A set of equivalent mutations of one line.

    The file and the region's kind are matched whole; the other patterns are searched for.
    """

    why: str
    before: str
    after: str = ""
    """The pattern of the mutated line; `before` is that of the original line. All patterns are regular expressions."""
    file: str = r"_include/.*"
    region: str = r".*"
    """The pattern of the region's kind, matched whole."""
    mutators: tuple[str, ...] = ()
    """The mutators; empty for any."""
    where: Callable[[Region, int], bool] = anywhere
    """Whether the row holds for a region and a number of threads."""
    counts: Callable[[Asked], bool] | None = None
    """Whether the row holds for a mutation, decided by counting (`loops.py`), where the region alone does not say."""
    unreached: bool = False
    """Whether the row holds only when a trap before the statement is never reached (`probing.py`)."""
    undefined: bool = False
    """Whether the row holds only when the mutant exceeds a local array, as found by a build that checks bounds."""


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
