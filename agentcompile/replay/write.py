"""From an admitted plan to a lock: digests, choices in a fixed order, and their evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentcompile.capture import Captured
from agentcompile.checkpoint.convert import receipt_of
from agentcompile.checkpoint.names import location
from agentcompile.events import Emit, LockWritten
from agentcompile.ir.codec import encode
from agentcompile.ir.digest import digest
from agentcompile.ir.region import Region
from agentcompile.ir.target import Target
from agentcompile.ir.trial import Kernel, Layouts, Measured, Part, Plan, PromptTime, Rule, Trial
from agentcompile.ir.whole import ModelCheck
from agentcompile.lockfile.files import write_lock
from agentcompile.lockfile.schema import (
    Evidence,
    Lock,
    LockChoice,
    LockModel,
    LockPlan,
    LockPolicy,
    LockTarget,
    ModelEvidence,
    PromptEvidence,
    RegionEvidence,
    StepEvidence,
)
from agentcompile.measure import POLICY
from agentcompile.options import Options
from agentcompile.planning.arms import source_of
from agentcompile.planning.plans import Planned
from agentcompile.replay.sources import LockSources
from agentcompile.runs.stages import stage
from agentcompile.system.notes import Notes
from agentcompile.tuning.acceptance import Acceptance
from agentcompile.tuning.partitions import Cut
from agentcompile.tuning.prepared import PreparedModel
from agentcompile.tuning.run_trials import RunTrials
from agentcompile.tuning.trial_database import lengths_key

KL_RESOLUTION = 1e-12
"""Nats: what rounding in float32 costs where logits spread by 1; the gates begin at 1e-7."""
RATIO_RESOLUTION = 1e-7
"""The resolution of log perplexity ratios: about that of float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LockFacts:
    """What a lock says besides its plans."""

    target: Target
    captured: Captured
    location: str
    policy: str
    choose: Rule = "admitted"
    strategy: str = ""
    """The strategy that searched the regions."""
    advice: tuple[str, ...] = ()
    check: ModelCheck | None = None
    """The comparison of the whole model with float32."""


def lock_of(
    facts: LockFacts,
    cuts: Sequence[Cut],
    plans: Sequence[Plan],
    layouts: Layouts,
    trials: Mapping[str, Sequence[Trial]],
) -> Lock:
    """Make the lock of `plans`, one for each of `cuts`; equal inputs give equal locks."""
    info, gguf = facts.captured.info, receipt_of(facts.captured.checkpoint)
    return Lock(
        target=LockTarget.of(facts.target),
        model=LockModel(
            name=info.name,
            architecture=info.architecture,
            location=facts.location,
            dtype=info.dtype,
            context=info.context,
            config=info.config_digest,
            graphs={graph.phase: graph.digest() for graph in (facts.captured.decode, facts.captured.prefill)},
            weights=info.weights_digest,
            gguf="" if gguf is None else gguf.file,
            gguf_sha256="" if gguf is None else gguf.sha256,
        ),
        policy=LockPolicy(digest=facts.policy, choose=facts.choose, settings=_settings()),
        layouts=dict(sorted(layouts)),
        plan=tuple(_plan(cut, plan) for cut, plan in zip(cuts, plans, strict=True)),
        evidence=Evidence(
            regions=_evidence(plans, trials),
            steps=tuple(_step(plan) for plan in plans if plan.step_ns),
            prompts=tuple(_prompt(time) for plan in plans for time in plan.prompts.deciding),
            model=_model(facts.check) if facts.check is not None else (),
            advice=facts.advice,
            strategy=facts.strategy,
        ),
    )


def _settings() -> dict[str, str]:
    """Return the numbers of the timing protocol, for people; the policy's digest covers these and the tolerances."""
    told = encode(POLICY)
    assert isinstance(told, dict)
    return {name.replace("_", "-"): str(value) for name, value in sorted(told.items())}


def _plan(cut: Cut, plan: Plan) -> LockPlan:
    regions = cut.regions
    choices = [_choice(regions[part.region], part) for part in plan.parts]
    return LockPlan(
        phase=plan.regime.phase,
        batch=plan.regime.batch,
        context=plan.regime.context,
        exact=plan.exact,
        chunk=plan.prompts.chunk,
        steps_up_to=plan.prompts.steps_up_to,
        choices=tuple(sorted(choices, key=lambda choice: (choice.name, choice.region, choice.at))),
    )


def _choice(region: Region, part: Part) -> LockChoice:
    every = len(region.sites)
    at = () if len(part.sites) in (0, every) else part.sites
    choice = part.choice
    kernel = choice if isinstance(choice, Kernel) else None
    point = kernel.candidate if kernel is not None else None
    return LockChoice(
        region=part.region,
        name=region.name,
        sites=len(at) or every,
        at=at,
        use="fallback" if kernel is None else "kernel",
        template="" if point is None else point.template,
        template_digest="" if point is None else point.template_digest,
        params={} if point is None else dict(point.params),
        source=source_of(choice),
        decided_by=choice.decided_by,
        reason="" if choice.decided_by == "measured" else choice.reason,
        approval=choice.approval,
    )


def _evidence(plans: Sequence[Plan], trials: Mapping[str, Sequence[Trial]]) -> tuple[RegionEvidence, ...]:
    rows: dict[str, RegionEvidence] = {}
    for plan in plans:
        for part in plan.parts:
            if not isinstance(part.choice, Kernel):
                continue
            own = trials.get(part.region, ())
            decided = [t for t in own if t.fidelity == "confirm" and t.candidate.id == part.choice.candidate.id]
            if decided and isinstance(decided[-1].verdict, Measured):
                rows[part.region] = _row(part.region, decided[-1].verdict, own)
    return tuple(rows[region] for region in sorted(rows))


def _row(region: str, verdict: Measured, trials: Sequence[Trial]) -> RegionEvidence:
    m = verdict.measurement
    return RegionEvidence(
        region=region,
        median_ns=m.median_ns,
        baseline_ns=m.baseline_ns,
        baseline=m.baseline,
        log_ratio=f"{m.log_ratio:.4f}",
        half_width=f"{m.half_width:.4f}",
        error_ratio=f"{verdict.report.error_ratio:.4f}",
        contended=m.contended,
        samples=digest("evidence/1", [[t.candidate.id, t.fidelity, encode(t.verdict)] for t in trials]),
    )


def _step(plan: Plan) -> StepEvidence:
    return StepEvidence(
        phase=plan.regime.phase,
        batch=plan.regime.batch,
        context=plan.regime.context,
        step_ns=plan.step_ns,
        baseline_ns=plan.baseline_ns,
        log_ratio=f"{plan.log_ratio:.4f}",
        half_width=f"{plan.half_width:.4f}",
        contended=plan.contended,
        disturbed=f"{plan.disturbed:.3f}",
    )


def _prompt(time: PromptTime) -> PromptEvidence:
    return PromptEvidence(
        tokens=time.tokens,
        chunk=time.chunk,
        median_ns=time.median_ns,
        baseline_ns=time.baseline_ns,
        log_ratio=f"{time.log_ratio:.4f}",
        half_width=f"{time.half_width:.4f}",
    )


def _model(check: ModelCheck) -> tuple[ModelEvidence, ...]:
    assert check.ok, check.fault
    return tuple(
        ModelEvidence(
            phase=one.phase,
            oracle=check.oracle,
            seed=check.seed,
            prompts=check.lengths,
            positions=one.positions,
            kl=_figure(one.kl, KL_RESOLUTION),
            kl_eager=_figure(one.kl_eager, KL_RESOLUTION),
            kl_worst=_figure(one.kl_worst, KL_RESOLUTION),
            log_perplexity_ratio=_figure(one.log_perplexity_ratio, RATIO_RESOLUTION),
            half_width=_figure(one.half_width, RATIO_RESOLUTION),
            mismatches=one.mismatches,
            beyond_top=one.beyond_top,
        )
        for one in check.phases
    )


def _figure(value: float, resolution: float) -> str:
    """Return a figure with four digits and none below `resolution`, because rounding errors differ from run to run."""
    return f"{round(value / resolution) * resolution:.3e}"


def write(
    prepared: PreparedModel,
    trials: RunTrials,
    acceptance: Acceptance,
    planned: Planned,
    plans: Sequence[Plan],
    policy: str,
    options: Options,
    emit: Emit,
    exchanges: tuple[str, ...] = (),
    found: ModelCheck | None = None,
) -> Lock:
    """Make the lock of all plans, the prefill plan last, and write it."""
    out = Path(options.out)
    with stage(emit, "lock") as say:
        about = LockFacts(
            target=prepared.here.target,
            captured=prepared.model.captured,
            location=location(options.model, out),
            policy=policy,
            choose=options.choose,
            strategy=options.strategy,
            advice=exchanges,
            check=found,
        )
        lock = lock_of(about, [*prepared.decode, prepared.prefill], plans, planned.layouts, trials.by_region)
        LockSources(store=prepared.here.store).keep(acceptance.jobs(part for plan in plans for part in plan.parts))
        hashed = write_lock(out, lock)
        if prepared.prompt_tasks:  # the kernels were accepted at every length: a replay here need not do it again
            Notes(prepared.here.store).put(lengths_key(hashed, prepared.here.target.digest), 1)
        emit(LockWritten(path=str(out), digest=hashed))
        say(str(out))
    return lock
