"""A summary of each region for a person and an adviser: its roofline floor and its share of the step.

In: a graph, its partition and the machine's ceilings. Out: `Summary`, plain rows. The step's floor is the floor of the
cheapest exact cover by floors. A region's share is the part of its sites in that floor, whether that cover uses the
region or not, so the shares of overlapping regions add up to more than one.
"""

from __future__ import annotations

from dataclasses import dataclass

from agentcompile.ir.graph import Graph
from agentcompile.ir.region import Region
from agentcompile.ir.target import Ceiling, Residency
from agentcompile.ir.trial import Fallback
from agentcompile.regions.cover import cover
from agentcompile.regions.partition import Partition
from agentcompile.regions.problem import Option, Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionFigures:
    """The summary of one region."""

    region: Region
    floor_ns: float
    """The floor of one site."""
    share: float
    """The floors of all the region's sites over the floor of the step."""
    covered: int
    """The number of sites that the cheapest cover by floors gives to the region."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A graph as regions, largest share first."""

    step_floor_ns: float
    step_bytes: int
    """The bytes that the cheapest cover by floors moves."""
    exact: bool
    rows: tuple[RegionFigures, ...]


def summarise(graph: Graph, partition: Partition, ceiling: Ceiling, residency: Residency) -> Summary:
    """Summarise every region of `partition` on a machine with these ceilings."""
    regions = {region.id: region for region in partition.regions}
    floors = {id: region.floor_ns(ceiling, residency) for id, region in regions.items()}
    fallback = Fallback(reason="floor")
    options = {id: (Option(cost_ns=floor, choice=fallback),) for id, floor in floors.items()}
    best = cover(Problem(graph=graph, partition=partition, options=options))
    covered = {part.region: len(part.sites) for part in best.parts[0]}
    step = max(best.cost_ns, 1e-9)
    rows = [
        RegionFigures(
            region=region,
            floor_ns=floors[id],
            share=floors[id] * len(region.sites) / step,
            covered=covered.get(id, 0),
        )
        for id, region in regions.items()
    ]
    return Summary(
        step_floor_ns=best.cost_ns,
        step_bytes=sum(regions[id].cost.bytes * count for id, count in covered.items()),
        exact=best.exact,
        rows=tuple(sorted(rows, key=lambda row: (-row.share, row.region.name))),
    )
