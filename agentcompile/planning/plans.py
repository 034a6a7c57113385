"""Plans made from rankings: the options of each region with their costs, and the cheapest cover of both phases."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from agentcompile.backends import backend_of
from agentcompile.ir.graph import ITEM_BYTES, Phase, concrete
from agentcompile.ir.region import Region
from agentcompile.ir.target import Ceiling
from agentcompile.ir.trial import Choice, Fallback, Kernel, Layouts, Measured, Part, Trial
from agentcompile.ops.layouts import LAYOUTS, fits, multiplied
from agentcompile.regions.cover import cover, cover_jointly
from agentcompile.regions.downsets import CoverError
from agentcompile.regions.problem import Option, Problem
from agentcompile.regions.schedule import schedule
from agentcompile.tuning.partitions import Cut
from agentcompile.tuning.ranking import Ranking
from agentcompile.tuning.scheduler import STEPS_PER_CHUNK
from agentcompile.tuning.tasks import TuneTask, templates_of

OPTIMISM = 0.75
"""Factor on a region's time that a search might reach: one that even so enters no cover is not searched further."""
NEAR = 0.93
"""Factor on a region's time that fresh data might show: one that even so enters no cover need not be confirmed."""
LENIENCE = 0.9
"""Factor on a region's roofline floor, below which no time is expected. It is less than 1 because ceilings are measured
too; the nearer all times are to the floor, the more the differences between them are chance."""
UNTRIED = "it was not tried: time was short"


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """Covers of both phases, which agree on the layouts of weights."""

    decode: tuple[tuple[Part, ...], ...]
    """One cover for each regime."""
    prefill: tuple[Part, ...]
    layouts: Layouts
    exact: bool
    decode_ns: float
    """Sum in ns of the isolated times of the first regime's parts: an estimate until admission measures the step."""


def contenders(
    cuts: Sequence[Cut],
    tasks: Sequence[TuneTask],
    best_ns: Mapping[str, float],
    fallback_ns: Callable[[Region], float],
    optimism: float = OPTIMISM,
) -> tuple[TuneTask, ...]:
    """Return the tasks that would enter the cheapest cover if their time alone were multiplied by `optimism`.

    `best_ns` has the best measured time of a site by region id; for a region without one its fallback's time counts.
    """
    kept: set[str] = set()
    for cut in cuts:
        now = {id: best_ns.get(id, fallback_ns(region)) for id, region in cut.regions.items()}
        for task in tasks:
            own = task.region.id
            if own in now and own not in kept and _enters(cut, now, task, optimism):
                kept.add(own)
    return tuple(task for task in tasks if task.region.id in kept)


def _enters(cut: Cut, now: Mapping[str, float], task: TuneTask, optimism: float) -> bool:
    """Return whether the cheapest cover has the task's region when its time alone is multiplied by `optimism`."""
    own = task.region.id
    hoped = min(now[own], max(now[own] * optimism, task.floor_ns * LENIENCE))
    return any(part.region == own for part in cheapest(cut, {**now, own: hoped}))


def cheapest(cut: Cut, times: Mapping[str, float]) -> tuple[Part, ...]:
    """Return the cheapest cover of a cut whose regions have one time in ns each, by id; others take no part.

    Raises:
        CoverError: an operator is in no region that has a time.
    """
    options = {id: (Option(cost_ns=ns, choice=Fallback(reason="estimate")),) for id, ns in times.items()}
    return cover(Problem(graph=cut.graph, partition=cut.partition, options=options)).parts[0]


def estimate(cut: Cut, best_ns: Mapping[str, float]) -> float:
    """Return the time in ns of a step as the cheapest cover of its regions' best times; 0 while too few have a time."""
    try:
        parts = cheapest(cut, {id: ns for id, ns in best_ns.items() if id in cut.regions})
    except CoverError:  # regions that no template serves may have no time yet
        return 0.0
    return cost_of(cut, parts, best_ns)


def cost_of(cut: Cut, parts: Sequence[Part], times: Mapping[str, float]) -> float:
    """Return the time in ns of a cover, from the time of a site of each region by id."""
    return sum(len(part.sites or cut.regions[part.region].sites) * times[part.region] for part in parts)


def plan(
    decode: Sequence[Cut],
    prefill: Cut,
    tasks: Sequence[TuneTask],
    rankings: Mapping[str, Ranking],
    trials: Mapping[str, Sequence[Trial]],
    fallback_ns: Callable[[Region], float],
    ceiling: Ceiling,
    kind: str,
    forbidden: Collection[tuple[str, Choice]] = (),
    kernel_ns: Callable[[Region, Kernel], float] | None = None,
    leaving_ns: Mapping[Phase, float] | None = None,
) -> Planned:
    """Cover all regimes of both phases at once, at the least cost; `forbidden` has rejected (region id, choice) pairs.

    The cost of a kernel is the median of its last confirm trial in `trials`, or `kernel_ns` of it where that is given.
    Each change of a step from kernels to PyTorch costs `leaving_ns` of its phase more; where that is given, kernels
    that PyTorch only just beats in isolation are considered too, because they may keep the step in native code.
    """
    leaving_ns = leaving_ns or {}

    def costs(region: Region, kernel: Kernel) -> float:
        return kernel_ns(region, kernel) if kernel_ns else measured_ns(kernel, trials.get(region.id, ()))

    def decoding(near: bool) -> dict[str, tuple[Option, ...]]:
        return {
            id: _options(region, rankings.get(id), fallback_ns(region), tasks, costs, near)
            for cut in decode
            for id, region in cut.regions.items()
        }

    def prompting(near: bool) -> dict[str, tuple[Option, ...]]:
        # Kernels of a prefill compete with PyTorch running the same operators one by one.
        measured = {
            id: _options(region, rankings.get(id), fallback_ns(region), tasks, costs, near)
            for id, region in prefill.regions.items()
            if len(region.body.nodes) == 1 or id in rankings
        }
        if backend_of(kind).any_chunk:
            measured = {id: (*some, *_packed(prefill.regions[id], some[0], ceiling)) for id, some in measured.items()}
        return measured

    def covered(more_ns: Mapping[Phase, float]) -> tuple[float, Planned]:
        """Return the cost of a cover, and the cover that is cheapest when every fallback costs `more_ns` more."""
        step_ns, chunk_ns = more_ns.get("decode", 0.0), more_ns.get("prefill", 0.0)
        options, chunks = decoding("decode" in more_ns), prompting("prefill" in more_ns)
        dearer = {id: tuple(_dearer(option, step_ns) for option in some) for id, some in options.items()}
        prompts = {id: tuple(_dearer(option, chunk_ns) for option in some) for id, some in chunks.items()}
        prompt = Problem(graph=prefill.graph, partition=prefill.partition, options=prompts, weight=1 / STEPS_PER_CHUNK)
        problems = [Problem(graph=cut.graph, partition=cut.partition, options=dearer) for cut in decode]
        found = cover_jointly([*problems, prompt], forbidden=forbidden)
        made = Planned(
            decode=found.parts[:-1],
            prefill=found.parts[-1],
            layouts=found.layouts,
            exact=found.exact,
            decode_ns=_estimate(found.parts[0], options),
        )
        cost = found.cost_ns
        steps: list[tuple[Cut, Sequence[Part], float, Phase]] = [
            (cut, parts, 1.0, "decode") for cut, parts in zip(decode, made.decode, strict=True)
        ]
        steps.append((prefill, made.prefill, prompt.weight, "prefill"))
        for cut, parts, weight, phase in steps:
            sites = sum(len(part.sites) for part in parts if isinstance(part.choice, Fallback))
            left = leaves(cut, parts) if leaving_ns else 0
            cost += weight * (leaving_ns.get(phase, 0.0) * left - more_ns.get(phase, 0.0) * sites)
        return cost, made

    some: list[Mapping[Phase, float]] = [{}]
    for phase, ns in leaving_ns.items():
        with_it: list[Mapping[Phase, float]] = [{**one, phase: ns} for one in some]
        some += with_it
    covers = [covered(one) for one in some]
    return min(covers, key=lambda pair: pair[0])[1]


def _dearer(option: Option, more_ns: float) -> Option:
    return replace(option, cost_ns=option.cost_ns + more_ns) if isinstance(option.choice, Fallback) else option


def leaves(cut: Cut, parts: Sequence[Part]) -> int:
    """Return how often a step changes from kernels to PyTorch, its start included; 0 where it has no kernel."""
    runs = [isinstance(step.choice, Kernel) for step in schedule(cut.graph, cut.partition, parts)]
    if not any(runs):
        return 0
    return sum(not native and (at == 0 or runs[at - 1]) for at, native in enumerate(runs))


def _estimate(parts: Sequence[Part], options: Mapping[str, Sequence[Option]]) -> float:
    costs = {(id, option.choice): option.cost_ns for id, some in options.items() for option in some}
    return sum(len(part.sites) * costs[part.region, part.choice] for part in parts)


def _options(
    region: Region,
    ranking: Ranking | None,
    fallback_ns: float,
    tasks: Sequence[TuneTask],
    costs: Callable[[Region, Kernel], float],
    near: bool = False,
) -> tuple[Option, ...]:
    task = next((s for s in tasks if s.region.id == region.id), None)
    if task is None or ranking is None:
        reason = UNTRIED if task else "no template serves this region here"
        return (Option(cost_ns=fallback_ns, choice=Fallback(reason=reason)),)
    options = [Option(cost_ns=fallback_ns, choice=ranking.fallback)]
    templates = templates_of(task)
    for _, kernels in (*ranking.kernels, *(ranking.near if near else ())):
        for kernel in kernels:
            layouts = templates[kernel.candidate.template].layouts
            options.append(Option(layouts=layouts, cost_ns=costs(region, kernel), choice=kernel))
    return tuple(options)


def _packed(region: Region, fallback: Option, ceiling: Ceiling) -> Iterator[Option]:
    """Yield the fallback of one operator of a prefill on a CPU with its weight in each layout that can hold it.

    A packed weight is multiplied as it lies where `runtime.packed` can; else it is unpacked for each chunk, which
    reads, writes and reads it again.
    """
    matrices = [port for port in region.ports if port.role == "weight" and len(port.shape) == 2]
    for port in matrices if len(region.body.nodes) == 1 else ():
        for layout in LAYOUTS:
            if layout != "row-major" and fits(layout, port.shape, port.dtype):
                times = 0 if multiplied(layout, port.dtype) else 3
                moved = times * math.prod(concrete(port.shape)) * ITEM_BYTES[port.dtype]
                cost = fallback.cost_ns + 1e9 * moved / ceiling.dram_bytes_per_s
                yield replace(fallback, layouts=((port.family, layout),), cost_ns=cost)


def measured_ns(kernel: Kernel, trials: Sequence[Trial]) -> float:
    """Return the median time in ns of the last confirm trial of a kernel, or, where it has none, of its last trial.

    Raises:
        KeyError: the kernel has no trial with a time.
    """
    times = {
        trial.candidate.id: float(trial.verdict.measurement.median_ns)
        for fidelity in ("search", "confirm")
        for trial in trials
        if trial.fidelity == fidelity and isinstance(trial.verdict, Measured)
    }
    return times[kernel.candidate.id]
