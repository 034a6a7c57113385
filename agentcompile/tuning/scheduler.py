"""The task scheduler, which shares the budget and the time of a search out among the regions of a step."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from agentcompile.control.steering import Steering
from agentcompile.evaluation.time_budget import Left, any_time, part_of
from agentcompile.events import Emit, TrialFinished, Warned, silent
from agentcompile.ir.advice import Advice
from agentcompile.ir.region import Region
from agentcompile.ir.target import Residency
from agentcompile.ir.template import Candidate
from agentcompile.ir.trial import Finding, Measured, Rejected, Trial
from agentcompile.search import Budget, RegionStrategy
from agentcompile.tuning.baselines import BaselineTimes
from agentcompile.tuning.run_trials import RunTrials
from agentcompile.tuning.tasks import TuneTask
from agentcompile.tuning.tuner import Tuner

FIRST_CANDIDATES = 8
"""The most templates of a region whose most promising candidate is evaluated before the search."""
PACE_SHARE = 0.5
"""The share of the search's time that first candidates may take; those of regions that a plan needs may take more."""
CONFIRM_TIMES = 1.5
"""The time to confirm the finalists of a plan's regions, as a multiple of what their first candidates took."""
LEAST_CONFIRM_TIMES = 0.6
"""The like where time is short: 0.5 to 0.7 on two cores, quiet or beside two others."""
FINISH_TIMES = 1.15
"""The like for accepting a plan's kernels and timing its steps: 0.9 to 1.2 on two cores, quiet or beside two others."""
ACCEPT_TIMES = 0.9
"""The like for accepting them alone, where it is known how long the steps take: 0.8 to 0.9 there."""
LEAST = 6
"""The candidates that a searched region may evaluate, however small its share of the budget."""
STEPS_PER_CHUNK = 128
"""Decode steps assumed for each prefill chunk: a chat turn with a short prompt and a medium answer."""
BATCH = 4
"""Regions whose first candidates are prepared at once where time may end before their turn."""
MOST = 48
"""The most candidates that a region's search evaluates: beyond them it no longer pays, whatever the budget."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finishing:
    """The seconds that a plan takes after the search."""

    accept_s: float
    """To accept its kernels; 0 where that is not known."""
    steps_s: float
    """To time its steps and its chunk."""


FinishTime = Callable[[Mapping[str, float], Callable[[Region], float], Collection[str]], Finishing]
"""Returns how long a plan takes after the search, from the best times of regions in ns and those in PyTorch; the last
argument has the ids of regions whose best kernels need no acceptance."""


def nothing_more(
    best_ns: Mapping[str, float], fallback_ns: Callable[[Region], float], accepted: Collection[str]
) -> Finishing:
    """Return no time, for callers that accept and time no plan."""
    return Finishing(accept_s=0.0, steps_s=0.0)


class TaskScheduler:
    """The scheduler of a run's tasks. The order of calls is `try_first_candidates`, `search`, `confirm`."""

    def __init__(
        self,
        trials: RunTrials,
        tuner: Tuner,
        baselines: BaselineTimes,
        residency: Residency,
        seconds_left: Left,
        confirming: Left = any_time,
        whole: Left = any_time,
        *,
        steering: Steering | None = None,
        emit: Emit = silent,
        say: Callable[[Mapping[str, float]], None] = lambda best: None,
        seed: int = 0,
        advised: Callable[[TuneTask], Advice] = lambda task: task.advice,
        estimate: Callable[[Region], float] = lambda region: float(max(region.cost.bytes, 1)),
        finishing: FinishTime = nothing_more,
    ) -> None:
        """`seconds_left` returns how long the search may go on, `confirming` how long finalists may be timed.

        `whole` returns how long until the plan must be accepted and timed as well.

        When the first is used up only first candidates that a plan needs and finalists are evaluated; when the second
        is, a finalist is timed no longer than an interval needs. `say` receives the best times of regions in ns, by id,
        whenever they may have changed. `advised` returns the advice that holds for a task now. `estimate` returns the
        time of a site in PyTorch without measuring it; only the ratios between regions of a phase matter. `finishing`
        returns how long a plan will be accepted and timed.
        """
        self._trials, self._tuner, self._baselines = trials, tuner, baselines
        self._residency: Residency = residency
        self._left, self._by_share, self._whole = seconds_left, confirming, whole
        self._steering, self._emit, self._say, self._seed = steering or Steering(), emit, say, seed
        self._advised, self._estimate, self._finishing_of = advised, estimate, finishing
        self._finishing = Finishing(accept_s=0.0, steps_s=0.0)
        self._first_s = 0.0
        """The seconds that the first candidates of the regions that a plan needs took."""
        self._short = False
        """Whether the first candidates of the regions that a plan needs took more than their share of the time."""

    @property
    def trials(self) -> RunTrials:
        """The trials of the run so far."""
        return self._trials

    def try_first_candidates(
        self,
        budget: int,
        needed: Callable[[Collection[str]], Sequence[TuneTask]] | None = None,
        others: Callable[[Collection[str]], Sequence[TuneTask]] = lambda tried: (),
    ) -> None:
        """Evaluate the most promising candidate of every template, largest region first, on half of the budget.

        `needed` returns the tasks that no plan can do without, given the trials so far, but for those whose ids it is
        given, which were tried; it is asked until there are none, and by default it is all. The best template's
        candidate of each is evaluated whatever the budget: a region that stays in PyTorch splits the step. When time is
        up, or `PACE_SHARE` of it is used up faster than these regions are, their other templates only get trials that
        are known already. The tasks of `others` are tried one batch after another as long as `PACE_SHARE` of the time
        is not used up.
        """
        needed, tried = needed or self._untried, set[str]()
        begin = self._left()
        while tasks := needed(tried):
            self._tuner.prepare_first(tasks)
            known = len(tried)
            for at, task in enumerate(tasks, 1):
                left = part_of(self._left, 1 / (1 + len(tasks) - at))
                self._try(task, budget, 1, self._behind(begin, (known + at) / (known + len(tasks))), left)
                tried.add(task.region.id)
            self._short = self._behind(begin, 1.0)
        self._first_s = begin - self._left() if begin < math.inf else 0.0
        rest = others(tried)
        for first in range(0, len(rest), BATCH):
            batch, late = rest[first : first + BATCH], self._behind(begin, 1.0)
            if not late:
                self._tuner.prepare_first(batch)
            for task in batch:  # what was prepared is timed as well
                self._try(task, budget, 0 if late else 1, self._behind(begin, 1.0), self._left)

    def _confirming(self) -> float:
        """Return how long finalists may be timed: where first candidates took long, acceptance will, too."""
        return min(self._by_share(), self._whole() - self._finish_s())

    def _finish_s(self) -> float:
        """Return the seconds in which a plan's kernels are accepted and its steps are timed."""
        accept_s = max(ACCEPT_TIMES * self._first_s, self._finishing.accept_s)
        return max(FINISH_TIMES * self._first_s, accept_s + self._finishing.steps_s)

    def _known_before(self) -> set[str]:
        """Return the regions whose best trial an earlier run made: most of their kernels were accepted then."""
        best = {
            id: min((t for t in trials if isinstance(t.verdict, Measured)), key=_median_ns, default=None)
            for id, trials in self._trials.by_region.items()
        }
        return {id for id, trial in best.items() if trial is not None and trial.reused}

    def _untried(self, tried: Collection[str]) -> tuple[TuneTask, ...]:
        return tuple(task for id, task in self._trials.tasks.items() if id not in tried)

    def _behind(self, begin: float, share: float) -> bool:
        """Return whether time is up, or more than a `share` of what first candidates may take is used up."""
        left = self._left()
        return left <= 0 or (left < math.inf and begin - left > PACE_SHARE * begin * share)

    def _try(self, task: TuneTask, budget: int, least: int, late: bool, left: Left) -> None:
        """Evaluate the first candidates of a task; when it is late only `least` of them, and those that are known.

        They are timed for the seconds that are `left`, or as long as an interval needs.
        """
        own = task.region.id
        most = 1 if self._trials.candidates >= budget // 2 else FIRST_CANDIDATES
        heads = self._tuner.first_trials(task, most, least if late else FIRST_CANDIDATES, left)
        if heads or least:
            self._trials.put(own, [*(t for t in self._trials.of(own) if t not in heads), *heads])
        self.evaluate_requests()

    def search(self, chosen: Sequence[TuneTask], budget: int, strategy: RegionStrategy) -> None:
        """Search the tasks of `chosen` by `strategy` with all that is left of the budget and of the time.

        Both are shared out in proportion to the square root of what each task could still gain: down to its floor, or
        to the time that the adviser expects at best. On a busy machine the search ends sooner: confirming takes longer.
        """
        best = {**{task.region.id: self.fallback_ns(task.region) for task in chosen}, **self.best_ns()}
        self._finishing = self._finishing_of(best, self.fallback_ns, self._known_before())
        rest_s = LEAST_CONFIRM_TIMES * self._first_s + self._finish_s()
        if (late := rest_s - self._whole()) > 0:
            took = f"about {rest_s:.0f} s on this machine as it is: {late:.0f} s more than `seconds` leaves"
            self._emit(Warned(text=f"to confirm and accept the kernels of a plan and to time its steps takes {took}"))
        room = {task.region.id: math.sqrt(_room(task, best[task.region.id], self._advised(task))) for task in chosen}
        left, total = max(budget - self._trials.candidates, 0), sum(room.values())
        to_come = total

        def searching() -> float:
            return min(self._left(), self._confirming() - CONFIRM_TIMES * self._first_s)

        for task in sorted(chosen, key=lambda task: -room[task.region.id]):
            own = task.region.id
            known = len({trial.candidate.id for trial in self._trials.of(own)})
            fair = round(left * room[own] / total)
            trials = min(known + max(fair, LEAST if left else 0), max(MOST, known))
            asked = Budget(trials=trials, seed=self._seed)
            own_time = part_of(searching, min(room[own] / to_come, 1.0))
            to_come -= room[own]
            found = self._tuner.search(task, strategy, asked, self._trials.of(own), own_time)
            if found:  # a region without trials stays one that was not tried
                self._trials.put(own, found)
            self.evaluate_requests()
            self._say(self.best_ns())

    def confirm(self, chosen: Sequence[TuneTask]) -> None:
        """Confirm the finalists of `chosen` on fresh data, each task in an equal part of the time left for that.

        Tasks of which nothing was tried have none.
        """
        chosen = [task for task in chosen if self._trials.of(task.region.id)]
        for at, task in enumerate(chosen):
            own, left = task.region.id, part_of(self._confirming, 1 / (len(chosen) - at))
            self._trials.add(own, self._tuner.confirm(task, self._trials.of(own), left))
            self.evaluate_requests()
        self._say(self.best_ns())

    def confirmation_of(self, region: str, candidate: Candidate) -> Trial | None:
        """Return the last confirm trial of a candidate, made now where there is none; None when it is in no space."""
        task = self._trials.tasks.get(region)
        if task is None or candidate not in task.space:
            return None

        def confirming() -> list[Trial]:
            return [t for t in self._trials.of(region) if t.fidelity == "confirm" and t.candidate == candidate]

        if not confirming():
            self._trials.add(region, self._tuner.confirmed(task, [candidate]))
        return confirming()[-1]

    def evaluate_requests(self) -> None:
        """Evaluate afresh the candidates that a person asked for; one that is in no space is rejected."""
        for point in (asked.point for asked in self._steering.take() if asked.point is not None):
            task = self._trials.tasks.get(point.region)
            if task is not None and point in task.space:
                others = [trial for trial in self._trials.of(point.region) if trial.candidate != point]
                self._trials.put(point.region, [*others, *self._tuner.evaluate_afresh(task, point)])
            else:
                why = self._steering.legal(point) if self._steering.legal is not None else ""
                finding = Finding(rule="space", severity="error", text=why or "it is in no space here")
                rejected = Trial(candidate=point, source="", verdict=Rejected(findings=(finding,)))
                self._emit(TrialFinished(trial=rejected))

    def best_ns(self) -> dict[str, float]:
        """Return the least measured time of a site in ns, by region id, that of the fallback included."""
        best = {}
        for id, trials in self._trials.by_region.items():
            times = [t.verdict.measurement.median_ns for t in trials if isinstance(t.verdict, Measured)]
            best[id] = float(min([*times, self.fallback_ns(self._trials.tasks[id].region)]))
        return best

    def fallback_ns(self, region: Region) -> float:
        """Return the time in ns of one site in PyTorch, by estimate where nothing was tried and it would cost time.

        That is so for regions that have a space, and, in a search that is short of time, for those that no template
        serves, too.
        """
        untried = region.id not in self._trials.by_region
        if untried and (region.id in self._trials.tasks or self._short) and not self._baselines.has(region):
            return self._about_ns(region)
        return float(self._baselines.of(region, self._residency))

    def _about_ns(self, region: Region) -> float:
        """Return the estimate of a region's time, times the median of how many times slower those tried are."""
        tried = [task.region for id, task in self._trials.tasks.items() if id in self._trials.by_region]
        like = [one for one in tried if one.regime.phase == region.regime.phase]
        ratios = [self._baselines.of(one, self._residency) / self._estimate(one) for one in like]
        return self._estimate(region) * (statistics.median(ratios) if ratios else 1.0)


def _median_ns(trial: Trial) -> int:
    assert isinstance(trial.verdict, Measured)
    return trial.verdict.measurement.median_ns


def _room(task: TuneTask, best_ns: float, advice: Advice) -> float:
    """Return by how many ns all sites of a region exceed what they can reach; at least some, because that is rough.

    A prefill's sites count by their share of a decode step, of which there are `STEPS_PER_CHUNK` to a chunk.
    """
    expected = advice.diagnosis.attainable_us if advice.diagnosis is not None else None
    least = max(task.floor_ns, 1e3 * (expected or 0.0))
    own = max(best_ns - least, best_ns / 20, 1.0) * max(len(task.region.sites), 1)
    return own / STEPS_PER_CHUNK if task.region.regime.phase == "prefill" else own
