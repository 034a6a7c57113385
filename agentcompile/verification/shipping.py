"""Decides what may ship: verifies the whole model, and times plans again whose kernels were dropped.

In: plans that were admitted in the step, or that a person wants. Out: those that pass the whole-model gate, each with
times of its own parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.evaluation.evaluator import WorkerEvaluator
from agentcompile.events import PlanAdmitted, Warned
from agentcompile.ir.trial import Fallback, Kernel, Plan
from agentcompile.ir.whole import ModelCheck
from agentcompile.planning.overrides import PlanChecks, layouts_of, timed_plan
from agentcompile.planning.plans import Planned
from agentcompile.runs.progress import State
from agentcompile.runs.stages import stage
from agentcompile.tuning.partitions import Cut
from agentcompile.tuning.prepared import PreparedModel
from agentcompile.verification.whole_model import WholeModelGate


def hold_against_reference(
    prepared: PreparedModel,
    planned: Planned,
    plans: Sequence[Plan],
    bench: PlanChecks,
    evaluator: WorkerEvaluator,
    earlier: State,
    module: torch.nn.Module | None = None,
) -> tuple[Planned, tuple[Plan, ...], ModelCheck]:
    """Return the cover and the plans that may ship, and how near they are to float32.

    Plans in which a kernel was replaced by its fallback are timed again.

    Raises:
        AgentCompileError: the model is wrong without any kernel (correctness), or cannot be run (environment).
    """
    cuts = [*prepared.decode, prepared.prefill]
    gate = WholeModelGate(
        here=prepared.here,
        captured=prepared.model.captured,
        constants=prepared.model.constants,
        cuts=cuts,
        templates={
            template.digest: template
            for task in (*prepared.tasks, *prepared.prompt_tasks)
            for template in task.space.templates
        },
        evaluator=evaluator,
        emit=bench.emit,
        seed=bench.seed,
        known=earlier.checks,
        module=module,
    )
    with stage(bench.emit, "verify") as say:
        plans = tuple(plans)
        while True:
            left, found = gate.right(plans, planned.layouts)
            if left == plans:
                say(described(found))
                return planned, plans, found
            planned, plans = _timed_again(cuts, planned, plans, left, bench, earlier.ruled)


def described(found: ModelCheck) -> str:
    """Describe a check in one line."""
    figures = ", ".join(f"{one.phase} KL {one.kl:.2g} (eager {one.kl_eager:.2g})" for one in found.phases)
    positions = sum(one.positions for one in found.phases)
    return f"{positions} positions beside {found.oracle} in float32: {figures}"


def _timed_again(
    cuts: Sequence[Cut],
    planned: Planned,
    before: Sequence[Plan],
    plans: Sequence[Plan],
    bench: PlanChecks,
    known: Sequence[Plan],
) -> tuple[Planned, tuple[Plan, ...]]:
    """Return the changed plans with the layouts that they want, timed again where they had times before.

    A plan that is now slower than PyTorch falls back as a whole.
    """
    layouts = layouts_of(cuts, [plan.parts for plan in plans], bench.layouts)
    *decode, prefill = (plan.parts for plan in plans)
    left = replace(planned, decode=tuple(decode), prefill=prefill, layouts=layouts, exact=False)
    found = []
    for cut, old, plan in zip(cuts, before, plans, strict=True):
        if plan.parts == old.parts and layouts == planned.layouts:
            if plan.prompts != old.prompts:
                bench.emit(PlanAdmitted(plan=plan, layouts=layouts, ruled=True))
            found.append(plan)
            continue
        made = Plan(regime=plan.regime, parts=plan.parts, exact=False)
        if old.step_ns:
            made = _timed_whole(cut, made, left, bench, known)
        if not made.step_ns:  # a timed plan has emitted this event already
            bench.emit(PlanAdmitted(plan=made, layouts=layouts, ruled=True))
        found.append(made)
    *decode, prefill = (plan.parts for plan in found)
    return replace(left, decode=tuple(decode), prefill=prefill), tuple(found)


def _timed_whole(cut: Cut, plan: Plan, planned: Planned, bench: PlanChecks, known: Sequence[Plan]) -> Plan:
    try:
        made = timed_plan(cut, plan, planned, bench, known)
    except AgentCompileError as error:
        if error.exit_code is not ExitCode.UNDECIDED:
            raise
        bench.emit(Warned(text=f"{plan.regime.name}: what is left of the plan is not timed: {error.message}"))
        return plan
    if made.log_ratio + made.half_width >= 0:
        return made
    slow = "the step is slower than PyTorch's without the kernels that made the model wrong"
    parts = (
        replace(part, choice=Fallback(reason=slow)) if isinstance(part.choice, Kernel) else part for part in made.parts
    )
    return Plan(regime=plan.regime, parts=tuple(parts), exact=False)
