"""Recorded searches as curves behind the search of a region, on its axes, and a line that says what they are. Pure.

Of a recorded space only shares of its optimum's speed are comparable, so its optimum is drawn where the best of the
region's search is: the curves compare how soon a search gets there, not how far.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from agentcompile.runs.recorded_searches import RecordedSearches
from agentcompile.runs.searches import Curve

from .trials import Same, times

AHEAD = 25
"""Candidates up to which recorded curves are drawn while the region's own search has fewer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backdrop:
    """What is drawn behind a curve; nothing where nothing is recorded, or nothing measured yet."""

    curves: tuple[Curve, ...] = ()
    """In speed-ups over PyTorch, one for each recorded strategy."""
    about: str = ""
    """What they are, and how they are scaled."""


def backdrop(recorded: RecordedSearches | None, region: str, own: Curve) -> Backdrop:
    """Return the recorded curves behind the curve of a region, up to the candidates that it has, or `AHEAD`."""
    best = own.best[-1] if own.best else 0.0
    if recorded is None or not best:
        return Backdrop()
    spaces = recorded.spaces_for(region)
    last = max(len(own.best), AHEAD)
    found = _shares(Same(recorded), spaces)
    scaled = tuple(Curve(name=one.name, best=tuple(best * share for share in one.best[:last])) for one in found)
    what = spaces[0] if len(spaces) == 1 else f"mean of {len(spaces)} spaces"
    return Backdrop(curves=scaled, about=f"recorded: {what}, optimum drawn at {times(best)}")


@functools.lru_cache(maxsize=8)
def _shares(recorded: Same[RecordedSearches], spaces: tuple[str, ...]) -> tuple[Curve, ...]:
    return recorded.value.curves(spaces)
