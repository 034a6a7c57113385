"""What is known about each region of a step while its search goes on, and how the budget is shared out."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from agentcompile.control.steering import Steering
from agentcompile.evaluation.evaluator import EvaluationJob
from agentcompile.evaluation.time_budget import Left, any_time, part_of
from agentcompile.ir.graph import ITEM_BYTES
from agentcompile.ir.region import Region
from agentcompile.ir.target import Residency
from agentcompile.ir.template import Candidate, Source
from agentcompile.ir.trial import Choice, Kernel, Measured, Part, Trial
from agentcompile.search import Budget, Strategy
from agentcompile.tuning.partitions import Cut
from agentcompile.tuning.ranking import Ranking, Traits, rank
from agentcompile.tuning.tuner import Tuner, TuneTask, templates_of
from agentcompile.tuning.untimed import first_of_layouts, in_pytorch, ranked

FIRST_CANDIDATES = 8
"""Templates of a region whose most promising candidate is looked at."""
PACE_SHARE = 0.5
"""Of the search's time, for the first candidates of all regions."""
LEAST = 6
"""Candidates that a searched region may spend however small its share."""
MOST = 48
"""Candidates beyond which a region's search stops paying, whatever the budget."""
TOO_SLOW = 1.6
"""How much longer than the region's fastest the best known of a template takes by itself whose points are not looked at
in the step."""
TRIED_IN_STEP = 112
"""Points of a region that are looked at in the step at most. In Qwen3-1.7B on an H200 the best of all points was always
among the adviser's first 37 of its template."""


class TaskScheduler:
    """Trials by region, and what follows from them. The order of calls is `try_first_candidates`, `search`, `confirm`,
    `rankings`."""

    def __init__(
        self,
        cuts: Sequence[Cut],
        tasks: Sequence[TuneTask],
        tuner: Tuner,
        seconds_left: Left,
        confirming: Left = any_time,
        say: Callable[[Mapping[str, float]], None] = lambda best: None,
    ) -> None:
        """`seconds_left` says how long the search may go on; then only first candidates and finalists are evaluated.
        `confirming` says how long finalists may be timed; then no longer than an interval needs. `say` is told the best
        times of regions whenever they may have changed."""
        self._left = seconds_left
        self.confirm_left = confirming
        """Seconds in which finalists may still be timed."""
        self._say = say
        self._residency: Residency = cuts[0].residency
        self._tasks = {task.region.id: task for task in tasks}
        self._tuner = tuner
        self.trials: dict[str, list[Trial]] = {}
        """Search trials, then confirming ones, by region id; without a clock those of what may not ship."""

    def left(self) -> float:
        """Seconds in which candidates may still be evaluated."""
        return self._left()

    def limit(self, left: Left) -> None:
        """Take another countdown from here on: that of a step which wants more candidates."""
        self._left = left

    @property
    def steering(self) -> Steering:
        """What a person asked of the session."""
        return self._tuner.steering

    @property
    def candidates(self) -> int:
        """Distinct candidates evaluated."""
        return len({trial.candidate.id for trials in self.trials.values() for trial in trials})

    def try_first_candidates(self, budget: int) -> None:
        """Try the head of every template of every region, largest share first, while half of the budget lasts.

        The head of the best template is tried whatever the budget: a region that stays in PyTorch splits the step. When
        time is up, or half of it is used faster than regions are gone through, only what is known is taken beside it.
        """
        self._tuner.prepare_first(tuple(self._tasks.values()))
        begin, count = self.left(), len(self._tasks)
        for at, (id, task) in enumerate(self._tasks.items(), 1):
            left = self.left()
            behind = left < math.inf and begin - left > PACE_SHARE * begin * at / count
            most = 1 if self.candidates >= budget // 2 else FIRST_CANDIDATES
            heads = self._tuner.first_trials(task, most, 1 if left <= 0 or behind else FIRST_CANDIDATES, self.left)
            self.trials[id] = [*(t for t in self.trials.get(id, ()) if t not in heads), *heads]
            self.evaluate_requests()

    def resume_from(self, past: Sequence[Trial]) -> None:
        """Begin with trials that the run has, of points that are still in their spaces, and judge nothing."""
        for trial in past:
            own = trial.candidate
            task = self._tasks.get(own.region)
            known = task is not None and own in task.space
            if known and self._tuner.source(self._tasks[own.region], own).digest == trial.source:
                self.trials.setdefault(own.region, []).append(trial)

    def evaluate_requests(self) -> None:
        """Judge what a person wants judged afresh; a point that is in no space is rejected."""
        for point in (asked.point for asked in self.steering.take() if asked.point is not None):
            task = self._tasks.get(point.region)
            others = [trial for trial in self.trials.get(point.region, ()) if trial.candidate != point]
            if task is not None and point in task.space:
                self.trials[point.region] = [*others, *self._tuner.evaluate_afresh(task, point)]
            else:
                why = self.steering.legal(point) if self.steering.legal is not None else ""
                self._tuner.reject(point, why or "it is in no space here")

    def confirming(self, region: str, candidate: Candidate) -> Trial | None:
        """The trial that confirmed a candidate of the space, made now where there is none; None for another's."""
        task = self._tasks.get(region)
        if task is None or candidate not in task.space:
            return None
        own = self.trials.setdefault(region, [])
        if not any(t.fidelity == "confirm" and t.candidate == candidate for t in own):
            own += self._tuner.confirmed(task, [candidate])
        return [t for t in own if t.fidelity == "confirm" and t.candidate == candidate][-1]

    def layouts(self, candidate: Candidate) -> tuple[tuple[str, str], ...]:
        """The layouts that a candidate's template wants, by port family."""
        return templates_of(self._tasks[candidate.region])[candidate.template].layouts

    def best_ns(self) -> dict[str, float]:
        """The least measured time of a site, by region, fallback included."""
        best = {}
        for id, trials in self.trials.items():
            times = [t.verdict.measurement.median_ns for t in trials if isinstance(t.verdict, Measured)]
            best[id] = float(min([*times, self.fallback_ns(self._tasks[id].region)]))
        return best

    def fallback_ns(self, region: Region) -> float:
        """Time of a site as captured, run by PyTorch."""
        return float(self._tuner.fallback_ns(region, self._residency))

    def search(self, chosen: Sequence[TuneTask], budget: int, strategy: Strategy) -> None:
        """Spend what is left of the budget and of the time on `chosen`, each searched by `strategy`, by the square root
        of what each could still gain."""
        best = self.best_ns()
        room = {task.region.id: math.sqrt(_room(task, best[task.region.id])) for task in chosen}
        left, total = max(budget - self.candidates, 0), sum(room.values())
        to_come = total
        for task in sorted(chosen, key=lambda task: -room[task.region.id]):
            own = task.region.id
            known = len({trial.candidate.id for trial in self.trials.get(own, ())})
            fair = round(left * room[own] / total)
            trials = min(known + max(fair, LEAST if left else 0), max(MOST, known))
            asked = Budget(trials=trials)
            own_time = part_of(self.left, min(room[own] / to_come, 1.0))
            to_come -= room[own]
            self.trials[own] = self._tuner.search(task, strategy, asked, self.trials.get(own, ()), own_time)
            self.evaluate_requests()
            self._say(self.best_ns())

    def confirm(self, chosen: Sequence[TuneTask]) -> None:
        """Re-time the finalists of `chosen` on fresh data, each in an equal part of the time that is left for it."""
        for at, task in enumerate(chosen):
            own, left = task.region.id, part_of(self.confirm_left, 1 / (len(chosen) - at))
            made = self._tuner.confirm(task, self.trials.get(own, ()), left)
            self.trials[own] = [*self.trials.get(own, ()), *made]
            self.evaluate_requests()
        self._say(self.best_ns())

    def accept(self, parts: Sequence[Part]) -> tuple[tuple[str, Choice], ...]:
        """Validate the kernels of a plan as what ships is validated; the (region id, choice) pairs that failed."""
        wanted = {
            (part.region, part.choice.candidate.id): part.choice for part in parts if isinstance(part.choice, Kernel)
        }
        jobs = [self._tuner.job(self._tasks[region], kernel.candidate) for (region, _), kernel in wanted.items()]
        failed: list[tuple[str, Choice]] = []
        for trial in self._tuner.failures_at_acceptance(jobs):
            region = trial.candidate.region
            self.trials[region].append(trial)
            failed.append((region, wanted[region, trial.candidate.id]))
        return tuple(failed)

    def not_accepted(self, jobs: Sequence[EvaluationJob]) -> list[Candidate]:
        """The candidates of those of `jobs` that do not pass what ships has to pass."""
        return [trial.candidate for trial in self._tuner.failures_at_acceptance(jobs)]

    def candidates_for_step(self, region: str) -> list[Candidate]:
        """At most `LOOKED_AT` points of a region, of every template in turn in the adviser's order: of templates whose
        best known is right and nearly as fast as the region's by itself, without what failed. A template of which
        nothing is known is tried first. When time is up, those that were measured."""
        task, own = self._tasks[region], dict[str, list[Candidate]]()
        for candidate in self._tuner.advice(task).sorted(tuple(task.space)):
            own.setdefault(candidate.template, []).append(candidate)
        seen = {trial.candidate.template for trial in self.trials.get(region, ())}
        self.evaluated(region, [some[0] for template, some in own.items() if template not in seen])
        trials = self.trials.get(region, ())
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
        """Those of `candidates` that are legal and build, with their sources, in their order."""
        return [(job.candidate, job.source) for job in self._tuner.built(self._tasks[region], candidates)]

    def evaluated(self, region: str, wanted: Sequence[Candidate]) -> list[Trial]:
        """Search trials of `wanted`: those that are known, and, while there is time, those of the rest; none of what
        failed when it was looked at more closely."""
        failed = {
            trial.candidate.id
            for trial in self.trials.get(region, ())
            if trial.fidelity == "confirm" and not isinstance(trial.verdict, Measured)
        }
        wanted = [candidate for candidate in wanted if candidate.id not in failed]
        known = {
            trial.candidate.id: trial
            for trial in self.trials.get(region, ())
            if trial.fidelity == "search" or isinstance(trial.verdict, Measured)
        }
        fresh = [candidate for candidate in wanted if candidate.id not in known] if self.left() > 0 else []
        made = self._tuner.evaluated(self._tasks[region], fresh)
        self.trials[region] = [*self.trials.get(region, ()), *made]
        return [*(known[one.id] for one in wanted if one.id in known), *made]

    def confirmed(self, region: str, candidate: Candidate) -> Kernel | None:
        """`candidate` timed beside PyTorch in fresh processes; None when it is not faster there."""
        task = self._tasks[region]
        own = self.trials.get(region, [])
        self.trials[region] = [*own, *self._tuner.confirmed(task, [candidate])]
        ranking = rank(self.trials[region], templates_of(task), traits=self._traits(task))
        kernels = [kernel for _, some in ranking.kernels for kernel in some]
        return next((kernel for kernel in kernels if kernel.candidate.id == candidate.id), None)

    def rankings(self) -> dict[str, Ranking]:
        """Kernels that beat the fallback, best first, for every region that was tried."""
        return {
            id: rank(trials, templates_of(self._tasks[id]), traits=self._traits(self._tasks[id]))
            for id, trials in self.trials.items()
        }

    def first_by_order(self, rejected: Collection[tuple[str, Choice]] = ()) -> dict[str, Ranking]:
        """For every region the first candidate of the adviser's order that nothing stands against, in each of its
        layouts: none of the `rejected` (region id, choice) pairs, of trials that failed, or of static rules. Nothing is
        built or timed; what a plan takes of it has to be accepted."""
        no = {choice.candidate.id for _, choice in rejected if isinstance(choice, Kernel)}
        rankings: dict[str, Ranking] = {}
        for id, task in self._tasks.items():
            own, advice = self.trials.setdefault(id, []), self._tuner.advice(task)
            found: list[Trial] | None = None
            while found is None or found:
                refused = {trial.candidate.id for trial in own} | no
                chosen = first_of_layouts(task, advice, refused)
                refusals = (self._tuner.known_failure(task, candidate) for candidate in chosen)
                found = [trial for trial in refusals if trial is not None]
                own += found
            sources = [(candidate, self._tuner.source(task, candidate)) for candidate in chosen]
            tried = sum(candidate.id in refused for candidate in task.space)
            rankings[id] = ranked(task, advice, sources, tried)
        return rankings

    def all_fallback(self) -> dict[str, Ranking]:
        """Every region as captured."""
        self.trials = {id: [] for id in self._tasks}
        return {id: in_pytorch(task) for id, task in self._tasks.items()}

    def jobs(self, parts: Iterable[Part]) -> list[EvaluationJob]:
        """What the kernels of some parts are made from."""
        return [
            self._tuner.job(self._tasks[part.region], part.choice.candidate)
            for part in parts
            if isinstance(part.choice, Kernel)
        ]

    def sources(self) -> dict[str, Source]:
        """The source of every candidate that was tried, by digest."""
        found = {}
        for id, trials in self.trials.items():
            for candidate in {trial.candidate.id: trial.candidate for trial in trials}.values():
                source = self._tuner.source(self._tasks[id], candidate)
                found[source.digest] = source
        return found

    def _traits(self, task: TuneTask) -> _TraitsOf:
        return _TraitsOf(task, self._tuner)


def _room(task: TuneTask, best_ns: float) -> float:
    """How far the best of a region's sites is above their floor together, in ns; never nothing: floors are rough."""
    return max(best_ns - task.floor_ns, best_ns / 20, 1.0) * max(len(task.region.sites), 1)


class _TraitsOf:
    """Risk flags and workspace of a candidate: what breaks ties."""

    def __init__(self, task: TuneTask, tuner: Tuner) -> None:
        self._subject, self._tuner = task, tuner

    def __call__(self, candidate: Candidate) -> Traits:
        job = self._tuner.job(self._subject, candidate)
        return Traits(
            risks=sum(finding.severity == "warning" for finding in self._tuner.findings(job)),
            workspace_bytes=sum(ITEM_BYTES[dtype] * count for _, dtype, count, _ in job.source.workspaces),
        )
