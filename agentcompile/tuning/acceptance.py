"""Acceptance: the kernels of a plan are validated by the full correctness suite before they ship.

In: parts of a plan, or jobs. Out: those that failed, each with a trial that the run keeps, and a warning for each that
passed with fewer launches than a long generation makes, in this run or an earlier one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from agentcompile.control.steering import Steering
from agentcompile.evaluation.evaluator import EvaluationJob, Evaluator, Prepared
from agentcompile.evaluation.jobs import longest_first
from agentcompile.events import Emit, RoundsProgress, TrialFinished, Warned
from agentcompile.ir.target import Target
from agentcompile.ir.template import Candidate, Depth
from agentcompile.ir.trial import Choice, Kernel, Part, Rejected, Trial
from agentcompile.system.notes import Notes
from agentcompile.tuning.jobs import JobMaker
from agentcompile.tuning.run_trials import RunTrials
from agentcompile.tuning.tasks import TuneTask
from agentcompile.tuning.trial_database import TrialDatabase, accepted, missing_of, note_accepted, trial_of
from agentcompile.validate.endurance import GENERATION, missing_launches


class Acceptance:
    """The last correctness check: the full suite, whose passes are noted for later runs."""

    def __init__(
        self,
        trials: RunTrials,
        jobs: JobMaker,
        evaluator: Evaluator,
        known: TrialDatabase,
        notes: Notes,
        target: Target,
        emit: Emit,
        steering: Steering,
    ) -> None:
        self._trials, self._jobs, self._evaluator, self._known = trials, jobs, evaluator, known
        self._notes, self._target, self._emit, self._steering = notes, target, emit, steering
        self._told: set[str] = set()

    def jobs(self, parts: Iterable[Part]) -> list[EvaluationJob]:
        """Return the evaluation jobs of the kernels in `parts`; parts in PyTorch have none."""
        return [
            self._jobs.job(self._trials.tasks[part.region], part.choice.candidate)
            for part in parts
            if isinstance(part.choice, Kernel)
        ]

    def accept(self, parts: Sequence[Part]) -> tuple[tuple[str, Choice], ...]:
        """Validate the kernels of `parts` by the full suite and return the (region id, choice) pairs that failed."""
        wanted = {
            (part.region, part.choice.candidate.id): part.choice for part in parts if isinstance(part.choice, Kernel)
        }
        jobs = {(job.candidate.region, job.candidate.id): job for job in self.jobs(parts)}
        failed: list[tuple[str, Choice]] = []
        for trial in self._failures(list(jobs.values())):
            region = trial.candidate.region
            self._trials.add(region, [trial])
            failed.append((region, wanted[region, trial.candidate.id]))
        return tuple(failed)

    def failing(self, jobs: Sequence[EvaluationJob], depth: Depth = "accept") -> list[Candidate]:
        """Return the candidates of those of `jobs` that fail the suite at that depth."""
        return [trial.candidate for trial in self._failures(jobs, depth)]

    def known_failure(self, task: TuneTask, candidate: Candidate) -> Trial | None:
        """Return a trial that says why a candidate may not ship; None when nothing is known against it.

        Nothing is built for it: the candidate failed acceptance before in this run, or it breaks a static rule.
        """
        job = self._jobs.job(task, candidate)
        if known := self._known.failure(candidate, job.source.digest):
            return known
        if not (errors := self._jobs.errors(job)):
            return None
        trial = trial_of(job, Rejected(findings=errors), "confirm")
        self._emit(TrialFinished(trial=trial))
        return trial

    def _failures(self, jobs: Sequence[EvaluationJob], depth: Depth = "accept") -> list[Trial]:
        """Validate the kernels that no earlier run accepted, and return the trials of those that failed."""
        fresh = longest_first(job for job in jobs if not accepted(self._notes, job, self._target, depth))
        failed: list[Trial] = []
        for done, (job, result) in enumerate(self._evaluator.prepare(self._steering.held(fresh), depth=depth)):
            self._emit(RoundsProgress(region=job.region.id, done=done, total=len(fresh)))
            if isinstance(result, Prepared):
                note_accepted(self._notes, job, self._target, missing_launches(result.report), depth)
            else:
                failed.append(trial_of(job, result, "confirm"))
                self._emit(TrialFinished(trial=failed[-1]))
        self._warn(jobs, depth)
        return failed

    def _warn(self, jobs: Sequence[EvaluationJob], depth: Depth) -> None:
        """Tell of every accepted kernel, once, how many launches of the endurance check there was no time for."""
        for job in jobs:
            missing = missing_of(self._notes, job, self._target, depth)
            if missing and job.candidate.id not in self._told:
                self._told.add(job.candidate.id)
                why = f"there was no time for {missing} of the launches that a generation of {GENERATION} tokens makes"
                self._emit(Warned(text=f"{job.region.name}: {job.candidate.label} is accepted, but {why}"))
