"""Which regions are tried first: those that a plan needs, then those that could enter one, while there is time.

In: the cuts of both phases, and the scheduler with the trials so far. Out: tasks without trials. Regions overlap, so
that a plan has fewer than half of them; a search that is short of time leaves the others out.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from agentcompile.backends import backend_of
from agentcompile.ir.graph import Phase
from agentcompile.ir.region import Region
from agentcompile.planning.plans import cheapest, contenders
from agentcompile.tuning.partitions import Cut
from agentcompile.tuning.prepared import PreparedModel
from agentcompile.tuning.scheduler import TaskScheduler
from agentcompile.tuning.tasks import TuneTask
from agentcompile.tuning.untimed import LAUNCH_NS, Estimates

HOPE = 0.8
"""The share of PyTorch's time that a kernel of an untried region is assumed to take, once others were tried: the region
is needed where the kernels of those that it overlaps with are not as fast."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstRegions:
    """The regions to try first, by the trials that `scheduler` has at each call.

    `tried` has the ids of those whose first candidates were tried: trials that a person asked for make a region none.
    """

    prepared: PreparedModel
    scheduler: TaskScheduler

    def needed(self, tried: Collection[str]) -> tuple[TuneTask, ...]:
        """Return the untried tasks of the cheapest covers by what is known, those of decode steps first.

        Where nothing was tried, kernels are assumed to run at their roofline, so that the largest regions are taken.
        """
        best, about = self._best_ns(tried), self._estimates()
        untried = self._roofline_ns if not best else lambda region: HOPE * self.scheduler.fallback_ns(region)
        pytorch = self.scheduler.fallback_ns if best else about.fallback_ns
        covers = (cheapest(cut, self._times(cut, best, untried, pytorch)) for cut in self._cuts)
        found = {part.region for parts in covers for part in parts}
        if not backend_of(self.prepared.here.device).any_chunk:  # a chunk's regions have few candidates there
            found |= {task.region.id for task in self.prepared.prompt_tasks}
        return tuple(task for task in self._tasks if task.region.id in found.difference(tried))

    def others(self, tried: Collection[str]) -> tuple[TuneTask, ...]:
        """Return the untried tasks, first those that would enter a cover if they were as good as those tried.

        As good means: as many times slower than their roofline as the median region of their phase.
        """
        best = self._best_ns(tried)
        rest = [task for task in self._tasks if task.region.id not in tried]
        slower: dict[Phase, list[float]] = {}
        for task in self._tasks:
            if task.region.id in best:
                of_phase = slower.setdefault(task.region.regime.phase, [])
                of_phase.append(best[task.region.id] / self._roofline_ns(task.region))
        hoped = {
            task.region.id: self._roofline_ns(task.region) * statistics.median(slower[task.region.regime.phase])
            for task in rest
            if task.region.regime.phase in slower
        }
        first = contenders(self._cuts, rest, {**best, **hoped}, self.scheduler.fallback_ns)
        return (*first, *(task for task in rest if task not in first))

    def _best_ns(self, tried: Collection[str]) -> dict[str, float]:
        return {id: ns for id, ns in self.scheduler.best_ns().items() if id in tried}

    @property
    def _tasks(self) -> tuple[TuneTask, ...]:
        return (*self.prepared.tasks, *self.prepared.prompt_tasks)

    @property
    def _cuts(self) -> tuple[Cut, ...]:
        return (*self.prepared.decode, self.prepared.prefill)

    def _estimates(self) -> Estimates:
        return Estimates(ceiling=self.prepared.ceiling, residency=self.prepared.prefill.residency, rankings={})

    def _roofline_ns(self, region: Region) -> float:
        return region.floor_ns(self.prepared.ceiling, self.prepared.prefill.residency) + LAUNCH_NS

    def _times(
        self,
        cut: Cut,
        best: Mapping[str, float],
        untried: Callable[[Region], float],
        pytorch: Callable[[Region], float],
    ) -> dict[str, float]:
        """Return a time in ns for each region of a cut: its best one, or that of a kernel or PyTorch by estimate."""
        served = {task.region.id for task in self._tasks}
        times = {id: untried(region) for id, region in cut.regions.items() if id in served}
        times |= {id: pytorch(region) for id, region in cut.regions.items() if id not in served}
        return {id: best.get(id, ns) for id, ns in times.items()}
