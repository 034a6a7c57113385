"""One region's search: propose, check, prepare, time, until the strategy has finalists; then confirm those afresh.

In: a bounded space with advice, and an evaluator. Out: trials, each emitted before anything acts on it. Trials that the
run or the measurement database already has are reused, so a killed run repeats nothing and a second run is quick.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from agentcompile.control.steering import Steering
from agentcompile.evaluation.evaluator import Baseline, EvaluationJob, Evaluator, Prepared
from agentcompile.evaluation.time_budget import LEAST_S, Left, any_time
from agentcompile.events import Emit, Proposed, RoundsProgress, TrialFinished, TrialStarted
from agentcompile.ir.advice import Advice
from agentcompile.ir.graph import Phase
from agentcompile.ir.template import Candidate
from agentcompile.ir.trial import Cancelled, Death, Incorrect, Measured, Rejected, Trial, Verdict
from agentcompile.measure import POLICY, Timing, usual_ns, verdict_of
from agentcompile.search import Budget, Proposal, RegionStrategy, SearchTask
from agentcompile.system.notes import Notes
from agentcompile.tuning.baselines import BaselineTimes
from agentcompile.tuning.floors import Floors
from agentcompile.tuning.jobs import JobMaker
from agentcompile.tuning.ranking import finalists
from agentcompile.tuning.tasks import Consulting, TuneTask, templates_of
from agentcompile.tuning.trial_database import TrialDatabase, disturbed, trial_of

CONFIRMED: Mapping[Phase, tuple[int, int]] = {"decode": (3, 3), "prefill": (2, 1)}
"""The numbers of finalists that are timed again on fresh data, of the best layout and of each other one.

Chunks take longer to time than steps, and their best candidates differ by less.
"""
LOOKS = 3
"""How often a finalist may be timed while other processes disturb it; the significance level is corrected for it."""


class Tuner:
    """A tuner that searches regions one after another with one evaluator."""

    def __init__(
        self,
        jobs: JobMaker,
        evaluator: Evaluator,
        past: TrialDatabase,
        baselines: BaselineTimes,
        notes: Notes,
        emit: Emit,
        seed: int,
        advised: Callable[[TuneTask], Advice] = lambda task: task.advice,
        steering: Steering | None = None,
        strategy: str = "",
        consult: Consulting | None = None,
    ) -> None:
        """`advised` returns the advice that holds for a task now; it is called before each proposal.

        `strategy` is the name, with its settings, of the strategy that searches, for its events. `consult` asks a model
        what to try next, for strategies that do.
        """
        self._jobs, self._baselines = jobs, baselines
        self._advised = advised
        self._steering = steering or Steering()
        self._evaluator = evaluator
        self._past = past
        self._notes = notes
        self._emit = emit
        self._seed = seed
        self._prepared: dict[str, Prepared] = {}
        self._unfit: dict[str, Verdict] = {}
        """Verdicts by candidate id of those that failed while they were prepared ahead, until their trial is made."""
        self._several_s = 0.0
        """The seconds that finalists of a region took the last time that they were timed in several processes."""
        self._floors = Floors(evaluator)
        self._strategy, self._consult = strategy, consult
        self._told = {
            (event.region, node.candidate, event.rounds)
            for row in self._steering.earlier.rows
            for event in row.proposed
            for node in event.nodes
        }
        """What this run reported as proposed, its earlier processes among it: region, candidate id, rounds."""

    def prepare_first(self, tasks: Sequence[TuneTask]) -> None:
        """Build and validate in parallel the most promising candidate of each task, unless it has a trial.

        Timing goes one region after another and would leave most cores idle meanwhile.
        """
        wanted: list[EvaluationJob] = []
        for task in tasks:
            for first in self._first_candidates(task)[:1]:
                job = self._jobs.job(task, first)
                known = first.id in self._prepared or self._known(task, first, POLICY.search_rounds, "search")
                if not known and not self._jobs.errors(job):
                    wanted.append(job)
        for done, (job, result) in enumerate(self._evaluator.prepare(self._begun(wanted)), 1):
            self._emit(RoundsProgress(region=job.region.id, done=done, total=len(wanted)))
            if isinstance(result, Prepared):
                self._prepared[job.candidate.id] = result
            else:
                self._unfit[job.candidate.id] = result

    def first_trials(self, task: TuneTask, most: int, fresh: int, left: Left = any_time) -> list[Trial]:
        """Evaluate the most promising candidate of each template, `most` at most, to see what is worth a search.

        Beyond the first `fresh` of them only known trials are returned.
        """
        heads, rounds = self._first_candidates(task), POLICY.search_rounds
        late = [one for one in heads[fresh:most] if self._known(task, one, rounds, "search") is not None]
        return self._timed(task, [*heads[: min(fresh, most)], *late], rounds, fidelity="search", left=left)

    def _first_candidates(self, task: TuneTask) -> list[Candidate]:
        order = self._advised(task).sorted(tuple(task.space))
        first = {candidate.template: candidate for candidate in reversed(order)}
        return [candidate for candidate in order if first[candidate.template] is candidate]

    def search(
        self, task: TuneTask, strategy: RegionStrategy, budget: Budget, trials: Sequence[Trial], left: Left
    ) -> list[Trial]:
        """Follow the strategy from `trials` on until it proposes nothing, and return `trials` with the new ones.

        It ends as well where a trial is so near the roofline that no other candidate can be much faster.
        When no seconds are `left` nothing new is evaluated, but known trials are reused, so that a resumed search
        reaches the point where it was.
        """
        found, space = list(trials), tuple(task.space)
        ask = self._consult
        consult = None if ask is None else lambda focus, number: ask(task, focus, number, left() > 0)
        while not self._floors.reached(task, found):
            asked_of = SearchTask(candidates=space, advice=self._order(task, found), consult=consult)
            asked = strategy.propose(asked_of, found, budget)
            known = [self._known(task, one, asked.rounds, "search") for one in asked.candidates]
            if not known or (None in known and left() <= 0):
                return found
            fresh = {
                one.id for one, trial in zip(asked.candidates, known, strict=True) if trial is None or not trial[1]
            }
            self._tell(task.region.id, asked, fresh)
            found += self._timed(task, asked.candidates, asked.rounds, fidelity="search", left=left)
        return found

    def _tell(self, region: str, asked: Proposal[Candidate], fresh: Collection[str]) -> None:
        """Emit what was proposed, but for candidates that this run reported: as proposed, or with a trial."""
        nodes = tuple(
            node
            for node in asked.nodes
            if node.candidate in fresh and (region, node.candidate, asked.rounds) not in self._told
        )
        if nodes:
            self._told.update((region, node.candidate, asked.rounds) for node in nodes)
            self._emit(Proposed(region=region, strategy=self._strategy, rounds=asked.rounds, nodes=nodes))

    def _order(self, task: TuneTask, found: Sequence[Trial]) -> Advice:
        """Return the advice that holds now; late advice orders only untried candidates, after those tried."""
        advice = self._advised(task)
        if advice is task.advice:
            return advice
        tried = dict.fromkeys(trial.candidate.id for trial in found if trial.fidelity == "search")
        return replace(advice, order=(*tried, *(id for id in advice.order if id not in tried)))

    def evaluated(self, task: TuneTask, candidates: Sequence[Candidate]) -> list[Trial]:
        """Return search trials of these candidates, timed beside one another."""
        return self._timed(task, candidates, POLICY.search_rounds, fidelity="search") if candidates else []

    def built(self, task: TuneTask, candidates: Sequence[Candidate], left: Left = any_time) -> list[EvaluationJob]:
        """Return the jobs of the candidates that pass the static check and build, in their order.

        When no seconds are `left` no other build begins.
        """
        jobs = [self._jobs.job(task, candidate) for candidate in candidates]
        legal = [job for job in jobs if not self._jobs.errors(job)]
        self._emit(RoundsProgress(region=task.region.id, done=0, total=len(legal)))
        there = {job.candidate.id for job in self._evaluator.build(itertools.takewhile(lambda _: left() > 0, legal))}
        return [job for job in legal if job.candidate.id in there]

    def evaluate_afresh(self, task: TuneTask, candidate: Candidate) -> list[Trial]:
        """Evaluate a candidate as if it had no trials; one that is faster than the baseline is confirmed at once."""
        self._past.forget(candidate.id)
        self._prepared.pop(candidate.id, None)
        self._unfit.pop(candidate.id, None)
        found = self.evaluated(task, [candidate])
        measured = [trial for trial in found if isinstance(trial.verdict, Measured)]
        if any(trial.verdict.measurement.log_ratio > 0 for trial in measured):  # type: ignore[union-attr]
            found += self.confirmed(task, [candidate])
        return found

    def confirm(self, task: TuneTask, trials: Sequence[Trial], left: Left = any_time) -> list[Trial]:
        """Time the finalists beside the fallback in fresh processes, and return these trials, which alone decide.

        They are the best `CONFIRMED` of each layout; where the seconds `left` are too few, only the best one, in one
        process.
        """
        each, others = CONFIRMED[task.region.regime.phase] if self._processes("confirm", left) > 1 else (1, 1)
        return self.confirmed(task, finalists(trials, templates_of(task), each=each, others=others), left)

    def confirmed(self, task: TuneTask, chosen: Sequence[Candidate], left: Left = any_time) -> list[Trial]:
        """Time `chosen` beside the fallback in fresh processes; repeat disturbed ones while time is `left`."""
        confirmed: list[Trial] = []
        for look in range(LOOKS):
            if not chosen or (look and left() <= 0):
                break
            made = self._timed(task, chosen, POLICY.confirm_rounds, fidelity="confirm", look=look, left=left)
            confirmed += made
            chosen = tuple(trial.candidate for trial in made if disturbed(trial))
        return confirmed

    def _begun(self, jobs: Sequence[EvaluationJob]) -> Iterator[EvaluationJob]:
        for job in self._steering.held(jobs):
            self._notes.keep_source(job.source)
            one = job.candidate
            self._emit(TrialStarted(region=one.region, candidate=one.id, label=one.label))
            yield job

    def _timed(
        self,
        task: TuneTask,
        candidates: Sequence[Candidate],
        rounds: int,
        *,
        fidelity: str,
        look: int = 0,
        left: Left = any_time,
    ) -> list[Trial]:
        self._steering.point()
        done: dict[str, Trial] = {}
        fresh: list[EvaluationJob] = []
        processes = self._processes(fidelity, left)
        begin = left() if processes > 1 else math.inf
        # A trial of several processes counts before one that was made when time was up.
        enough = dict.fromkeys((self._processes(fidelity, any_time), processes))
        for candidate in candidates:
            several = (self._known(task, candidate, rounds * one, fidelity) for one in enough)
            known = next((one for one in several if one is not None), None)
            if known is not None:
                done[candidate.id] = known[0]
                if isinstance(known[0].verdict, Measured):
                    self._baselines.note(task.region.id, known[0].verdict.measurement.baseline_ns)
                if not known[1]:
                    self._emit(TrialFinished(trial=known[0]))
                continue
            fresh.append(self._jobs.job(task, candidate))
        for trial in self._fresh(task, fresh, rounds, processes, fidelity, look, left):
            done[trial.candidate.id] = trial
            self._emit(TrialFinished(trial=trial))
            self._past.keep(trial)
        if fresh and begin < math.inf:
            self._several_s = begin - left()
        return [done[candidate.id] for candidate in candidates]

    def _processes(self, fidelity: str, left: Left) -> int:
        """Return in how many processes candidates are timed: several fresh ones for finalists, else one.

        Fresh processes differ by where their memory lies. Once fewer seconds are `left` than the last region's
        finalists took, finalists do without them, as starting them is most of what a confirmation takes, and what a
        busy machine makes slow. By the default rule the step that a finalist becomes part of is timed in fresh
        processes afterwards; under the rule "isolated" nothing else is.
        """
        if fidelity != "confirm":
            return 1
        return POLICY.confirm_processes if left() > self._several_s else 1

    def _known(self, task: TuneTask, candidate: Candidate, rounds: int, fidelity: str) -> tuple[Trial, bool] | None:
        """Return a known trial of at least `rounds` rounds, and whether this run already reported it; else None."""
        return self._past.known(candidate, self._jobs.source(task, candidate).digest, fidelity, rounds)

    def _fresh(
        self,
        task: TuneTask,
        jobs: Sequence[EvaluationJob],
        rounds: int,
        processes: int,
        fidelity: str,
        look: int,
        left: Left,
    ) -> Iterator[Trial]:
        ready: list[Prepared] = []
        waiting: list[EvaluationJob] = []
        for job in jobs:
            if self._steering.cancelled(job.candidate.id):
                yield trial_of(job, Cancelled(stage="check"), fidelity)
            elif errors := self._jobs.errors(job):
                yield trial_of(job, Rejected(findings=errors), fidelity)
            elif job.candidate.id in self._prepared:
                ready.append(self._prepared[job.candidate.id])
            elif (verdict := self._unfit.pop(job.candidate.id, None)) is not None:
                yield trial_of(job, verdict, fidelity)
            else:
                waiting.append(job)
        for job, result in self._evaluator.prepare(self._begun(waiting)):
            if isinstance(result, Prepared):
                self._prepared[job.candidate.id] = result
                ready.append(result)
            else:
                yield trial_of(job, result, fidelity)
        order = {job.candidate.id: at for at, job in enumerate(jobs)}
        ready.sort(key=lambda prepared: order[prepared.job.candidate.id])
        if ready:
            yield from self._verdicts(task, ready, rounds, processes, fidelity, look, left)

    def _verdicts(
        self,
        task: TuneTask,
        ready: Sequence[Prepared],
        rounds: int,
        processes: int,
        fidelity: str,
        look: int,
        left: Left,
    ) -> Iterator[Trial]:
        self._steering.point()
        final = fidelity == "confirm"
        claim = POLICY.claim if final else POLICY.search_claim
        comparisons = len(ready) * (LOOKS if final else 1)
        self._emit(RoundsProgress(region=task.region.id, done=0, total=rounds * processes))
        timing = self._evaluator.time(
            task.region,
            [Baseline(), *ready],
            rounds=rounds,
            residency=task.residency,
            seed=self._seed + ((1 + look) << 20 if final else 0),
            processes=processes,
            claim=claim,
            seconds=max(left(), LEAST_S),
        )
        if not isinstance(timing, Timing):  # no single candidate is the cause, so all of them get the verdict
            for prepared in ready:
                yield trial_of(prepared.job, timing, fidelity)
            return
        self._baselines.note(task.region.id, round(usual_ns(timing, 0)))
        failed: Mapping[int, Death | Cancelled | Incorrect] = dict(timing.failed)
        templates = templates_of(task)
        calls = (arm for arm, one in enumerate(ready, 1) if templates[one.job.candidate.template].language == "library")
        nbytes, floor_ns = task.region.cost.bytes, self._floors.floor_ns(task, timing, {0, *calls})
        for arm, prepared in enumerate(ready, 1):
            verdict: Verdict
            if arm in failed:
                verdict = failed[arm]
            else:
                verdict = verdict_of(timing, arm, nbytes, floor_ns, prepared.report, claim, comparisons, rounds)
            yield trial_of(prepared.job, verdict, fidelity)
