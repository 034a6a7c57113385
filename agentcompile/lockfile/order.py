"""The plans of a lock by regime: which plan serves which batch and context, with no gap and no overlap."""

from __future__ import annotations

from pathlib import Path

from agentcompile.errors import AgentCompileError
from agentcompile.ir.region import Regime
from agentcompile.lockfile.schema import Lock, LockPlan


def regime_of(plan: LockPlan) -> Regime:
    """Return the regime that a plan was made for."""
    return Regime(phase=plan.phase, batch=plan.batch, context=plan.context)


def ordered(path: Path, lock: Lock) -> tuple[LockPlan, ...]:
    """Return the decode plans by batch and, within a batch, by context, then the prefill plan.

    Raises:
        AgentCompileError: a length of context has no plan or two, or prefill has not exactly one plan (usage).
    """  # noqa: DOC501
    decode = sorted((plan for plan in lock.plan if plan.phase == "decode"), key=lambda plan: (plan.batch, plan.context))
    prefill = [plan for plan in lock.plan if plan.phase == "prefill"]
    if len(prefill) != 1:
        raise _refused(path, f"{len(prefill)} plans for prefill, and one is needed")
    if (prefill[0].batch, prefill[0].context) != (1, (1, lock.model.context)):
        raise _refused(path, f"the plan for prefill does not serve one sequence of 1 to {lock.model.context} tokens")
    for batch in sorted({1, *(plan.batch for plan in decode)}):
        reached = 0
        for first, last in (plan.context for plan in decode if plan.batch == batch):
            if first != reached + 1 or last < first:
                text = f"decode plans of {batch} sequences reach {reached} tokens of context, the next serves {first}"
                raise _refused(path, f"{text} to {last}")
            reached = last
        if reached != lock.model.context:
            text = f"decode plans of {batch} sequences reach {reached} of {lock.model.context} tokens of context"
            raise _refused(path, text)
    return (*decode, *prefill)


def _refused(path: Path, text: str) -> AgentCompileError:
    return AgentCompileError(f"{path}: plan: {text}", hint="compile again")
