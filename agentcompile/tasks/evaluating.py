"""The gates in front of a kernel that is written for a task: from the manifest to a time beside PyTorch's fastest.

In: two texts that a model wrote. Out: an `Evaluated`. A fault of the kernel is a verdict with feedback and never an
exception; a fault of the machine, or of the task itself, is one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from agentcompile import check
from agentcompile.build import compile, resources_of
from agentcompile.errors import AgentCompileError
from agentcompile.ir.attempt import Contract, Evaluated, Times, Written
from agentcompile.ir.cleaning import clean
from agentcompile.ir.target import Residency
from agentcompile.ir.template import Params, Template
from agentcompile.ir.trial import (
    NO_INTERVAL,
    BuildFailed,
    Disturbed,
    Finding,
    Impossible,
    Incorrect,
    Measured,
    Measurement,
    NumericReport,
    Rejected,
    TimedOut,
    Verdict,
)
from agentcompile.materialize import specialise
from agentcompile.measure import POLICY, Policy, Timing, measurement, verdict_of
from agentcompile.ops.layouts import fits
from agentcompile.refine import feedback
from agentcompile.refine.feedback import IncumbentComparison
from agentcompile.refine.points import LINE, finding, legal_points
from agentcompile.tasks.contract import facts_of, floors_ns, region_of, residency_of
from agentcompile.tasks.inputs import seed_of
from agentcompile.tasks.kernel import Built, Workshop, validate
from agentcompile.tasks.load import LoadedTask
from agentcompile.tasks.reading import read
from agentcompile.tasks.timing import Baselines, timed

Point = tuple[Params, Verdict]
_FINDINGS = 40


class TaskEvaluator:
    """The gates of one task, for one thread at a time; it implements `ir.attempt.AttemptEvaluator`."""

    def __init__(
        self,
        task: LoadedTask,
        contract: Contract,
        baselines: Baselines,
        workshop: Workshop,
        *,
        seed: int,
        confirms: bool = True,
        retake: Callable[[Baselines], Baselines] = lambda known: known,
        policy: Policy = POLICY,
    ) -> None:
        """Keep the task, its contract and the bar; `seed` decides all inputs, and nobody who writes kernels knows it.

        With `confirms` the time of what passed everything else is taken again in fresh processes, and that one counts.
        `retake` takes the baselines anew, when the rounds of a kernel show that they were taken at a busy moment.
        """
        self._retake = retake
        self._task, self._contract, self._baselines, self._shop = task, contract, baselines, workshop
        self._seed, self._confirms, self._policy, self._count = seed, confirms, policy, 0
        self._regions = tuple(region_of(task, shape) for shape in range(len(task.told.signatures)))
        self._residency: Residency = residency_of(self._regions[0], workshop.target)

    def evaluate(self, written: Written) -> Evaluated:
        """Evaluate a kernel: manifest, static check, build, validation, time; a fault of it is a verdict.

        The default point and a few near it are evaluated, and the fastest one counts.

        Raises:
            AgentCompileError: the machine fails, or the task does on the inputs of a check (environment, usage).
        """
        self._count += 1
        region, language = self._regions[0], self._contract.language
        template = read(written, region, facts_of(region), language)
        if not isinstance(template, Template):
            return self._refused(template)
        params, findings = legal_points(template, region, self._shop.target)
        if not params:
            return self._refused(findings)
        found = list[Point]()
        for at, one in enumerate(params):
            verdict = self._evaluated(template, one)
            found.append((one, verdict))
            if at == 0 and _hopeless(verdict):
                break
        params_of_best, verdict = fastest(found)
        if isinstance(verdict, Measured) and self._retaken(verdict.measurement):
            verdict = self._measured(self._rebuilt(template, params_of_best), verdict.report, confirm=False)
        return replace(self._said(template, params_of_best, verdict, found), times=self._baselines.times)

    def beside(self, written: Written, params: Params) -> tuple[Measurement, ...] | Verdict:
        """Time a kernel that passed every gate once more, beside every form of PyTorch in the same rounds.

        Fresh processes run it. The measurements are one for each form, in their order; a verdict says why there are
        none.

        Raises:
            AgentCompileError: the machine fails, or the task does (environment, usage).
        """
        self._count += 1
        region, policy, names = self._regions[0], self._policy, tuple(self._baselines.us)
        template = read(written, region, facts_of(region), self._contract.language)
        if not isinstance(template, Template):
            return self._refused(template).verdict
        built = self._built(template, params, 0)
        if not isinstance(built, Built):
            return built
        timing = timed(
            self._task,
            built,
            names,
            self._shop,
            residency=self._residency,
            rounds=policy.confirm_rounds,
            claim=policy.claim,
            processes=policy.confirm_processes,
            seed=seed_of(self._seed, self._count, "beside"),
            policy=policy,
        )
        if not isinstance(timing, Timing):
            return timing
        nbytes, many = region.cost.bytes, len(names)
        return tuple(
            measurement(timing, many, at, bytes=nbytes, claim=policy.claim, comparisons=many, policy=policy)
            for at in range(many)
        )

    def _evaluated(self, template: Template, params: Params) -> Verdict:
        """Return what becomes of one point: built and checked at every shape, then timed at the task's own."""
        built = list[Built]()
        for shape in range(len(self._regions)):
            made = self._built(template, params, shape)
            if not isinstance(made, Built):
                return made
            built.append(made)
        reports = list[NumericReport]()
        for one in built:
            seed = seed_of(self._seed, self._count, "check")
            report = validate(self._task, one, self._shop, seed)
            if not isinstance(report, NumericReport):
                return report
            if not report.ok:
                return Incorrect(report=report)
            reports.append(report)
        return self._measured(built[0], _pooled(reports), confirm=False)

    def _built(self, template: Template, params: Params, shape: int) -> Built | Verdict:
        shop, region = self._shop, self._regions[shape]
        found = check.errors(check.check(region, template, params, shop.target, layout_fits=fits))
        if found:
            return Rejected(findings=found[:_FINDINGS])
        try:
            source = specialise(template, region, params, shop.target)
        except AgentCompileError as error:
            return Rejected(findings=(finding("geometry", str(error)),))
        binary = compile(
            source, shop.store, toolchain=shop.toolchain, limit_s=self._task.limits.build_s, fenced=shop.fenced
        )
        if isinstance(binary, (BuildFailed, TimedOut, Disturbed)):
            return binary
        path = Path(binary.path).resolve()
        return Built(template=template, region=region, source=source, binary=path, shape=shape)

    def _measured(self, built: Built, report: NumericReport, *, confirm: bool) -> Verdict:
        policy, told = self._policy, self._task.told
        claim = policy.claim if confirm else policy.search_claim
        rounds = policy.confirm_rounds if confirm else policy.search_rounds
        timing = timed(
            self._task,
            built,
            (self._baselines.name,),
            self._shop,
            residency=self._residency,
            rounds=rounds,
            claim=claim,
            processes=policy.confirm_processes if confirm else 1,
            seed=seed_of(self._seed, self._count, "time", int(confirm)),
            policy=policy,
        )
        if not isinstance(timing, Timing):
            return timing
        ceiling = self._shop.ceiling
        # Rates that were measured on a busy machine are too low: by them a fast kernel would seem impossible.
        by_bytes = floors_ns(told, ceiling, "cache")[0] if ceiling.calm else 0.0
        return verdict_of(timing, 1, built.region.cost.bytes, by_bytes, report, claim, 1, rounds)

    def _retaken(self, m: Measurement) -> bool:
        """Take the baselines anew where these rounds refute them; return whether another is the fastest since."""
        old = self._baselines
        known = old.times
        busy = m.baseline_ns / known.incumbent_ns  # the others were timed in the same rounds as the fastest
        seen = Times(reference_ns=known.reference_ns * busy, incumbent_ns=m.baseline_ns)
        if not known.refuted_by(seen, calm=not m.contended):
            return False
        new = self._retake(old)
        if new.times.nearer(known, seen):
            self._baselines = new
        return self._baselines.name != old.name

    def _rebuilt(self, template: Template, params: Params) -> Built:
        """Return a kernel that was built before."""
        built = self._built(template, params, 0)
        assert isinstance(built, Built)
        return built

    def _said(self, template: Template, params: Params, verdict: Verdict, found: Sequence[Point]) -> Evaluated:
        """Confirm what is faster, and say what became of the kernel."""
        confirmed = False
        if self._confirms and isinstance(verdict, Measured) and verdict.measurement.comparison == "FASTER":
            again = self._measured(self._rebuilt(template, params), verdict.report, confirm=True)
            if not isinstance(again, Disturbed):  # the machine's fault: the first time stands
                verdict, confirmed = again, True
        told = feedback.told(verdict, self._regions[0], self._contract.floor_ns, _beside(verdict))
        told |= {"params": dict(params), "points": feedback.points(found), "confirmed": confirmed}
        told["admissible"] = isinstance(verdict, Measured) and verdict.measurement.comparison == "FASTER"
        if self._shop.own_memory and isinstance(verdict, (Measured, Impossible, Incorrect)):
            source, target = self._rebuilt(template, params).source, self._shop.target
            reported = resources_of(source, self._shop.store, target.toolchain)
            told["resources"] = feedback.resources(reported, target.arch)
        if not isinstance(verdict, Measured):
            return Evaluated(verdict=verdict, feedback=told)
        # The baseline's own share of the reference comes from rounds of their own, side by side as well.
        share, times = _share(verdict), self._baselines.times
        over = share * times.incumbent_ns / times.reference_ns
        return Evaluated(verdict=verdict, ns=float(verdict.measurement.median_ns), over_reference=over, feedback=told)

    def _refused(self, findings: Sequence[Finding]) -> Evaluated:
        verdict = Rejected(findings=tuple(replace(one, text=clean(one.text, LINE)) for one in findings[:_FINDINGS]))
        told = feedback.told(verdict, self._regions[0], self._contract.floor_ns)
        return Evaluated(verdict=verdict, feedback=told)


def fastest(points: Sequence[Point]) -> Point:
    """Return the point that counts: the quickest of those whose ratio may be the greatest; the first without a time.

    Points are timed one after another, and the machine may be busy for one of them, so that ratios to the baseline in
    the same rounds are compared, and not times. Of points that their intervals do not tell apart, those that are surely
    faster than the baseline come first, and among these the one that took least time.
    """
    measured = [(point, verdict.measurement) for point in points if isinstance(verdict := point[1], Measured)]
    known = [pair for pair in measured if pair[1].half_width < NO_INTERVAL] or measured
    if not known:
        return points[0]
    surely = max(one.log_ratio - one.half_width for _, one in known)
    near = [pair for pair in known if pair[1].log_ratio + pair[1].half_width >= surely]
    return min(near, key=lambda pair: (pair[1].comparison != "FASTER", pair[1].median_ns))[0]


def _share(verdict: Verdict) -> float:
    """Return a time as a share of the baseline's in the same rounds; infinity where there is none."""
    return math.exp(-verdict.measurement.log_ratio) if isinstance(verdict, Measured) else math.inf


def _hopeless(verdict: Verdict) -> bool:
    """Return whether other parameters would hardly help a kernel that failed."""
    return not isinstance(verdict, (Measured, Rejected, BuildFailed, TimedOut, Disturbed))


def _beside(verdict: Verdict) -> IncumbentComparison | None:
    if not isinstance(verdict, (Measured, Impossible)):
        return None
    m = verdict.measurement
    return IncumbentComparison(
        label=m.baseline,
        comparison=m.comparison,
        log_ratio=m.log_ratio,
        half_width=m.half_width,
        incumbent_ns=m.baseline_ns,
    )


def _pooled(reports: Sequence[NumericReport]) -> NumericReport:
    """Return the reports of all shapes as one: of each check the one with the largest share of what is allowed."""
    checks = {
        one.name: one
        for report in reversed(reports)
        for one in sorted(report.checks, key=lambda found: found.measured / max(found.allowed, 1e-300))
    }
    return NumericReport(
        checks=tuple(checks.values()),
        error_ratio=max(report.error_ratio for report in reports),
        cases=sum(report.cases for report in reports),
        repeats=reports[0].repeats,
    )
