"""The bar that a written kernel has to pass: the fastest kernel that is known for a region, and PyTorch.

In: a region's task with its shipped and user templates, and an evaluator. Out: their times, taken in the same rounds,
and the incumbent, built, so that every written kernel can be timed beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from agentcompile.evaluation.jobs import Baseline, Evaluator, Prepared
from agentcompile.ir.attempt import Times
from agentcompile.ir.template import Candidate
from agentcompile.ir.trial import Measured, Trial
from agentcompile.measure import POLICY, Timing, usual_ns
from agentcompile.tuning.jobs import JobMaker
from agentcompile.tuning.tasks import TuneTask

MOST = 6
"""The most kernels that are timed to find the incumbent, beside the fastest of earlier trials."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """The times to beat, and the incumbent; None where no kernel is faster than PyTorch."""

    times: Times
    incumbent: Prepared | None = None

    @property
    def label(self) -> str:
        """The name of what has to be beaten."""
        return self.incumbent.job.candidate.label if self.incumbent is not None else "pytorch"


def bar_of(
    task: TuneTask, jobs: JobMaker, evaluator: Evaluator, trials: Sequence[Trial] = (), *, seed: int = 0
) -> Bar | None:
    """Time the fastest kernels of `trials` and the first advised one of each template beside PyTorch; return the bar.

    None where not even PyTorch gives a time, because the machine is disturbed.
    """
    legal = [jobs.job(task, candidate) for candidate in _candidates(task, trials)]
    wanted = [job for job in legal if not jobs.errors(job)]
    made = [result for _, result in evaluator.prepare(wanted) if isinstance(result, Prepared)]
    timing = evaluator.time(
        task.region,
        [Baseline(), *made],
        rounds=POLICY.search_rounds,
        residency=task.residency,
        seed=seed,
        processes=1,
    )
    if not isinstance(timing, Timing):
        return None
    reference_ns = usual_ns(timing, 0)
    ranked = sorted((usual_ns(timing, arm), arm) for arm in timing.live if arm > 0)
    if not ranked or ranked[0][0] >= reference_ns:
        return Bar(times=Times(reference_ns=reference_ns, incumbent_ns=reference_ns))
    incumbent_ns, arm = ranked[0]
    return Bar(times=Times(reference_ns=reference_ns, incumbent_ns=incumbent_ns), incumbent=made[arm - 1])


def _candidates(task: TuneTask, trials: Sequence[Trial]) -> Iterable[Candidate]:
    """Return the three fastest measured candidates, and the first advised one of each template."""
    fast = sorted(
        (one.verdict.measurement.median_ns, one.candidate.id, one.candidate)
        for one in trials
        if isinstance(one.verdict, Measured) and one.candidate in task.space
    )
    order = task.advice.sorted(tuple(task.space))
    first: dict[str, Candidate] = {}
    for candidate in order:
        first.setdefault(candidate.template, candidate)
    return {one.id: one for one in [*(one for _, _, one in fast[:3]), *list(first.values())[:MOST]]}.values()
