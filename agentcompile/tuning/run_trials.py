"""The trials of this run by region: the one place that the scheduler, the rankings and the step read and add to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from agentcompile.ir.template import Source
from agentcompile.ir.trial import Trial
from agentcompile.tuning.jobs import JobMaker
from agentcompile.tuning.tasks import TuneTask


class RunTrials:
    """Search trials, then confirming ones, of every task; where nothing is timed, those of what may not ship."""

    def __init__(self, tasks: Iterable[TuneTask], jobs: JobMaker) -> None:
        self._tasks = {task.region.id: task for task in tasks}
        self._jobs = jobs
        self._trials: dict[str, tuple[Trial, ...]] = {}

    @property
    def tasks(self) -> Mapping[str, TuneTask]:
        """The tasks by region id, in the order in which they are searched."""
        return MappingProxyType(self._tasks)

    @property
    def by_region(self) -> Mapping[str, Sequence[Trial]]:
        """The trials of every region of which there are any, by region id."""
        return MappingProxyType(self._trials)

    @property
    def candidates(self) -> int:
        """Distinct candidates that were evaluated."""
        return len({trial.candidate.id for trials in self._trials.values() for trial in trials})

    def of(self, region: str) -> tuple[Trial, ...]:
        """Return the trials of a region id in the order in which they were made."""
        return self._trials.get(region, ())

    def put(self, region: str, trials: Iterable[Trial]) -> None:
        """Replace the trials of a region id."""
        self._trials[region] = tuple(trials)

    def add(self, region: str, trials: Iterable[Trial]) -> None:
        """Append to the trials of a region id."""
        self._trials[region] = (*self.of(region), *trials)

    def resume_from(self, past: Iterable[Trial]) -> None:
        """Begin with trials that an earlier process of the run made, of points that are still in their spaces and
        whose source is the same."""
        for trial in past:
            own = trial.candidate
            task = self._tasks.get(own.region)
            if task is not None and own in task.space and self._jobs.source(task, own).digest == trial.source:
                self.add(own.region, [trial])

    def sources(self) -> dict[str, Source]:
        """Return the source of every candidate that was tried, by digest."""
        found = {}
        for id, trials in self._trials.items():
            for candidate in {trial.candidate.id: trial.candidate for trial in trials}.values():
                source = self._jobs.source(self._tasks[id], candidate)
                found[source.digest] = source
        return found
