"""A lock as the model that runs it shows it: plans to read, and everything that was measured as one dict for JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from agentcompile.ir.digest import Json
from agentcompile.lockfile.schema import (
    Lock,
    LockChoice,
    LockPlan,
    ModelEvidence,
    PromptEvidence,
    RegionEvidence,
    StepEvidence,
)
from agentcompile.runtime.record import LoadedLock, RegimePlan, RegionChoice

_MOST_LOG = 100.0  # far more than any measured interval, far less than what a float holds


def recorded(lock: Lock) -> LoadedLock:
    """Return the plans of a lock, decode before prefill, and its report."""
    plans = sorted(lock.plan, key=lambda plan: (plan.phase, plan.batch, plan.context))
    return LoadedLock(plan=tuple(_plan(plan) for plan in plans), report=_report(lock, plans))


def _plan(plan: LockPlan) -> RegimePlan:
    return RegimePlan(
        phase=plan.phase,
        batch=plan.batch,
        context=plan.context,
        choices=tuple(
            RegionChoice(
                region=choice.name,
                id=choice.region,
                sites=choice.sites,
                use=choice.use,
                template=choice.template,
                params=MappingProxyType(dict(choice.params)),
                decided_by=choice.decided_by,
                reason=choice.reason,
            )
            for choice in plan.choices
        ),
    )


def _report(lock: Lock, plans: list[LockPlan]) -> dict[str, Json]:
    evidence = lock.evidence
    regions = {row.region: row for row in evidence.regions}
    steps = {(row.phase, row.batch, row.context): row for row in evidence.steps}
    model, target = lock.model, lock.target
    return {
        "lock": lock.content_hash,
        "model": {
            "name": model.name,
            "architecture": model.architecture,
            "dtype": model.dtype,
            "context": model.context,
            "config": model.config,
            "weights": model.weights,
        },
        "target": {
            "kind": target.kind,
            "device": target.device,
            "arch": target.arch,
            "threads": target.threads,
            "toolchain": target.toolchain,
            "libraries": dict(target.libraries),
        },
        "choose": lock.policy.choose,
        "strategy": evidence.strategy,
        "plans": [
            {
                "phase": plan.phase,
                "batch": plan.batch,
                "context": list(plan.context),
                "step": _step(steps.get((plan.phase, plan.batch, plan.context))),
                **_lengths(plan, evidence.prompts),
                "choices": [_choice(choice, regions) for choice in plan.choices],
            }
            for plan in plans
        ],
        "check": [_check(row) for row in evidence.model],
    }


def _lengths(plan: LockPlan, rows: Sequence[PromptEvidence]) -> dict[str, Json]:
    """Return how prompts run through a plan, with what was measured for it; nothing for a plan of decode steps."""
    if plan.phase != "prefill":
        return {}
    measured: list[Json] = [
        {
            "tokens": row.tokens,
            "chunk": row.chunk,
            "median_ns": row.median_ns,
            "baseline_ns": row.baseline_ns,
            **_speedup(row.log_ratio, row.half_width),
        }
        for row in rows
    ]
    return {"chunk": plan.chunk, "steps_up_to": plan.steps_up_to, "prompts": measured}


def _choice(choice: LockChoice, regions: Mapping[str, RegionEvidence]) -> dict[str, Json]:
    row = regions.get(choice.region) if choice.use == "kernel" else None
    return {
        "region": choice.name,
        "id": choice.region,
        "sites": choice.sites,
        "use": choice.use,
        "template": choice.template,
        "params": dict(choice.params),
        "source": choice.source,
        "decided_by": choice.decided_by,
        "reason": choice.reason,
        "measured": None
        if row is None
        else {
            "median_ns": row.median_ns,
            "baseline": row.baseline,
            "baseline_ns": row.baseline_ns,
            **_speedup(row.log_ratio, row.half_width),
            "error_ratio": float(row.error_ratio),
            "contended": row.contended,
        },
    }


def _step(row: StepEvidence | None) -> Json:
    if row is None:
        return None
    return {
        "step_ns": row.step_ns,
        "baseline_ns": row.baseline_ns,
        **_speedup(row.log_ratio, row.half_width),
        "contended": row.contended,
    }


def _speedup(log_ratio: str, half_width: str) -> dict[str, Json]:
    """Return the speedup over the baseline and its interval; a bound is None where there were too few rounds for it."""
    middle, half = float(log_ratio), float(half_width)
    low, high = (round(math.exp(middle + one), 4) if abs(one) < _MOST_LOG else None for one in (-half, half))
    return {"speedup": round(math.exp(middle), 4), "speedup_low": low, "speedup_high": high}


def _check(row: ModelEvidence) -> dict[str, Json]:
    return {
        "phase": row.phase,
        "verdict": row.verdict,
        "oracle": row.oracle,
        "prompts": list(row.prompts),
        "positions": row.positions,
        "kl": float(row.kl),
        "kl_eager": float(row.kl_eager),
        "kl_worst": float(row.kl_worst),
        "log_perplexity_ratio": float(row.log_perplexity_ratio),
        "half_width": float(row.half_width),
        "mismatches": row.mismatches,
        "beyond_top": row.beyond_top,
    }
