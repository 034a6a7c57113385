"""The time of each region of a lock's decode step, and the operators of the graph that each region replaces.

On a CPU the executor times every call in a real generation. On a GPU, where launches overlap, a region's time is how
much faster the step is without its launches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentcompile.ir.graph import Graph
from agentcompile.ir.program import Program, TorchCall
from agentcompile.ir.region import Region
from agentcompile.ir.trial import Fallback, Part
from agentcompile.lockfile.order import regime_of
from agentcompile.regions.cover import cover
from agentcompile.regions.partition import Partition, partition
from agentcompile.regions.problem import Option, Problem
from agentcompile.regions.schedule import schedule
from agentcompile.replay.open import OpenedLock
from agentcompile.tuning.partitions import graph_of

from ..harness.looks import ranges


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One site of a step: its region, the number of the program's calls that run it, and its operators."""

    region: Region
    calls: int
    nodes: tuple[int, ...]


def stages(opened: OpenedLock, position: int) -> tuple[Program, tuple[Stage, ...]]:
    """Return the decode program that serves one sequence at `position`, and its sites in the order they run."""
    lock = opened.lock
    plan = next(one for one in lock.plan if one.phase == "decode" and one.batch == 1 and position < one.context[1])
    program = next(program for regime, program in opened.alone if regime.context == plan.context)
    graph, tokens = graph_of(opened.model.captured, regime_of(plan), lock.target.kind)
    cut, order = partition(graph, regime_of(plan), tokens=tokens), _order(graph)
    launches = {job.source.digest: len(job.source.launches) for job in opened.jobs}
    parts = [
        Part(region=choice.region, choice=Fallback(reason=choice.source), sites=choice.at) for choice in plan.choices
    ]
    found, at = list[Stage](), 0
    for step in schedule(graph, cut, parts):
        call = program.calls[at]
        assert call.region == step.region.id, f"call {at} is of {call.region}, not of {step.region.name}"
        calls = 1 if isinstance(call, TorchCall) else launches[call.source]
        found.append(Stage(region=step.region, calls=calls, nodes=tuple(order[node] for node in step.site.nodes)))
        at += calls
    assert at == len(program.calls), f"{len(program.calls)} calls, and the sites are {at}"
    return program, tuple(found)


def fewest(graph: Graph, cut: Partition) -> dict[str, str]:
    """Return by kind the operators of the cover with the fewest regions, as `looks.ranges` writes them."""
    same = Fallback(reason="counted")
    options = {region.id: (Option(cost_ns=1.0, choice=same),) for region in cut.regions}
    regions, order = {region.id: region for region in cut.regions}, _order(graph)
    found: dict[str, list[int]] = {}
    parts: Sequence[Part] = cover(Problem(graph=graph, partition=cut, options=options)).parts[0]
    for part in parts:
        region = regions[part.region]
        nodes = (order[node] for site in part.sites for node in region.sites[site].nodes)
        found.setdefault(region.kind, []).extend(nodes)
    return {kind: ranges(nodes) for kind, nodes in found.items()}


def clocked(opened: OpenedLock, spent_ns: Sequence[int], steps: int, position: int) -> list[dict[str, Any]]:
    """Return one `looks.PartTime` per site as plain values, from each call's total time in `steps` steps on a CPU."""
    parts, at = [], 0
    for stage in stages(opened, position)[1]:
        parts.append(_part([stage], sum(spent_ns[at : at + stage.calls]) / steps))
        at += stage.calls
    return parts


def left_out(opened: OpenedLock, position: int) -> tuple[list[dict[str, Any]], list[str]]:
    """Time a GPU's step without each region in turn; return one `looks.PartTime` per region as plain values.

    Also return the kinds that cannot be left out, because PyTorch runs them or the operators that read their outputs.
    """
    from ..harness.stepping import Bench

    program, sites = stages(opened, position)
    bench = Bench(opened)
    return parted(program, sites, lambda some: bench.time(some, position))


def parted(
    program: Program, sites: Sequence[Stage], time_ns: Callable[[Program], float]
) -> tuple[list[dict[str, Any]], list[str]]:
    """Do the work of `left_out` with a given program, its sites, and a function that times a program's step in ns."""
    whole, parts, kept = time_ns(program), list[dict[str, Any]](), list[str]()
    by_region: dict[str, list[Stage]] = {}
    for stage in sites:
        by_region.setdefault(stage.region.id, []).append(stage)
    for id, own in by_region.items():
        if any(isinstance(call, TorchCall) for call in program.calls if call.region == id):
            kept.append(own[0].region.kind)
            continue
        without = replace(program, calls=tuple(call for call in program.calls if call.region != id))
        try:
            parts.append(_part(own, max(whole - time_ns(without), 0.0)))
        except KeyError:  # PyTorch reads the region's output and finds no such buffer
            kept.append(own[0].region.kind)
    return parts, kept


def _part(own: Sequence[Stage], ns: float) -> dict[str, Any]:
    covers = ranges([node for stage in own for node in stage.nodes])
    return {"kind": own[0].region.kind, "ns": ns, "sites": len(own), "covers": covers}


def _order(graph: Graph) -> Mapping[str, int]:
    return {node.id: at for at, node in enumerate(graph.nodes)}
