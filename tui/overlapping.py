"""The regions that cover the step, those that overlap with each, and shares that sum to 100 %. Pure.

Before there is a plan, the regions with the largest shares that have no operator in common stand in its place.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from agentcompile.runs.progress import RegionProgress, State

from .trials import Same, decode_plans, ordered, placed

_TENTHS = 1_000
"""Tenths of a percent in the whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlaps:
    """The regions of a run, grouped: those that cover the step, and below each those that overlap with it."""

    above: Mapping[str, str]
    """Region id to the covering region that it overlaps with most; empty for one that is below none."""
    shares: Mapping[str, float]
    """Of each covering region, its share of the step: of a plan these sum to 1 in tenths of a percent."""
    whole: float
    """The shares of the regions of one plan together."""
    planned: bool
    """Whether the covering regions are those of the plans."""


def overlaps(state: State) -> Overlaps:
    """Return how the regions overlap; it is found once for a state."""
    return _overlaps(Same(state))


def share_of(state: State, region: str) -> float:
    """Return a region's share of the step: of the plan's step where it is part of that, else of the step's floor."""
    row = state.row(region)
    return overlaps(state).shares.get(region, row.share if row is not None else 0.0)


@functools.lru_cache(maxsize=2)
def _overlaps(same: Same[State]) -> Overlaps:
    state, plan = same.value, placed(same.value)
    tops = [row for row in state.rows if row.region in plan] if plan else _disjoint(ordered(state))
    ids = {row.region for row in tops}
    above = {row.region: _widest(row, tops) for row in state.rows if row.region not in ids}
    shares = _planned(state) if plan else {row.region: row.share for row in tops}
    whole = 1.0 if plan else sum(shares.values()) / max(len({_batch(row) for row in tops}), 1)
    return Overlaps(above=above, shares=shares, whole=whole, planned=bool(plan))


def _batch(row: RegionProgress) -> str:
    """Return the part of a region's regime that tells its graph; contexts have the same operators."""
    return row.regime.partition(" c")[0]


def _disjoint(rows: Iterable[RegionProgress]) -> list[RegionProgress]:
    """Return the regions that come first and share no operator with an earlier one; all where that is not recorded."""
    taken: dict[str, set[int]] = {}
    found = []
    for row in sorted(rows, key=lambda row: (-row.share, -len(row.covers), row.name)):
        own = taken.setdefault(_batch(row), set())
        if not own & set(row.covers):
            own |= set(row.covers)
            found.append(row)
    return found


def _widest(row: RegionProgress, tops: Sequence[RegionProgress]) -> str:
    """Return the id of the covering region with the most operators in common; empty for none."""
    own = set(row.covers)
    shared = [(len(own & set(top.covers)), top.region) for top in tops if _batch(top) == _batch(row)]
    count, region = max(shared, default=(0, ""))
    return region if count else ""


def _planned(state: State) -> dict[str, float]:
    """Return the share of each region in the first decode plan that it is part of."""
    found: dict[str, float] = {}
    for plan in decode_plans(state):
        own = [(row, part) for part in plan.parts if (row := state.row(part.region)) is not None]
        costs = [row.floor_ns * (len(part.sites) or row.sites) for row, part in own]
        for (row, _), share in zip(own, whole(costs), strict=True):
            found.setdefault(row.region, share)
    return found


def whole(costs: Sequence[float]) -> list[float]:
    """Return shares of the sum of `costs` in tenths of a percent that sum to exactly 1; zeros where the sum is none."""
    total = sum(costs)
    if not total:
        return [0.0] * len(costs)
    exact = [cost / total * _TENTHS for cost in costs]
    found = [int(one) for one in exact]
    missing = _TENTHS - sum(found)
    for at in sorted(range(len(costs)), key=lambda at: found[at] - exact[at])[:missing]:
        found[at] += 1
    return [one / _TENTHS for one in found]
