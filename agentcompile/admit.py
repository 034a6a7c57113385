"""The step decides: alternatives of each region are tried inside the whole step, and the whole must beat PyTorch.

In: a plan of regions that won alone. Out: the plan that the step admits, with its measured time beside the best
baseline's. Coordinate descent (one region at a time, largest share first): a kernel that is fastest alone is not always
fastest between its neighbours, whose weights and barriers it shares.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from agentcompile.choose import Ranking
from agentcompile.cuts import Cut
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.events import Emit, RoundsProgress
from agentcompile.ir.program import Program
from agentcompile.ir.template import Source
from agentcompile.ir.trial import Choice, Crashed, Fallback, Kernel, Part, Plan, TimedOut
from agentcompile.measure import POLICY, Contrast, Timing, contrast
from agentcompile.plans import Planned
from agentcompile.regions.schedule import schedule
from agentcompile.runtime.lower import lower

ALTERNATIVES = {"cpu": 2, "cuda": 5}
"""Runners-up of a region that are tried in the step, by kind of device."""
PASSES = {"cpu": 1, "cuda": 2}
"""How often the regions are gone through, while something changes."""
WORTH = {"cpu": 0.02, "cuda": 0.0}
"""Share of the step's floor below which a region's runners-up are not tried. On a CPU its gain could not be told from
noise; on a GPU what moves few bytes still takes a launch and a wait."""
Kind = Literal["cpu", "cuda"]


class StepClock(Protocol):
    """Times whole steps beside one another."""

    def __call__(
        self, programs: Sequence[tuple[str, Program]], *, rounds: int, processes: int, claim: float, seed: int
    ) -> Timing | Crashed | TimedOut:
        """Time labelled programs in interleaved rounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """The plan as it goes into the lock, and what the step said of each region that changed."""

    plan: Plan
    parts: tuple[Part, ...]
    notes: tuple[str, ...]


def admit(
    cut: Cut,
    planned: Planned,
    rankings: Mapping[str, Ranking],
    sources: Mapping[str, Source],
    clock: StepClock,
    emit: Emit,
    seed: int,
    kind: Kind,
) -> Admitted:
    """Tune `planned.decode` in the step and prove the result against PyTorch in fresh processes."""
    layouts = dict(planned.layouts)

    def program(parts: Sequence[Part]) -> Program:
        return lower(cut.graph, schedule(cut.graph, cut.partition, parts), sources, layouts)

    parts, notes = planned.decode, list[str]()
    for number in range(PASSES[kind]):
        before = parts
        parts = _descend(cut, parts, rankings, program, clock, emit, seed + (number << 8), kind, notes)
        if parts == before:
            break
    parts, found, timing = _prove(cut, parts, program, clock, seed, notes)
    plan = Plan(
        regime=cut.partition.regime,
        parts=parts,
        exact=planned.exact,
        step_ns=round(timing.median_ns(1)),
        baseline_ns=round(timing.median_ns(0)),
        log_ratio=found.log_ratio,
        half_width=found.half_width,
    )
    return Admitted(plan=plan, parts=parts, notes=tuple(notes))


def _descend(
    cut: Cut,
    parts: tuple[Part, ...],
    rankings: Mapping[str, Ranking],
    program: Callable[[Sequence[Part]], Program],
    clock: StepClock,
    emit: Emit,
    seed: int,
    kind: Kind,
    notes: list[str],
) -> tuple[Part, ...]:
    """One pass over the regions: each gets the alternative that makes the whole step fastest."""
    tried = _worth_trying(cut, parts, rankings, kind)
    for done, (index, alternatives) in enumerate(tried):
        emit(RoundsProgress(region=parts[index].region, done=done, total=len(tried)))
        arms = [parts, *(_swap(parts, index, choice) for choice in alternatives)]
        labelled = [(str(i), program(arm)) for i, arm in enumerate(arms)]
        timing = clock(labelled, rounds=POLICY.search_rounds, processes=1, claim=POLICY.search_claim, seed=seed + done)
        if not isinstance(timing, Timing):
            notes.append(f"{cut.regions[parts[index].region].name}: runners-up not tried in the step: {timing.kind}")
            continue
        best = _best(timing, len(arms))
        if best is not None:
            notes.append(f"{cut.regions[parts[index].region].name}: a runner-up is faster in the step")
            parts = arms[best]
    return parts


def _worth_trying(
    cut: Cut, parts: Sequence[Part], rankings: Mapping[str, Ranking], kind: Kind
) -> list[tuple[int, tuple[Choice, ...]]]:
    """Indices of parts with runners-up of the same layouts, largest share first."""
    shares = {row.id: row.share for row in cut.summary.rows}
    found: list[tuple[int, tuple[Choice, ...]]] = []
    for index, part in enumerate(parts):
        if not isinstance(part.choice, Kernel) or shares[part.region] < WORTH[kind]:
            continue
        for _, kernels in rankings[part.region].kernels:
            if part.choice in kernels and len(kernels) > 1:
                others: list[Choice] = [kernel for kernel in kernels if kernel != part.choice]
                found.append((index, tuple(others[: ALTERNATIVES[kind]])))
    return sorted(found, key=lambda item: -shares[parts[item[0]].region])


def _swap(parts: Sequence[Part], index: int, choice: Choice) -> tuple[Part, ...]:
    return tuple(replace(part, choice=choice) if i == index else part for i, part in enumerate(parts))


def _best(timing: Timing, arms: int) -> int | None:
    """The arm that is FASTER than arm 0 by most, or None."""
    gains = {}
    for arm in range(1, arms):
        if arm in timing.live:
            found = contrast(timing, arm, 0, claim=POLICY.search_claim, comparisons=arms - 1)
            if found.comparison == "FASTER":
                gains[arm] = found.log_ratio
    return max(gains, key=lambda arm: gains[arm], default=None)


def _prove(
    cut: Cut,
    parts: tuple[Part, ...],
    program: Callable[[Sequence[Part]], Program],
    clock: StepClock,
    seed: int,
    notes: list[str],
) -> tuple[tuple[Part, ...], Contrast, Timing]:
    """Time the plan beside PyTorch; while it does not win, give half of its kernels back, and at last all."""
    reason = "the whole step is not faster with it"
    baseline = tuple(_fallen(part, "baseline") for part in parts)
    while True:
        timing = clock(
            [("pytorch", program(baseline)), ("plan", program(parts))],
            rounds=POLICY.confirm_rounds,
            processes=POLICY.confirm_processes,
            claim=POLICY.claim,
            seed=seed + (1 << 20),
        )
        kernels = [i for i, part in enumerate(parts) if isinstance(part.choice, Kernel)]
        if isinstance(timing, Timing) and timing.live == (0, 1):
            found = contrast(timing, 1, 0, claim=POLICY.claim)
            if found.comparison == "FASTER" or not kernels:
                return parts, found, timing
            why: str = found.comparison
        else:
            why = _cause(timing)
            if not kernels:
                text = f"the captured step itself cannot be timed: {why}"
                raise AgentCompileError(text, exit_code=ExitCode.ENVIRONMENT, hint="check memory and load, then resume")
        notes.append(f"the step with {len(kernels)} kernels is {why} against PyTorch: half of them are given back")
        weakest = sorted(kernels, key=lambda i: parts[i].choice.speedup)  # type: ignore[union-attr]
        dropped = set(weakest[: (len(kernels) + 1) // 2])
        parts = tuple(_fallen(part, reason) if i in dropped else part for i, part in enumerate(parts))


def _cause(timing: Timing | Crashed | TimedOut) -> str:
    """Why a step could not be timed: the verdict of its process, or of the first arm that died."""
    verdict = timing.failed[0][1] if isinstance(timing, Timing) else timing
    if isinstance(verdict, TimedOut):
        return f"no result within {verdict.limit_s:g} s"
    return f"signal {verdict.signal}" if verdict.signal else verdict.detail.strip().rpartition("\n")[2]


def _fallen(part: Part, reason: str) -> Part:
    return replace(part, choice=Fallback(reason=reason)) if isinstance(part.choice, Kernel) else part
