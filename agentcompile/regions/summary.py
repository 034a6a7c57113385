"""A summary of each region for a person and an adviser: work, intensity, roofline floor, share of the step.

In: a graph, its partition and the machine's ceilings. Out: `Summary`, plain rows. The step's floor is the floor of the
cheapest exact cover by floors. A region's share is the part of its sites in that floor, whether that cover uses the
region or not, so the shares of overlapping regions add up to more than one.
"""

from __future__ import annotations

from dataclasses import dataclass

from agentcompile.ir.codec import encode
from agentcompile.ir.digest import Json
from agentcompile.ir.graph import Graph
from agentcompile.ir.region import Boundary, Port, Region
from agentcompile.ir.target import Ceiling, Residency
from agentcompile.ir.trial import Fallback
from agentcompile.regions.cover import cover
from agentcompile.regions.kinds import hot_kinds
from agentcompile.regions.legal import Refusal
from agentcompile.regions.partition import Partition
from agentcompile.regions.problem import Option, Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionFigures:
    """The summary of one region; work, bytes and floor are those of one site."""

    id: str
    name: str
    kind: str
    hot: bool
    sites: int
    path: str
    """The module path of the first site."""
    operators: int
    dims: tuple[tuple[str, int], ...]
    ports: tuple[Port, ...]
    flops: int
    bytes: int
    weight_bytes: int
    state_bytes: int
    activation_bytes: int
    intensity: float
    """FLOP per byte."""
    bound: str
    """The ceiling that the floor touches: `memory` or `compute`."""
    floor_ns: float
    share: float
    """The floors of all the region's sites over the floor of the step."""
    covered: int
    """The number of sites that the cheapest cover by floors gives to the region."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A graph as regions, largest share first, with the boundaries and refusals that kept operators apart."""

    regime: str
    operators: int
    residency: Residency
    step_floor_ns: float
    step_bytes: int
    """The bytes that the cheapest cover by floors moves."""
    exact: bool
    rows: tuple[RegionFigures, ...]
    boundaries: tuple[Boundary, ...]
    refusals: tuple[Refusal, ...]

    def to_json(self) -> Json:
        """Return plain JSON values with the dataclasses' own keys."""
        return encode(self)


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
        _row(region, id, floors[id], step, covered.get(id, 0), ceiling, residency) for id, region in regions.items()
    ]
    return Summary(
        regime=partition.regime.name,
        operators=len(graph.nodes),
        residency=residency,
        step_floor_ns=best.cost_ns,
        step_bytes=sum(regions[id].cost.bytes * count for id, count in covered.items()),
        exact=best.exact,
        rows=tuple(sorted(rows, key=lambda row: (-row.share, row.name))),
        boundaries=partition.boundaries,
        refusals=partition.refusals,
    )


def _row(
    region: Region, id: str, floor: float, step: float, covered: int, ceiling: Ceiling, residency: Residency
) -> RegionFigures:
    cost = region.cost
    compute = ceiling.floor_ns(flops=cost.flops, bytes=0, residency=residency)
    return RegionFigures(
        id=id,
        name=region.name,
        kind=region.kind,
        hot=region.kind in hot_kinds(),
        sites=len(region.sites),
        path=region.sites[0].path,
        operators=len(region.body.nodes),
        dims=region.dims,
        ports=region.ports,
        flops=cost.flops,
        bytes=cost.bytes,
        weight_bytes=cost.weight_bytes,
        state_bytes=cost.state_bytes,
        activation_bytes=cost.activation_bytes,
        intensity=cost.intensity,
        bound="compute" if compute >= floor else "memory",
        floor_ns=floor,
        share=floor * len(region.sites) / step,
        covered=covered,
    )
