"""Candidates for the step: the points of a region that are tried in the step, and their evaluation."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from agentcompile.evaluation.time_budget import Left, any_time
from agentcompile.ir.advice import Advice
from agentcompile.ir.template import Candidate, Source
from agentcompile.ir.trial import Kernel, Measured, Trial
from agentcompile.tuning.ranker import Ranker
from agentcompile.tuning.run_trials import RunTrials
from agentcompile.tuning.tasks import TuneTask
from agentcompile.tuning.tuner import Tuner

TOO_SLOW = 1.6
"""A template is not tried in the step when its best known candidate takes, in isolation, more than this times as long
as the region's fastest."""
TRIED_IN_STEP = 112
"""The most points of a region that are timed in the step. In Qwen3-1.7B on an H200 the best of all points was always
among the adviser's first 37 of its template."""


class StepCandidates:
    """The candidates of regions while a step is tuned; new ones are evaluated as long as that step has time."""

    def __init__(
        self,
        trials: RunTrials,
        tuner: Tuner,
        ranker: Ranker,
        advised: Callable[[TuneTask], Advice],
        left: Left = any_time,
    ) -> None:
        self._trials, self._tuner, self._ranker, self._advised = trials, tuner, ranker, advised
        self._left = left

    def limit(self, left: Left) -> None:
        """Set the countdown of the step that is tuned from here on."""
        self._left = left

    def left(self) -> float:
        """Return the seconds in which candidates may still be evaluated."""
        return self._left()

    def trials(self, region: str) -> tuple[Trial, ...]:
        """Return the trials of a region id in the order in which they were made."""
        return self._trials.of(region)

    def promising(self, region: str) -> list[Candidate]:
        """Return at most `TRIED_IN_STEP` points of a region, taking turns among templates, in the adviser's order.

        Only templates count whose best known candidate is correct and, in isolation, within `TOO_SLOW` of the region's
        fastest; candidates that failed are left out. A template without trials gets one first. When time is up, only
        candidates that were measured are returned.
        """
        task, own = self._trials.tasks[region], dict[str, list[Candidate]]()
        for candidate in self._advised(task).sorted(tuple(task.space)):
            own.setdefault(candidate.template, []).append(candidate)
        seen = {trial.candidate.template for trial in self._trials.of(region)}
        self.evaluated(region, [some[0] for template, some in own.items() if template not in seen])
        trials = self._trials.of(region)
        times = {
            trial.candidate: trial.verdict.measurement.median_ns
            for trial in trials
            if isinstance(trial.verdict, Measured)
        }
        worth = TOO_SLOW * min(times.values(), default=0)
        known = {candidate.template for candidate, ns in times.items() if ns <= worth}
        failed = {trial.candidate for trial in trials if not isinstance(trial.verdict, Measured)}
        turns = itertools.chain.from_iterable(
            itertools.zip_longest(*(own[template] for template in own if template in known))
        )
        found = [candidate for candidate in turns if candidate is not None and candidate not in failed]
        return [one for one in found if self.left() > 0 or one in times][:TRIED_IN_STEP]

    def built(self, region: str, candidates: Sequence[Candidate]) -> list[tuple[Candidate, Source]]:
        """Return the candidates that pass the static check and build, with their sources, in their order.

        Those that were measured, whose builds are kept, come back in any case, the others as long as time is left.
        """
        task = self._trials.tasks[region]
        known = {trial.candidate.id for trial in self._trials.of(region) if isinstance(trial.verdict, Measured)}
        jobs = [
            *self._tuner.built(task, [one for one in candidates if one.id in known]),
            *self._tuner.built(task, [one for one in candidates if one.id not in known], self._left),
        ]
        sources = {job.candidate: job.source for job in jobs}
        return [(candidate, sources[candidate]) for candidate in candidates if candidate in sources]

    def evaluated(self, region: str, wanted: Sequence[Candidate]) -> list[Trial]:
        """Return search trials of `wanted`: first the known ones, then, while there is time, new ones of the others.

        Candidates that failed when they were confirmed are left out.
        """
        failed = {
            trial.candidate.id
            for trial in self._trials.of(region)
            if trial.fidelity == "confirm" and not isinstance(trial.verdict, Measured)
        }
        wanted = [candidate for candidate in wanted if candidate.id not in failed]
        known = {
            trial.candidate.id: trial
            for trial in self._trials.of(region)
            if trial.fidelity == "search" or isinstance(trial.verdict, Measured)
        }
        fresh = [candidate for candidate in wanted if candidate.id not in known] if self.left() > 0 else []
        made = self._tuner.evaluated(self._trials.tasks[region], fresh)
        self._trials.add(region, made)
        return [*(known[one.id] for one in wanted if one.id in known), *made]

    def confirmed(self, region: str, candidate: Candidate) -> Kernel | None:
        """Return the kernel of `candidate`, confirmed beside PyTorch in fresh processes; None when it is not faster."""
        self._trials.add(region, self._tuner.confirmed(self._trials.tasks[region], [candidate]))
        kernels = [kernel for _, some in self._ranker.of(region).kernels for kernel in some]
        return next((kernel for kernel in kernels if kernel.candidate.id == candidate.id), None)

    def sources(self) -> dict[str, Source]:
        """Return the source of every candidate that was tried, by digest."""
        return self._trials.sources()
