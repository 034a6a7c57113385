"""The result of an ablation: per region what was judged, and per adviser where the winner stands in its order. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

FORMAT = 1
NEIGHBOURHOOD = 0.05
"""A candidate that is at most this much slower than the fastest is as good as the best."""
WITHIN = 0.1
"""Of a space: where a good order has the first of the neighbourhood."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where an adviser's order has what is good, counted from 1. Of several orders these are medians."""

    arm: str
    orders: int
    """How many orders: seeds of a random one."""
    winner_at: float
    near_at: float
    """The first candidate of the neighbourhood."""
    near_low: float
    near_high: float
    """Least and greatest over the orders."""
    said: int = 0
    """Candidates that a model ranked itself."""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One region after every candidate of it was judged."""

    region: str
    name: str
    dims: dict[str, int]
    sites: int
    bytes: int
    points: int
    failed: int
    near: int
    """Candidates of the neighbourhood, the winner among them."""
    winner: str
    """Its label."""
    pytorch_ns: float
    ns: dict[str, float]
    """Time of a launch by label, of those that are correct; the neighbourhood is of these."""
    standings: tuple[Standing, ...]

    def standing(self, arm: str) -> Standing | None:
        """An arm's."""
        return next((one for one in self.standings if one.arm == arm), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """One model's hot regions."""

    model: str
    context: int
    residency: str
    regions: tuple[Judged, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ablation:
    """One result file."""

    format: int = FORMAT
    device: str
    threads: int
    toolchain: str
    version: str
    arms: tuple[str, ...]
    answered_by: dict[str, str]
    """Who answered the exchanges of an arm."""
    models: tuple[Model, ...]

    @property
    def regions(self) -> tuple[Judged, ...]:
        """Of all models."""
        return tuple(region for model in self.models for region in model.regions)

    def median_share(self, arm: str) -> float:
        """Median over regions of the part of the space that an arm needs to reach the neighbourhood."""
        found = [(one.standing(arm), one.points) for one in self.regions]
        return statistics.median(standing.near_at / points for standing, points in found if standing is not None)


def near_of(ns: Mapping[str, float]) -> frozenset[str]:
    """The neighbourhood of the fastest."""
    least = min(ns.values()) * (1 + NEIGHBOURHOOD)
    return frozenset(name for name, time in ns.items() if time <= least)


def quick_ns(intervals: Sequence[float]) -> float:
    """The time of a kernel from its intervals in ns: the median of the fastest fifth of them. What other work on the
    machine adds is never negative, and an ablation wants an order, not a claim."""
    fastest = sorted(intervals)[: max(len(intervals) // 5, 1)]
    return statistics.median(fastest)


def standing_of(
    arm: str, orders: Sequence[Sequence[str]], winner: str, near: Collection[str], *, said: int = 0, note: str = ""
) -> Standing:
    """Where `orders`, each of all candidate ids, have the winner and the first of the neighbourhood."""
    winners = [order.index(winner) + 1 for order in orders]
    firsts = [next(at for at, id in enumerate(order, 1) if id in near) for order in orders]
    return Standing(
        arm=arm,
        orders=len(orders),
        winner_at=statistics.median(winners),
        near_at=statistics.median(firsts),
        near_low=min(firsts),
        near_high=max(firsts),
        said=said,
        note=note,
    )
