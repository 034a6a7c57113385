"""The trials of this run by region, which the scheduler, the rankings and the step tuner read and extend."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from agentcompile.ir.template import Source
from agentcompile.ir.trial import Trial
from agentcompile.tuning.jobs import JobMaker
from agentcompile.tuning.tasks import TuneTask


class RunTrials:
    """The trials of every task: search trials, then confirming ones; untimed runs have only trials that failed."""

    def __init__(self, tasks: Iterable[TuneTask], jobs: JobMaker) -> None:
        self._tasks = {task.region.id: task for task in tasks}
        self._jobs = jobs
        self._by_region: dict[str, tuple[Trial, ...]] = {}

    @property
    def tasks(self) -> Mapping[str, TuneTask]:
        """The tasks by region id, in the order in which they are searched."""
        return MappingProxyType(self._tasks)

    @property
    def by_region(self) -> Mapping[str, Sequence[Trial]]:
        """The trials by region id, of every region that has an entry."""
        return MappingProxyType(self._by_region)

    @property
    def candidates(self) -> int:
        """The number of distinct candidates that were evaluated."""
        return len({trial.candidate.id for trials in self._by_region.values() for trial in trials})

    def of(self, region: str) -> tuple[Trial, ...]:
        """Return the trials of a region id in the order in which they were made."""
        return self._by_region.get(region, ())

    def put(self, region: str, trials: Iterable[Trial]) -> None:
        """Replace the trials of a region id."""
        self._by_region[region] = tuple(trials)

    def add(self, region: str, trials: Iterable[Trial]) -> None:
        """Append to the trials of a region id."""
        self._by_region[region] = (*self.of(region), *trials)

    def resume_from(self, past: Iterable[Trial]) -> None:
        """Add the trials that an earlier process of the run made.

        Only those count whose candidate is still in its space and whose source is the same.
        """
        for trial in past:
            own = trial.candidate
            task = self._tasks.get(own.region)
            if task is not None and own in task.space and self._jobs.source(task, own).digest == trial.source:
                self.add(own.region, [trial])

    def sources(self) -> dict[str, Source]:
        """Return the source of every candidate that was tried, by digest."""
        found = {}
        for id, trials in self._by_region.items():
            for candidate in {trial.candidate.id: trial.candidate for trial in trials}.values():
                source = self._jobs.source(self._tasks[id], candidate)
                found[source.digest] = source
        return found
