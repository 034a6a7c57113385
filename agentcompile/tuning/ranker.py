"""Rankings of all regions: by confirmed times, by the adviser's order where nothing is timed, or all in PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Collection

from agentcompile.ir.advice import Advice
from agentcompile.ir.trial import Choice, Kernel
from agentcompile.tuning.acceptance import Acceptance
from agentcompile.tuning.jobs import JobMaker
from agentcompile.tuning.ranking import Ranking, rank
from agentcompile.tuning.run_trials import RunTrials
from agentcompile.tuning.tasks import TuneTask, templates_of
from agentcompile.tuning.untimed import first_of_layouts, in_pytorch, ranked


class Ranker:
    """A ranker of the candidates of every task of a run."""

    def __init__(
        self, trials: RunTrials, jobs: JobMaker, acceptance: Acceptance, advised: Callable[[TuneTask], Advice]
    ) -> None:
        self._trials, self._jobs, self._acceptance, self._advised = trials, jobs, acceptance, advised

    def of(self, region: str) -> Ranking:
        """Return the ranking of a region id: its kernels that beat the fallback, best first."""
        task = self._trials.tasks[region]
        return rank(
            self._trials.of(region), templates_of(task), traits=lambda candidate: self._jobs.traits(task, candidate)
        )

    def by_time(self) -> dict[str, Ranking]:
        """Return the ranking of every region that has trials, by region id."""
        return {region: self.of(region) for region in self._trials.by_region}

    def by_order(self, rejected: Collection[tuple[str, Choice]] = ()) -> dict[str, Ranking]:
        """Return by region id the first candidate of each layout, in the adviser's order, that may still ship.

        Left out are candidates among the `rejected` (region id, choice) pairs, those with a failed trial, and those
        that break a static rule. Nothing is built or timed: kernels that a plan takes must still be accepted.
        """
        no = {choice.candidate.id for _, choice in rejected if isinstance(choice, Kernel)}
        return {region: self._first(task, no) for region, task in self._trials.tasks.items()}

    def all_fallback(self) -> dict[str, Ranking]:
        """Return rankings in which every region runs in PyTorch, and forget the trials."""
        for region in self._trials.tasks:
            self._trials.put(region, ())
        return {region: in_pytorch(task) for region, task in self._trials.tasks.items()}

    def _first(self, task: TuneTask, no: Collection[str]) -> Ranking:
        region, advice = task.region.id, self._advised(task)
        while True:
            refused = {trial.candidate.id for trial in self._trials.of(region)} | set(no)
            chosen = first_of_layouts(task, advice, refused)
            refusals = (self._acceptance.known_failure(task, candidate) for candidate in chosen)
            found = [trial for trial in refusals if trial is not None]
            self._trials.add(region, found)
            if not found:
                break
        sources = [(candidate, self._jobs.source(task, candidate)) for candidate in chosen]
        return ranked(task, advice, sources, sum(candidate.id in refused for candidate in task.space))
