"""The admitted plans of all regimes: tuned and timed in their steps, confirmed again, or untimed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from agentcompile.evaluation.step_clock import StepClock
from agentcompile.evaluation.time_budget import TimeBudget, any_time, part_of
from agentcompile.events import Emit, PlanAdmitted, Warned
from agentcompile.ir.trial import Choice, Kernel, Part, Plan
from agentcompile.planning.admission import admit, admit_chunk
from agentcompile.planning.alternatives import Alternatives
from agentcompile.planning.plans import Planned
from agentcompile.planning.prompt_lengths import Lengths, measured_lengths, still_hold
from agentcompile.planning.step_timer import Admitted, StepTimer, afresh
from agentcompile.runs.stages import stage
from agentcompile.search import StepStrategy
from agentcompile.tuning.acceptance import Acceptance
from agentcompile.tuning.prepared import PreparedModel
from agentcompile.tuning.run_trials import RunTrials


def tune_steps(
    prepared: PreparedModel,
    planned: Planned,
    alternatives: Alternatives,
    strategy: StepStrategy,
    clock: StepClock,
    seed: int,
    emit: Emit,
    budget: TimeBudget,
    acceptance: Acceptance,
) -> tuple[Plan, ...]:
    """Tune the plan of every regime inside its whole step, and measure it beside PyTorch.

    A prefill plan is measured for a whole chunk, and then how prompts best run through it; `acceptance` takes the
    kernels of longer chunks. The choices of the step of a shorter context are reused for the same regions of longer
    ones, unless another choice is faster beside a neighbour that only the longer one has. The time that is left is
    shared out by how many regions each step is the first to choose.
    """
    plans: list[Plan] = []
    settled: dict[str, Choice] = {}
    with stage(emit, "admit") as say:
        kind = prepared.here.target.kind
        to_come = 1.0
        for cut, parts, share in zip(prepared.decode, planned.decode, _shares(planned.decode), strict=True):
            left = part_of(budget.tuning, share / to_come if to_come > 0 else 0.0)
            to_come -= share
            alternatives.limit(left)
            admitted = admit(cut, parts, planned, alternatives, clock, emit, seed, kind, settled, strategy, left)
            # A kernel that fell back in one step may be faster in another.
            settled |= {part.region: part.choice for part in admitted.parts if isinstance(part.choice, Kernel)}
            plans.append(_reported(admitted, planned, emit))
        chunk = admit_chunk(prepared.prefill, planned, alternatives, clock, emit, seed, kind, budget.left)
        lengths = measured_lengths(
            prepared,
            [*plans, chunk.plan],
            planned.layouts,
            alternatives.sources(),
            clock,
            acceptance,
            seed,
            budget.left,
        )
        plans.append(_reported(_with_lengths(chunk, lengths), planned, emit))
        told = f"; {lengths.note}" if lengths.note else ""
        say(f"{plans[0].step_ns / 1e6:.3f} ms a step, PyTorch {plans[0].baseline_ns / 1e6:.3f} ms{told}")
    return tuple(plans)


def confirm_steps(
    prepared: PreparedModel,
    planned: Planned,
    plans: Sequence[Plan],
    trials: RunTrials,
    clock: StepClock,
    seed: int,
    emit: Emit,
    acceptance: Acceptance,
) -> tuple[Plan, ...]:
    """Return the `plans` of an earlier process of the run; contended ones are timed again, and may fall back.

    How prompts run, which is measured beside them, is measured again too; `acceptance` is as in `tune_steps`.
    """
    with stage(emit, "admit") as say:
        kind = prepared.here.target.kind
        timed: dict[int, Admitted] = {}
        for at, (cut, plan) in enumerate(zip([*prepared.decode, prepared.prefill], plans, strict=True)):
            if plan.contended:
                step = StepTimer(cut, dict(planned.layouts), trials, clock, emit, kind)
                timed[at] = step.admitted(plan.parts, plan.exact, afresh(seed, clock))
        found = [timed[at].plan if at in timed else plan for at, plan in enumerate(plans)]
        lengths = measured_lengths(
            prepared, found, planned.layouts, trials.sources(), clock, acceptance, afresh(seed, clock), any_time
        )
        same = [one.parts == plan.parts for one, plan in zip(found, plans, strict=True)]
        earlier = still_hold(plans[-1].prompts, decode=same[0], prefill=same[-1])
        found[-1] = replace(found[-1], prompts=lengths.prompts if lengths.prompts.times else earlier)
        # All at once, and last: of a run that is killed before, the contended plans are still there to be confirmed.
        for at, plan in enumerate(found):
            if plan != plans[at]:
                _report(plan, timed[at].notes if at in timed else (), planned, emit)
        still = sum(plan.contended for plan in found)
        told = f"; {lengths.note}" if lengths.note else ""
        say(f"{still} of {sum(plan.contended for plan in plans)} contended plans are still contended{told}")
    return tuple(found)


def untimed_steps(prepared: PreparedModel, planned: Planned, emit: Emit) -> tuple[Plan, ...]:
    """Return the plans of the cover as they are: no step is timed, and no kernel falls back."""
    with stage(emit, "admit") as say:
        covers = zip((*prepared.decode, prepared.prefill), (*planned.decode, planned.prefill), strict=True)
        plans = tuple(Plan(regime=cut.partition.regime, parts=parts, exact=planned.exact) for cut, parts in covers)
        for one in plans:
            emit(PlanAdmitted(plan=one, layouts=planned.layouts))
        say("skipped step timing: this rule of choice does not time steps")
    return plans


def _with_lengths(admitted: Admitted, lengths: Lengths) -> Admitted:
    return replace(admitted, plan=replace(admitted.plan, prompts=lengths.prompts))


def _shares(decode: Sequence[Sequence[Part]]) -> list[float]:
    """Return for each step the share of all regions that it is the first to choose."""
    seen: set[str] = set()
    fresh = []
    for parts in decode:
        own = {part.region for part in parts}
        fresh.append(len(own - seen))
        seen |= own
    return [count / max(len(seen), 1) for count in fresh]


def _reported(admitted: Admitted, planned: Planned, emit: Emit) -> Plan:
    _report(admitted.plan, admitted.notes, planned, emit)
    return admitted.plan


def _report(plan: Plan, notes: Sequence[str], planned: Planned, emit: Emit) -> None:
    for note in notes:
        emit(Warned(text=note))
    emit(PlanAdmitted(plan=plan, layouts=planned.layouts))
