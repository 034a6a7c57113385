"""How much a prompt says about a region: all of it, or less for a server whose context is small.

`SHORTER` is the order in which things are left out: first blanks, then the tails of long lists and what explains rather
than states, last the descriptions. Region, machine, templates' parameters and constraints, and the best and the worst
trials stay to the end.
"""

from __future__ import annotations

from dataclasses import dataclass

from agentcompile.advice.asked import LISTED


@dataclass(frozen=True, slots=True, kw_only=True)
class Detail:
    """Limits of what is said about one region, and of how it is said."""

    listed: int = LISTED
    """Most candidates with an id in the text; the others have theirs too, and are named by their values."""
    trials: int = 40
    """Most trials that are listed, the best first."""
    memories: int = 40
    """Most findings of earlier runs on like regions."""
    line: int = 300
    """Most characters of a line of prose; 0 leaves descriptions of templates and parameters out."""
    parts: int = LISTED
    """Most operators, and most ports; 0 leaves both out."""
    notes: bool = True
    """Whether templates have their notes, layouts, roundings and launches."""
    compact: bool = False
    """Whether the data is written without blanks and line ends: the same in three quarters of the tokens."""
    brief: bool = False
    """Whether the rules are the short ones."""


FULL = Detail()
SHORTER: tuple[Detail, ...] = (
    Detail(compact=True),
    Detail(compact=True, listed=48, trials=24, memories=16),
    Detail(compact=True, brief=True, listed=24, trials=16, memories=8, line=160),
    Detail(compact=True, brief=True, listed=12, trials=10, memories=4, line=80, parts=8, notes=False),
    Detail(compact=True, brief=True, listed=6, trials=6, memories=0, line=40, parts=0, notes=False),
    Detail(compact=True, brief=True, listed=4, trials=4, memories=0, line=0, parts=0, notes=False),
)
"""What a question is cut to, the longest first; the last is the floor."""
