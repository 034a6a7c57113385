"""A person's decisions on admitted plans: approvals are noted, rejections and overrides change the plan.

In: admitted plans and the decisions that hold. Out: the plans as they go into the lock. A kernel that a person chose
passes the same checks as any other: it is confirmed, accepted by the full suite, and measured in the step. It does not
fall back, and a warning says when a plan with it was not shown to be faster than PyTorch. A kernel that no person
chose, and that wants a weight of it in another layout, gives way to PyTorch, which reads a weight in any layout.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.events import Emit, PlanAdmitted, Warned
from agentcompile.ir.template import Candidate
from agentcompile.ir.trial import (
    Choice,
    Decision,
    Fallback,
    Kernel,
    Layouts,
    Measured,
    Part,
    Plan,
    Trial,
    interval,
    reason,
)
from agentcompile.planning.plans import Planned
from agentcompile.planning.prompt_lengths import still_hold
from agentcompile.planning.step_timer import AnyStepClock, Kind, Sources, StepTimer, afresh
from agentcompile.runs.progress import State
from agentcompile.runs.tables import interval_text, prompt_lines, rough
from agentcompile.space import OutsideError, Space
from agentcompile.tuning.partitions import Cut

UNDO = "undo it: agentcompile decide --undo, or decide on the region again"
AGAIN = "agentcompile compile --resume --run-dir RUN"
"""The command that times contended plans of a run again; the folder of the run is known to the front end alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanChecks:
    """The objects that evaluate a plan which a person's decisions changed."""

    confirmation_of: Callable[[str, Candidate], Trial | None]
    """Returns the confirm trial of a candidate of a region id; None for a candidate that is in no space."""
    layouts: Callable[[Candidate], Layouts]
    """Returns the layouts that a candidate's template wants, by port family."""
    sources: Sources
    clock: AnyStepClock
    emit: Emit
    seed: int
    kind: Kind
    refused: Callable[[Planned], Sequence[tuple[str, Choice]]]
    """Validates a cover by the full suite, and returns the (region id, choice) pairs that failed."""


def apply_decisions(
    cuts: Sequence[Cut],
    planned: Planned,
    plans: Sequence[Plan],
    decisions: Mapping[str, Decision],
    bench: PlanChecks,
    known: Sequence[Plan] = (),
) -> tuple[Planned, tuple[Plan, ...]]:
    """Apply the decisions `decisions`, by region id; return the cover and the plans, one for each of `cuts`.

    `known` are plans that an earlier process of the run measured with the same decisions.

    Raises:
        AgentCompileError: an override fails, or two of them want one weight in different layouts (undecided).
    """  # noqa: DOC501
    _say_what_applies_nowhere(plans, decisions, bench.emit)
    choices = {region: _choice(decision, bench) for region, decision in decisions.items() if decision.word != "approve"}
    covers = [tuple(_part(part, decisions, choices) for part in plan.parts) for plan in plans]
    if all(_bare(cover) == _bare(plan.parts) for cover, plan in zip(covers, plans, strict=True)):
        same = tuple(replace(plan, parts=cover) for plan, cover in zip(plans, covers, strict=True))
        return replace(planned, decode=tuple(covers[:-1]), prefill=covers[-1]), same
    covers = _giving_way(cuts, covers, bench)
    layouts = layouts_of(cuts, covers, bench.layouts)
    changed = replace(planned, decode=tuple(covers[:-1]), prefill=covers[-1], layouts=layouts, exact=False)
    if failed := bench.refused(changed):
        name = _names(cuts)[failed[0][0]]
        raise _undecided(f"{name}: what the user chose failed the whole correctness suite")
    found, kept = [], []
    for cut, plan, cover in zip(cuts, plans, covers, strict=True):
        kept.append(layouts == planned.layouts and _bare(cover) == _bare(plan.parts))
        if kept[-1]:
            found.append(replace(plan, parts=cover))
        else:
            found.append(timed_plan(cut, replace(plan, parts=cover), changed, bench, known))
    prompts = still_hold(plans[-1].prompts, decode=kept[0], prefill=kept[-1])
    found[-1] = replace(found[-1], prompts=prompts)
    if prompts != plans[-1].prompts:
        before, now = (prompt_lines(one.chunk, one.steps_up_to) for one in (plans[-1].prompts, prompts))
        if before != now:
            text = f"{'; '.join(before)}: that was measured with kernels that these decisions change"
            bench.emit(Warned(text=f"{text}; {'; '.join(now) or 'prompts run as usual'} now"))
        bench.emit(PlanAdmitted(plan=found[-1], layouts=layouts, ruled=True))
    return changed, tuple(found)


def _say_what_applies_nowhere(plans: Sequence[Plan], decisions: Mapping[str, Decision], emit: Emit) -> None:
    covered = {part.region for plan in plans for part in plan.parts}
    for region, decision in decisions.items():
        if region not in covered:
            emit(
                Warned(
                    text=f"region {region[:12]}: to {decision.word} it changes nothing: the plan covers it otherwise"
                )
            )


def _choice(decision: Decision, bench: PlanChecks) -> Choice:
    if decision.word == "reject" or decision.candidate is None:
        why = f": {decision.reason}" if decision.reason else ""
        return Fallback(reason=f"rejected by user{why}", decided_by="human", approval=decision.approval)
    trial = bench.confirmation_of(decision.region, decision.candidate)
    if trial is None:
        raise _undecided(f"{decision.candidate.label}: the override names a point that is in no space here")
    if not isinstance(trial.verdict, Measured):
        raise _undecided(
            f"{decision.candidate.label}: the override failed: {trial.verdict.kind}: {reason(trial.verdict)}"
        )
    m = trial.verdict.measurement
    return Kernel(
        candidate=decision.candidate,
        source=trial.source,
        speedup=m.speedup,
        half_width=m.half_width,
        decided_by="human",
        reason=decision.reason,
        approval=decision.approval,
    )


def _part(part: Part, decisions: Mapping[str, Decision], choices: Mapping[str, Choice]) -> Part:
    decision = decisions.get(part.region)
    if part.region in choices:
        return replace(part, choice=choices[part.region])
    if decision is not None and isinstance(part.choice, Kernel):
        return replace(part, choice=replace(part.choice, approval=decision.approval))
    return part


def _bare(parts: Sequence[Part]) -> list[tuple[str, tuple[int, ...], Candidate | None]]:
    return [
        (part.region, part.sites, part.choice.candidate if isinstance(part.choice, Kernel) else None) for part in parts
    ]


def layouts_of(cuts: Sequence[Cut], covers: Sequence[Sequence[Part]], wants: Callable[[Candidate], Layouts]) -> Layouts:
    """Return (weight, layout) pairs of the weights that kernels want in a layout other than row-major, sorted.

    Regions in PyTorch accept any layout, because they unpack the weights that they read.

    Raises:
        AgentCompileError: two kernels want the same weight in different layouts (undecided).
    """  # noqa: DOC501
    wanted: dict[str, tuple[str, str]] = {}
    for cut, cover in zip(cuts, covers, strict=True):
        for part in cover:
            for weight, layout in _wanted(cut, part, wants):
                own = cut.regions[part.region].name
                known, other = wanted.setdefault(weight, (layout, own))
                if known != layout:
                    raise _undecided(f"{own} wants {weight} as {layout}, {other} as {known}: no plan has both")
    return tuple(sorted((name, layout) for name, (layout, _) in wanted.items() if layout != "row-major"))


def _wanted(cut: Cut, part: Part, wants: Callable[[Candidate], Layouts]) -> Iterator[tuple[str, str]]:
    """Yield (weight, layout) of every weight that a part's kernel reads; nothing for a part in PyTorch."""
    if not isinstance(part.choice, Kernel):
        return
    values = cut.graph.table()
    region, layouts = cut.regions[part.region], dict(wants(part.choice.candidate))
    for at in part.sites or range(len(region.sites)):
        bound = dict(region.sites[at].bindings)
        for port in region.ports:
            value = values[bound[port.name]] if port.role == "weight" else None
            if value is not None and value.role == "weight":
                yield value.name, layouts.get(port.family, "row-major")


def _giving_way(cuts: Sequence[Cut], covers: Sequence[tuple[Part, ...]], bench: PlanChecks) -> list[tuple[Part, ...]]:
    """Return the covers in which the kernels that contradict an override's layouts run in PyTorch, and say which.

    No other kernel is put in their place, because no person has seen it there.
    """
    chosen: dict[str, tuple[str, str]] = {}
    said = set[str]()
    for cut, cover in zip(cuts, covers, strict=True):
        for part in cover:
            if part.choice.decided_by == "human":
                found = _wanted(cut, part, bench.layouts)
                chosen |= {weight: (layout, cut.regions[part.region].name) for weight, layout in found}

    def kept(cut: Cut, part: Part) -> Part:
        if part.choice.decided_by == "human":
            return part
        approval = part.choice.approval
        for weight, layout in _wanted(cut, part, bench.layouts):
            want, by = chosen.get(weight, (layout, ""))
            if layout != want:
                why = f"{by}, which the user chose, reads {weight} as {want}, and its kernel as {layout}"
                text = f"{cut.regions[part.region].name} runs in PyTorch{', though approved' * bool(approval)}: {why}"
                if text not in said:
                    bench.emit(Warned(text=f"{text}; to keep a kernel there, override it with one that reads {want}"))
                said.add(text)
                return replace(part, choice=Fallback(reason=why))
        return part

    return [tuple(kept(cut, part) for part in cover) for cut, cover in zip(cuts, covers, strict=True)]


def timed_plan(cut: Cut, plan: Plan, planned: Planned, bench: PlanChecks, known: Sequence[Plan]) -> Plan:
    """Return a changed plan with its time in the step.

    A `known` time of the same plan is reused, unless it was disturbed: then it is measured again on fresh data.
    """
    before = next((one for one in known if one.regime == plan.regime and one.parts == plan.parts), None)
    if before is not None and not before.contended:
        return before
    seed = afresh(bench.seed, bench.clock) if before else bench.seed
    step = StepTimer(cut, dict(planned.layouts), bench.sources, bench.clock, bench.emit, bench.kind)
    found = step.timed_as_is(plan.parts, planned.exact, seed)
    bench.emit(PlanAdmitted(plan=found, layouts=planned.layouts, ruled=True))
    if found.comparison != "FASTER":
        text = f"{found.regime.name}: {found.step_ns / 1e6:.3f} ms with these decisions"
        bench.emit(Warned(text=f"{text}, PyTorch takes {found.baseline_ns / 1e6:.3f} ms: {_doubt(found)}"))
    return found


def _doubt(plan: Plan) -> str:
    """Return what was found of a plan that was not shown to be faster than PyTorch."""
    if plan.comparison != "INCONCLUSIVE":
        return "the plan is not faster"
    known = interval(plan.log_ratio, plan.half_width) is not None
    ratio = math.exp(plan.log_ratio)
    estimate = f"{ratio:.2f}x" if known else f"about {rough(ratio, 1)}x"
    found = f"inconclusive, {estimate} PyTorch {interval_text(plan.log_ratio, plan.half_width)}"
    return f"{found}; confirm it on a quiet machine: {AGAIN}"


def known_plan(earlier: State, cuts: Sequence[Cut], spaces: Mapping[str, Space]) -> Planned | None:
    """Return the cover that an earlier process of the run admitted in the step; None when there is none.

    None, too, when it does not fit these cuts and spaces any more.
    """
    if [plan.regime for plan in earlier.plans] != [cut.partition.regime for cut in cuts]:
        return None
    for cut, plan in zip(cuts, earlier.plans, strict=True):
        for part in plan.parts:
            kernel = part.choice if isinstance(part.choice, Kernel) else None
            if part.region not in cut.regions or (kernel and kernel.candidate not in spaces.get(part.region, ())):
                return None
    *decode, prefill = (plan.parts for plan in earlier.plans)
    exact = all(plan.exact for plan in earlier.plans)
    return Planned(decode=tuple(decode), prefill=prefill, layouts=earlier.layouts, exact=exact, decode_ns=0.0)


def legal(spaces: Mapping[str, Space]) -> Callable[[Candidate], str]:
    """Return a function that says why a candidate is not in its region's space; it returns "" for one that is."""

    def why(point: Candidate) -> str:
        if point.region not in spaces:
            return "no template serves its region here"
        try:
            spaces[point.region].candidate(point.template, dict(point.params))
        except OutsideError as error:
            return str(error)
        return ""

    return why


def _names(cuts: Sequence[Cut]) -> dict[str, str]:
    return {id: region.name for cut in cuts for id, region in cut.regions.items()}


def _undecided(text: str) -> AgentCompileError:
    return AgentCompileError(text, exit_code=ExitCode.UNDECIDED, hint=UNDO)
