"""The sites of a plan in the order they run, and the check that a plan read from a file is legal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from agentcompile.ir.graph import Graph
from agentcompile.ir.region import Region, Site
from agentcompile.ir.trial import Choice, Part
from agentcompile.regions.downsets import CoverError
from agentcompile.regions.order import bits
from agentcompile.regions.partition import Partition, ordered


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledSite:
    """One site of a plan with the choice that runs it."""

    region: Region
    site: Site
    choice: Choice


def schedule(graph: Graph, partition: Partition, parts: Sequence[Part]) -> tuple[ScheduledSite, ...]:
    """Order the sites of a plan, producers first, and by the graph's own order where there is a choice.

    Raises:
        CoverError: the partition lacks a region or site, an operator is covered twice or not at all, or parts wait for
            each other.
    """
    steps = list(_steps(partition, parts))
    order = ordered(graph, partition.boundaries)
    masks = [order.mask(step.site.nodes) for step in steps]
    done = 0
    for step, mask in zip(steps, masks, strict=True):
        if twice := done & mask:
            node = graph.nodes[next(bits(twice))].id
            raise CoverError(f"{node} is covered twice, the second time by {step.region.name}")
        done |= mask
    if left := ((1 << len(graph.nodes)) - 1) & ~done:
        raise CoverError(f"{graph.nodes[next(bits(left))].id} is not covered")
    needs = [order.needs(mask) for mask in masks]
    waiting = sorted(range(len(steps)), key=lambda i: masks[i] & -masks[i])
    done = 0
    result: list[ScheduledSite] = []
    while waiting:
        ready = next((i for i in waiting if not needs[i] & ~done), None)
        if ready is None:
            raise CoverError(
                f"{steps[waiting[0]].region.name} and {steps[waiting[-1]].region.name} wait for each other"
            )
        waiting.remove(ready)
        done |= masks[ready]
        result.append(steps[ready])
    return tuple(result)


def _steps(partition: Partition, parts: Sequence[Part]) -> Iterator[ScheduledSite]:
    regions = {region.id: region for region in partition.regions}
    for part in parts:
        if part.region not in regions:
            raise CoverError(f"the graph has no region {part.region[:12]}")
        region = regions[part.region]
        for i in part.sites or range(len(region.sites)):
            if not 0 <= i < len(region.sites):
                raise CoverError(f"{region.name} has {len(region.sites)} occurrences, none is number {i}")
            yield ScheduledSite(region=region, site=region.sites[i], choice=part.choice)
