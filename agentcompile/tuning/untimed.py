"""Plans without a clock: which kernel of an order a region takes, and what it may cost where nobody has timed it.

In: a region with its ordered space, and what may not ship. Out: a ranking with one kernel for each layout, and times
from the roofline by which a cover can be solved. No candidate is timed for it.
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
"""A launch with the barrier that follows it: few launches are better than many."""
CALL_NS = 5000
"""PyTorch's dispatch of one operator from Python."""
INTERPRETER_NS = 2000
"""What a body of several operators takes on top of its operators' dispatch."""
LATER = 0.5
"""Relative: how much dearer each later one of a region's layouts is taken to be. More than what a prompt pays for
reading another layout, so that the adviser's first holds unless regions that share a weight disagree."""


def first_of_layouts(task: TuneTask, advice: Advice, refused: Collection[str]) -> tuple[Candidate, ...]:
    """The first candidate of each layout in the order of `advice`, without those whose ids are `refused`."""
    templates, found = templates_of(task), dict[Signature, Candidate]()
    for candidate in advice.sorted(tuple(task.space)):
        if candidate.id not in refused:
            found.setdefault(signature_of(templates[candidate.template]), candidate)
    return tuple(found.values())


def ranked(task: TuneTask, advice: Advice, chosen: Collection[tuple[Candidate, Source]], tried: int) -> Ranking:
    """The ranking of kernels that nobody has timed, one for each layout; `tried` were refused before them."""
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
    """The ranking of a region that is to stay as captured."""
    return Ranking(kernels=(), fallback=Fallback(reason="no kernel was asked for (choose = pytorch)"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimates:
    """What sites may take, in ns: their roofline, and a fixed time for everything that is started."""

    ceiling: Ceiling
    residency: Residency
    rankings: Mapping[str, Ranking]
    """By region id: where a kernel stands among its region's layouts."""

    def fallback_ns(self, region: Region) -> float:
        """As captured, in PyTorch."""
        nodes = max(len(region.body.nodes), 1)
        more = INTERPRETER_NS if nodes > 1 else 0
        return region.floor_ns(self.ceiling, self.residency) + nodes * CALL_NS + more

    def kernel_ns(self, region: Region, kernel: Kernel) -> float:
        """By a kernel, of which one launch is assumed."""
        order = [own for _, kernels in self.rankings[region.id].kernels for own in kernels]
        return region.floor_ns(self.ceiling, self.residency) * (1 + LATER * order.index(kernel)) + LAUNCH_NS
