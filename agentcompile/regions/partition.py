"""The regions that a graph could be cut into: all legal regions of all kinds, merged over their sites.

In: a graph and a regime. Out: `Partition`: regions (which overlap on purpose), hard boundaries, and refused matches
with their reasons. Invariant: every operator is a region by itself, so an exact cover exists.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from agentcompile.ir.graph import Graph
from agentcompile.ir.region import ANY, Boundary, Regime, Region, longest_chunk
from agentcompile.regions.body import RegionParts, UnequalError, make, measure_constants, measure_dims
from agentcompile.regions.boundaries import ORDERED, boundaries
from agentcompile.regions.cost import cost
from agentcompile.regions.kinds import REGION_KINDS, SINGLE_DIMS, Kind, kind_order, single_kind
from agentcompile.regions.legal import LegalityFacts, Refusal, facts, fault
from agentcompile.regions.match import Finder, Match
from agentcompile.regions.order import Order, order
from agentcompile.regions.views import misread

CHUNK = 128
"""The tokens of a prefill chunk for which extents and costs are computed, unless the caller gives a number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """The regions that a graph can be cut into for one regime."""

    regime: Regime
    regions: tuple[Region, ...]
    """The regions in order of their first site; at equal sites larger regions come first."""
    boundaries: tuple[Boundary, ...]
    refusals: tuple[Refusal, ...] = ()

    def region(self, id: str) -> Region:
        """Return the region with this id.

        Raises:
            KeyError: no region has this id.
        """
        return {region.id: region for region in self.regions}[id]


def ordered(graph: Graph, found: Sequence[Boundary]) -> Order:
    """Return the order of operators that every cover of `graph` keeps."""
    return order(graph, {boundary.node for boundary in found if boundary.reason in ORDERED})


def partition(graph: Graph, regime: Regime, *, kinds: Sequence[Kind] = REGION_KINDS, tokens: int = 0) -> Partition:
    """Find all regions of `graph`, a decode graph of the regime's batch size or a prefill graph.

    In a prefill graph, extents and costs are computed for `tokens` tokens; 0 means `CHUNK`, or the longest context if
    that is less.
    """
    count = regime.batch if graph.phase == "decode" else tokens or min(CHUNK, regime.context[1])
    edges = boundaries(graph)
    known = facts(graph, ordered(graph, edges))
    finder = Finder(graph, frozenset(boundary.node for boundary in edges))
    regions: list[Region] = []
    refusals: list[Refusal] = []
    alone: set[str] = set()
    for kind in kinds:
        if graph.phase not in kind.phases:
            continue
        for match in finder.find(kind.name, kind.parsed):
            made = _admit(kind, match, known, regime, count)
            if isinstance(made, Refusal):
                refusals.append(made)
            else:
                regions.append(made)
                alone |= match.nodes if len(match.nodes) == 1 else set()
    regions += _singles(finder, known, alone, regime, count)
    return Partition(regime=regime, regions=_merged(regions, known.order), boundaries=edges, refusals=tuple(refusals))


def _singles(finder: Finder, known: LegalityFacts, alone: set[str], regime: Regime, tokens: int) -> Iterator[Region]:
    for node in known.graph.nodes:
        if node.id not in alone:
            name, pattern = single_kind(node)
            made = make(finder.single(node, name, pattern), known)
            sizes = SINGLE_DIMS if len(node.outputs) == 1 else ()
            yield _region(name, made, measure_dims(sizes, made.body, tokens), (), regime, tokens)


def _admit(kind: Kind, match: Match, known: LegalityFacts, regime: Regime, tokens: int) -> Region | Refusal:
    views = kind.stated
    viewed = frozenset(seen.name for seen in views)
    reason = fault(match, kind.parsed.results, frozenset(kind.exposes), known, viewed)
    if not reason:
        made = make(match, known)
        try:
            dims = measure_dims(kind.sizes, made.body, tokens)
            constants = measure_constants(kind.scalars, made.body)
        except UnequalError as unequal:
            reason = str(unequal)
        else:
            reason = misread(views, made.body, dict(dims)) if views else ""
            if not reason:
                return _region(kind.name, made, dims, constants, regime, tokens, stated=bool(views))
    nodes = sorted(match.nodes, key=known.order.index.__getitem__)
    path = known.graph.nodes[known.order.index[nodes[0]]].module
    return Refusal(kind=kind.name, nodes=tuple(nodes), reason=reason, path=path)


def _region(
    kind: str,
    made: RegionParts,
    dims: tuple[tuple[str, int], ...],
    constants: tuple[tuple[str, float], ...],
    regime: Regime,
    tokens: int,
    *,
    stated: bool = False,
) -> Region:
    if all(port.role != "state" for port in made.ports):
        regime = replace(regime, context=ANY)  # one region, tuned once, for the plans of every context
    count = longest_chunk((*dims, ("tokens", tokens)), made.ports) if regime.phase == "prefill" else tokens
    return Region(
        kind=kind,
        regime=regime,
        body=made.body,
        ports=made.ports,
        dims=dims,
        constants=constants,
        stated=stated,
        sites=(made.site,),
        cost=cost(made.body, made.ports, tokens=count, context=regime.context[1]),
    )


def _merged(regions: list[Region], known: Order) -> tuple[Region, ...]:
    groups: dict[str, list[Region]] = {}
    for region in regions:
        groups.setdefault(region.id, []).append(region)

    def place(region: Region) -> tuple[int, int, int]:
        first = region.sites[0].nodes
        return known.index[first[0]], -len(first), -kind_order(region.kind)

    merged = []
    for group in groups.values():
        sites = sorted((site for region in group for site in region.sites), key=lambda site: known.index[site.nodes[0]])
        merged.append(replace(group[0], sites=tuple(sites)))
    return tuple(sorted(merged, key=place))
