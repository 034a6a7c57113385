"""The gates in front of a written template: those of a person's template, from the manifest to a confirmed time.

In: two texts that a model wrote. Out: an `Evaluated`. A fault of the template is a verdict with feedback and never an
exception; a fault of the machine (no disk space, a canary that fails twice) is one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from agentcompile.build import resources_of
from agentcompile.evaluation.jobs import Baseline, EvaluationJob, Evaluator, Prepared
from agentcompile.ir.advice import Advice
from agentcompile.ir.attempt import Contract, Evaluated, Times, Written
from agentcompile.ir.cleaning import clean
from agentcompile.ir.scope import region_dtype
from agentcompile.ir.template import Params, Template
from agentcompile.ir.trial import CONTENDED, Disturbed, Finding, Measured, Rejected, Verdict
from agentcompile.measure import POLICY, Timing, contrast, share_disturbed, usual_ns, verdict_of
from agentcompile.refine import feedback
from agentcompile.refine.feedback import IncumbentComparison
from agentcompile.refine.incumbent import Bar
from agentcompile.refine.points import LINE, finding, legal_points, read
from agentcompile.space import OutsideError, Space
from agentcompile.system.store import Store
from agentcompile.tuning.floors import Floors
from agentcompile.tuning.jobs import JobMaker
from agentcompile.tuning.tasks import TuneTask

_Point = tuple[Params, Verdict]
_FINDINGS = 40
"""The most findings that a verdict keeps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Timed:
    """One timing of prepared points beside PyTorch and the incumbent."""

    verdicts: tuple[Verdict, ...]
    """One for each point, in order."""
    beside: tuple[IncumbentComparison | None, ...] = ()
    """How each compares with the incumbent in these rounds."""
    bar: Times | None = None
    """What PyTorch and the incumbent took in these rounds; None where nothing was timed."""
    calm: bool = False
    """Whether both ran, and other processes left them alone."""


def admissible(evaluated: Evaluated) -> bool:
    """Return whether a kernel passed every gate and is surely faster than the incumbent."""
    told = evaluated.feedback
    return isinstance(evaluated.verdict, Measured) and isinstance(told, dict) and told.get("admissible") is True


class RegionEvaluator:
    """The gates of one region, for one thread at a time; it implements `ir.attempt.AttemptEvaluator`."""

    def __init__(
        self,
        task: TuneTask,
        contract: Contract,
        evaluator: Evaluator,
        bar: Bar,
        *,
        store: Store | None = None,
        confirms: bool = True,
        retake: Callable[[], Bar | None] = lambda: None,
        seed: int = 0,
    ) -> None:
        """Keep the region's `task`, its `contract` and the `bar` to pass.

        From `store` comes what the assembler reported. With `confirms` the time of what passed everything else is taken
        again in fresh processes, and that one counts. `retake` takes the bar anew, when the rounds of a kernel show
        that it was taken at a busy moment.
        """
        self._task, self._contract, self._evaluator, self._bar = task, contract, evaluator, bar
        self._retake = retake
        self._store, self._confirms, self._seed = store, confirms, seed
        self._floors = Floors(evaluator)

    def evaluate(self, written: Written) -> Evaluated:
        """Evaluate a template: manifest, static check, build, validation, time; a fault of it is a verdict.

        The default point and at most `MOST_POINTS` others are evaluated, and the fastest one counts. What is faster
        than the incumbent is validated as thoroughly as what ships.

        Raises:
            AgentCompileError: the machine fails: no disk space, or kernels that are known to be right (environment).
        """
        region, contract = self._task.region, self._contract
        template = read(written, region.kind, contract.language, region_dtype(region))
        if not isinstance(template, Template):
            return self._refused(template)
        jobs = self._jobs(template)
        if not isinstance(jobs[0], EvaluationJob):
            return self._refused(tuple(one for one in jobs if isinstance(one, Finding)))
        found = self._evaluated([job for job in jobs if isinstance(job, EvaluationJob)])
        return replace(found, times=self._bar.times)

    def _jobs(self, template: Template) -> Sequence[EvaluationJob] | Sequence[Finding]:
        """Return a job for each point to evaluate, or the findings for which there is none."""
        region, target = self._task.region, self._task.space.target
        params, findings = legal_points(template, region, target)
        if not params:
            return findings
        task = replace(self._task, space=Space(region, [template], target), advice=Advice(label="none"))
        maker = JobMaker(target)
        try:
            return [maker.job(task, task.space.candidate(template.id, dict(one))) for one in params]
        except OutsideError as error:
            return (finding("parameters", str(error)),)

    def _evaluated(self, jobs: Sequence[EvaluationJob]) -> Evaluated:
        order = {job.candidate.id: at for at, job in enumerate(jobs)}
        ready, verdicts = list[Prepared](), dict[str, Verdict]()
        for job, result in self._evaluator.prepare(jobs):
            if isinstance(result, Prepared):
                ready.append(result)
            else:
                verdicts[job.candidate.id] = result
        ready.sort(key=lambda one: order[one.job.candidate.id])
        timed = self._timed(ready, confirm=False) if ready else _Timed(verdicts=())
        if self._retaken(timed):
            timed = self._timed(ready, confirm=False)
        verdicts |= {one.job.candidate.id: verdict for one, verdict in zip(ready, timed.verdicts, strict=True)}
        found = [(job.candidate.params, verdicts[job.candidate.id]) for job in jobs]
        measured = [
            (verdict.measurement.median_ns, at)
            for at, one in enumerate(ready)
            if isinstance(verdict := verdicts[one.job.candidate.id], Measured)
        ]
        if not measured:
            first = next((one for one in found if isinstance(one[1], Disturbed)), found[0])
            return self._said(jobs[found.index(first)], first[1], found)
        ns, at = min(measured)
        best = ready[at]
        verdict, beside = verdicts[best.job.candidate.id], timed.beside[at]
        if timed.bar is not None and ns >= timed.bar.incumbent_ns:
            return self._said(best.job, verdict, found, beside=beside)
        return self._accepted(best, verdict, found, beside)

    def _retaken(self, timed: _Timed) -> bool:
        """Take the bar anew where these rounds refute it; return whether another kernel is the incumbent since."""
        old, seen = self._bar, timed.bar
        if seen is None or not old.times.refuted_by(seen, calm=timed.calm):
            return False
        new = self._retake()
        if new is None or not new.times.nearer(old.times, seen):
            return False
        self._bar = new
        return new.label != old.label

    def _accepted(
        self, best: Prepared, verdict: Verdict, found: Sequence[_Point], beside: IncumbentComparison | None
    ) -> Evaluated:
        """Validate a faster kernel as what ships, and take its time afresh; what fails here is no kernel at all."""
        ((job, result),) = self._evaluator.prepare([best.job], depth="accept")
        if not isinstance(result, Prepared):
            return self._said(job, result, found, accepted=False)
        if not self._confirms:
            return self._said(job, verdict, found, beside=beside, accepted=True)
        timed = self._timed([result], confirm=True)
        if isinstance(timed.verdicts[0], Disturbed):  # the machine's fault: the search's time stands
            return self._said(job, verdict, found, beside=beside, accepted=True)
        told = timed.beside[0] if timed.beside else None
        return self._said(job, timed.verdicts[0], found, beside=told, accepted=True, confirmed=True)

    def _timed(self, ready: Sequence[Prepared], *, confirm: bool) -> _Timed:
        """Time points beside PyTorch and the incumbent in the same rounds, as the tuner does."""
        region, others = self._task.region, [] if self._bar.incumbent is None else [self._bar.incumbent]
        first = 1 + len(others)
        claim = POLICY.claim if confirm else POLICY.search_claim
        rounds = POLICY.confirm_rounds if confirm else POLICY.search_rounds
        timing = self._evaluator.time(
            region,
            [Baseline(), *others, *ready],
            rounds=rounds,
            residency=self._task.residency,
            seed=self._seed + (1 << 20 if confirm else 0),
            processes=POLICY.confirm_processes if confirm else 1,
            claim=claim,
        )
        if not isinstance(timing, Timing):
            return _Timed(verdicts=tuple(timing for _ in ready), beside=tuple(None for _ in ready))
        failed: Mapping[int, Verdict] = dict(timing.failed)
        calls = {arm for arm, one in enumerate(others, 1) if one.job.template.language == "library"}
        floor_ns = self._floors.floor_ns(self._task, timing, {0, *calls})
        bar = first - 1 if first - 1 in timing.live else 0
        verdicts, beside = list[Verdict](), list[IncumbentComparison | None]()
        seen = Times(reference_ns=usual_ns(timing, 0), incumbent_ns=usual_ns(timing, bar))
        for arm, one in enumerate(ready, first):
            if arm in failed:
                verdicts.append(failed[arm])
                beside.append(None)
                continue
            verdicts.append(verdict_of(timing, arm, region.cost.bytes, floor_ns, one.report, claim, len(ready), rounds))
            pair = contrast(timing, arm, bar, claim=claim, comparisons=len(ready))
            label = self._bar.label if bar else "pytorch"
            beside.append(
                IncumbentComparison(
                    label=label,
                    comparison=pair.comparison,
                    log_ratio=pair.log_ratio,
                    half_width=pair.half_width,
                    incumbent_ns=pair.baseline_ns,
                )
            )
        alone = share_disturbed(timing, {timing.live.index(arm) for arm in (0, bar)}) <= CONTENDED
        return _Timed(verdicts=tuple(verdicts), beside=tuple(beside), bar=seen, calm=alone and bar == first - 1)

    def _said(
        self,
        job: EvaluationJob,
        verdict: Verdict,
        found: Sequence[_Point],
        *,
        beside: IncumbentComparison | None = None,
        accepted: bool | None = None,
        confirmed: bool = False,
    ) -> Evaluated:
        told = feedback.told(verdict, self._task.region, self._contract.floor_ns, beside)
        told |= {"params": dict(job.candidate.params), "points": feedback.points(found)}
        told |= {"accepted": accepted, "confirmed": confirmed}
        told["admissible"] = bool(accepted and beside is not None and beside.comparison == "FASTER")
        if self._store is not None:
            target = self._task.space.target
            reported = resources_of(job.source, self._store, target.toolchain)
            told["resources"] = feedback.resources(reported, target.arch)
        if not isinstance(verdict, Measured):
            return Evaluated(verdict=verdict, feedback=told)
        m = verdict.measurement
        return Evaluated(verdict=verdict, ns=float(m.median_ns), over_reference=math.exp(-m.log_ratio), feedback=told)

    def _refused(self, findings: Sequence[Finding]) -> Evaluated:
        verdict = Rejected(findings=tuple(replace(one, text=clean(one.text, LINE)) for one in findings[:_FINDINGS]))
        told = feedback.told(verdict, self._task.region, self._contract.floor_ns)
        return Evaluated(verdict=verdict, feedback=told)
