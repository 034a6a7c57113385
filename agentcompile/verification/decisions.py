"""Applies a person's decisions to admitted plans, and checks the whole model with them against the reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from agentcompile.control.steering import Steering
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.evaluation.evaluator import WorkerEvaluator
from agentcompile.evaluation.step_clock import StepClock
from agentcompile.events import Emit, ReviewOpened, Warned
from agentcompile.ir.trial import Plan
from agentcompile.ir.whole import ModelCheck
from agentcompile.planning.covering import not_accepted
from agentcompile.planning.overrides import PlanChecks, apply_decisions
from agentcompile.planning.plans import Planned
from agentcompile.tuning.acceptance import Acceptance
from agentcompile.tuning.prepared import PreparedModel
from agentcompile.tuning.scheduler import TaskScheduler
from agentcompile.verification.shipping import hold_against_reference

if TYPE_CHECKING:
    import torch


def decided(
    prepared: PreparedModel,
    scheduler: TaskScheduler,
    acceptance: Acceptance,
    planned: Planned,
    plans: Sequence[Plan],
    evaluator: WorkerEvaluator,
    seed: int,
    emit: Emit,
    steering: Steering,
    module: torch.nn.Module | None = None,
) -> tuple[Planned, tuple[Plan, ...], ModelCheck]:
    """Return the cover and the plans with a person's decisions applied, as far as the whole model is right with them.

    Raises:
        AgentCompileError: a review was requested and a region still waits for a decision (undecided), or the whole
            model is wrong without any kernel (correctness).
    """
    left = tuple(steering.undecided())
    if steering.review and left:
        emit(ReviewOpened(regions=left))
        raise AgentCompileError(
            f"{len(left)} regions wait for review, and no lock is written before",
            exit_code=ExitCode.UNDECIDED,
            hint="decide on them with `agentcompile decide` or in `agentcompile tui`, then compile --resume",
        )
    decisions = steering.decisions()
    for region in (region for region in left if region in decisions):
        emit(Warned(text=f"region {region[:12]}: what was decided is stale and counts no more"))
    bench = PlanChecks(
        confirmation_of=scheduler.confirmation_of,
        layouts=lambda one: scheduler.trials.tasks[one.region].space.template(one.template).layouts,
        sources=scheduler.trials,
        clock=StepClock(prepared.here, evaluator, prepared.model, scheduler.trials.sources, steering),
        emit=emit,
        seed=seed,
        kind=prepared.here.target.kind,
        refused=lambda found: not_accepted(prepared, acceptance, found),
    )
    valid = {region: decision for region, decision in decisions.items() if region not in left}
    try:
        planned, plans = apply_decisions(
            [*prepared.decode, prepared.prefill], planned, plans, valid, bench, steering.earlier.ruled
        )
    except AgentCompileError as error:
        if error.exit_code is ExitCode.UNDECIDED:
            emit(Warned(text=error.message))
            emit(ReviewOpened(regions=tuple(steering.undecided())))
        raise
    return hold_against_reference(prepared, planned, plans, bench, evaluator, steering.earlier, module)
