"""The result of an ablation: the times of every region, and each adviser's rank of the fastest candidates. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

FORMAT = 1
NEIGHBOURHOOD = 0.05
"""How much slower than the fastest a candidate may be to belong to the region's neighbourhood, as a share."""
WITHIN = 0.1
"""The share of a space within which a good order has the first candidate of the neighbourhood."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The ranks, counted from 1, that an adviser's order gives to good candidates.

    With several orders, `winner_at` and `near_at` are medians over them.
    """

    arm: str
    orders: int
    """The number of orders: a random adviser has one for each seed."""
    winner_at: float
    near_at: float
    """The rank of the first candidate of the neighbourhood."""
    near_low: float
    near_high: float
    """The greatest rank of that candidate over the orders; `near_low` is the least."""
    said: int = 0
    """The number of candidates that a model ranked itself."""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """One region of which every candidate was evaluated."""

    region: str
    name: str
    dims: dict[str, int]
    sites: int
    bytes: int
    points: int
    failed: int
    near: int
    """The number of candidates in the neighbourhood, including the winner."""
    winner: str
    """The label of the fastest candidate."""
    pytorch_ns: float
    ns: dict[str, float]
    """The time of a launch in ns, by label, of every correct candidate. The neighbourhood is a subset of these."""
    standings: tuple[Standing, ...]

    def standing(self, arm: str) -> Standing | None:
        """Return the ranks of an arm; None when the arm was not compared here."""
        return next((one for one in self.standings if one.arm == arm), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The hot regions of one model."""

    model: str
    context: int
    residency: str
    regions: tuple[Evaluated, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ablation:
    """The content of one result file."""

    format: int = FORMAT
    device: str
    threads: int
    toolchain: str
    version: str
    arms: tuple[str, ...]
    answered_by: dict[str, str]
    """Who answered, for every arm that replays recorded exchanges."""
    models: tuple[Model, ...]

    @property
    def regions(self) -> tuple[Evaluated, ...]:
        """The regions of all models."""
        return tuple(region for model in self.models for region in model.regions)

    def median_share(self, arm: str) -> float:
        """Return the median, over regions, of the share of the space that an arm needs to reach the neighbourhood."""
        found = [(one.standing(arm), one.points) for one in self.regions]
        return statistics.median(standing.near_at / points for standing, points in found if standing is not None)


def near_of(ns: Mapping[str, float]) -> frozenset[str]:
    """Return the neighbourhood: the names of all candidates within `NEIGHBOURHOOD` of the fastest."""
    least = min(ns.values()) * (1 + NEIGHBOURHOOD)
    return frozenset(name for name, time in ns.items() if time <= least)


def quick_ns(intervals: Sequence[float]) -> float:
    """Return the time of a kernel from its intervals in ns: the median of the fastest fifth of them.

    Other work on the machine only ever adds time, and an ablation needs an order of candidates, not a published time.
    """
    return statistics.median(sorted(intervals)[: max(len(intervals) // 5, 1)])


def standing_of(
    arm: str, orders: Sequence[Sequence[str]], winner: str, near: Collection[str], *, said: int = 0, note: str = ""
) -> Standing:
    """Return the ranks of the winner and of the first candidate of the neighbourhood in each of `orders`.

    Every order names all candidate ids.
    """
    winners = [order.index(winner) + 1 for order in orders]
    firsts = [next(at for at, id in enumerate(order, 1) if id in near) for order in orders]
    return Standing(
        arm=arm, orders=len(orders), winner_at=statistics.median(winners), near_at=statistics.median(firsts),
        near_low=min(firsts), near_high=max(firsts), said=said, note=note,
    )  # fmt: skip
