"""How like two regions are, for findings on one to be worth a try on the other."""

from __future__ import annotations

import math
from dataclasses import dataclass

from agentcompile.ir.region import Region

NEAR = 4.0
"""The largest ratio of two extents of like regions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What tells how like two regions are."""

    kind: str
    phase: str
    batch: int
    dims: tuple[tuple[str, int], ...]
    """The kind's named extents."""

    @staticmethod
    def of(region: Region) -> Shape:
        """Return the shape of a region; the extents of its context count as others do."""
        context = tuple(zip(("first", "last"), region.regime.context, strict=True))
        regime = region.regime
        return Shape(kind=region.kind, phase=regime.phase, batch=regime.batch, dims=(*region.dims, *context))

    def distance(self, other: Shape) -> float:
        """Return the sum of |log2| of the ratios of extents; infinity where the two are not like one another."""
        same = (self.kind, self.phase, self.batch) == (other.kind, other.phase, other.batch)
        if not same or [name for name, _ in self.dims] != [name for name, _ in other.dims]:
            return math.inf
        pairs = zip(self.dims, other.dims, strict=True)
        ratios = [max(one, two, 1) / max(min(one, two), 1) for (_, one), (_, two) in pairs]
        return math.inf if max(ratios, default=1) > NEAR else sum(map(math.log2, ratios))
