"""Plans without timing: which kernel of the adviser's order a region takes, and its estimated cost.

In: a region with its ordered space, and the candidates that may not ship. Out: a ranking with one kernel for each
layout, and roofline times by which a cover can be solved. No candidate is timed for it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from agentcompile.ir.advice import Advice
from agentcompile.ir.region import Region
from agentcompile.ir.target import Ceiling, Residency
from agentcompile.ir.template import Candidate, Source
from agentcompile.ir.trial import Fallback, Kernel
from agentcompile.tuning.ranking import Ranking, Signature, signature_of
from agentcompile.tuning.tasks import TuneTask, templates_of

LAUNCH_NS = 1500
"""Estimated time of a launch with the barrier that follows it, so that few launches cost less than many."""
CALL_NS = 5000
"""Estimated time in which PyTorch dispatches one operator from Python."""
INTERPRETER_NS = 2000
"""Estimated extra time of a body of several operators, beside the dispatch of each."""
LATER = 0.5
"""Relative extra cost assumed for each later layout of a region. It is more than what a prompt pays for reading another
layout, so that the adviser's first choice holds unless regions that share a weight disagree."""


def first_of_layouts(task: TuneTask, advice: Advice, refused: Collection[str]) -> tuple[Candidate, ...]:
    """Return the first candidate of each layout in the order of `advice`, without those whose ids are `refused`."""
    templates, found = templates_of(task), dict[Signature, Candidate]()
    for candidate in advice.sorted(tuple(task.space)):
        if candidate.id not in refused:
            found.setdefault(signature_of(templates[candidate.template]), candidate)
    return tuple(found.values())


def ranked(task: TuneTask, advice: Advice, chosen: Collection[tuple[Candidate, Source]], tried: int) -> Ranking:
    """Return the ranking of untimed kernels, one for each layout; `tried` counts candidates that may not ship."""
    templates = templates_of(task)
    before = f" after {tried} that may not ship" if tried else ""
    reason = f"the first of the order of {advice.label}{before}; not timed"
    kernels = {
        signature_of(templates[candidate.template]): Kernel(
            candidate=candidate,
            source=source.digest,
            speedup=1.0,
            half_width=0.0,
            decided_by="adviser",
            reason=reason,
        )
        for candidate, source in chosen
    }
    fallback = Fallback(reason=f"none of {tried} candidates may ship" if tried else "its space is empty")
    return Ranking(kernels=tuple((own, (kernel,)) for own, kernel in kernels.items()), fallback=fallback)


def in_pytorch(task: TuneTask) -> Ranking:
    """Return the ranking of a region that stays in PyTorch because the rule of choice is "pytorch"."""
    return Ranking(kernels=(), fallback=Fallback(reason="no kernel was asked for (choose = pytorch)"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimates:
    """Estimated times of sites in ns: their roofline, and a fixed time for each launch or operator."""

    ceiling: Ceiling
    residency: Residency
    rankings: Mapping[str, Ranking]
    """Rankings by region id, which have the place of a kernel among its region's layouts."""

    def fallback_ns(self, region: Region) -> float:
        """Return the estimated time of one site in PyTorch."""
        nodes = max(len(region.body.nodes), 1)
        more = INTERPRETER_NS if nodes > 1 else 0
        return region.floor_ns(self.ceiling, self.residency) + nodes * CALL_NS + more

    def kernel_ns(self, region: Region, kernel: Kernel) -> float:
        """Return the estimated time of one site by a kernel; one launch is assumed."""
        order = [own for _, kernels in self.rankings[region.id].kernels for own in kernels]
        return region.floor_ns(self.ceiling, self.residency) * (1 + LATER * order.index(kernel)) + LAUNCH_NS
