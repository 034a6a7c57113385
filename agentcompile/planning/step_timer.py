"""Timing of whole steps of one regime: plans beside one another, and a plan beside PyTorch until it is admitted.

In: plans that cover one graph. Out: timings, and the admitted plan. While the plan is measured to be no faster than
PyTorch, half of its kernels fall back; a plan that is inconclusive on a busy machine stays if its estimate is faster,
with a note that says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from agentcompile.backends import backend_of
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.evaluation.time_budget import Left, any_time
from agentcompile.events import Emit, StepsTimed
from agentcompile.ir.program import CHUNK, Program
from agentcompile.ir.region import Regime
from agentcompile.ir.template import Source
from agentcompile.ir.trial import NO_INTERVAL, Crashed, Death, Fallback, Kernel, Part, Plan, TimedOut, interval, reason
from agentcompile.measure import POLICY, Contrast, Timing, contrast
from agentcompile.planning.arms import Arm, asked, lowered
from agentcompile.tuning.partitions import Cut

Kind = Literal["cpu", "cuda"]
LOOKS = 3
"""How often a plan is timed beside PyTorch, at most, while the machine is disturbed."""


class AnyStepClock(Protocol):
    """A clock that times whole steps beside one another."""

    @property
    def known(self) -> Mapping[str, Timing]:
        """Timings of earlier processes of the run, by the digest from `arms.asked`."""

    def __call__(
        self,
        programs: Sequence[tuple[str, Program]],
        *,
        at: Regime,
        rounds: int,
        processes: int,
        claim: float,
        seed: int,
        trusted: bool = True,
    ) -> Timing | Death:
        """Time labelled programs beside one another in the middle of a regime's range; not `trusted`: they may hang."""


class Sources(Protocol):
    """An object that has the source of every candidate."""

    def sources(self) -> Mapping[str, Source]:
        """Return the source of every candidate, by digest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """The plan as it goes into the lock, and notes for people on what changed in the step."""

    plan: Plan
    parts: tuple[Part, ...]
    notes: tuple[str, ...]


class StepTimer:
    """A timer of the step of one regime, which times covers beside one another."""

    def __init__(
        self,
        cut: Cut,
        layouts: Mapping[str, str],
        alternatives: Sources,
        clock: AnyStepClock,
        emit: Emit,
        kind: Kind,
        left: Left = any_time,
    ) -> None:
        self._cut, self._layouts, self._sources = cut, layouts, alternatives
        self._clock, self._emit, self._left = clock, emit, left
        self._kind: Kind = kind
        self._chunk = chunk_of(cut)
        self._name = "chunk" if self._chunk else "step"
        self._notes: list[str] = []

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for people on what happened so far."""
        return tuple(self._notes)

    def admitted(self, parts: Arm, exact: bool, seed: int) -> Admitted:
        """Return what `confirm_beside_pytorch` keeps of a plan, with its time.

        `exact` says whether the cover was solved exactly.
        """
        parts, ratio = self.confirm_beside_pytorch(parts, seed)
        return Admitted(plan=self._plan(parts, exact, ratio), parts=parts, notes=tuple(self._notes))

    def timed_as_is(self, parts: Arm, exact: bool, seed: int) -> Plan:
        """Return the plan of `parts` as it is, with its time; until it has an interval it is timed up to `LOOKS` times.

        Raises:
            AgentCompileError: the step cannot be timed (undecided).
        """
        for look in range(LOOKS):
            found = self._look(parts, seed + (look << 21))
            if found.half_width < NO_INTERVAL:
                break
        return self._plan(parts, exact, found)

    def _look(self, parts: Arm, seed: int) -> Contrast:
        timing = self._beside_pytorch(parts, seed)
        if isinstance(timing, Timing) and timing.live == (0, 1):
            return contrast(timing, 1, 0, claim=POLICY.claim)
        text = f"the {self._name} with these decisions cannot be timed: {_cause(timing)}"
        hint = "undo a decision: agentcompile decide --undo"
        raise AgentCompileError(text, exit_code=ExitCode.UNDECIDED, hint=hint)

    def _plan(self, parts: Arm, exact: bool, ratio: Contrast) -> Plan:
        return Plan(
            regime=self._cut.partition.regime,
            parts=parts,
            exact=exact,
            step_ns=round(ratio.arm_ns),
            baseline_ns=round(ratio.baseline_ns),
            log_ratio=ratio.log_ratio,
            half_width=ratio.half_width,
            chunk=self._chunk,
            comparison=ratio.comparison,
            disturbed=round(ratio.disturbed, 3),
        )

    def _beside_pytorch(self, parts: Arm, seed: int) -> Timing | Death:
        arms = [("pytorch", tuple(as_fallback(part, "baseline") for part in parts)), ("plan", parts)]
        # PyTorch may take seconds for a chunk on a CPU, and a plan is several times faster or slower, or all the same.
        processes = 1 if self._chunk and backend_of(self._kind).any_chunk else POLICY.confirm_processes
        return self._timed(arms, POLICY.confirm_rounds, processes, POLICY.claim, seed + (1 << 20))

    def confirm_beside_pytorch(self, parts: Arm, seed: int) -> tuple[Arm, Contrast]:
        """Time the plan beside PyTorch; while it is not faster, let half of its kernels fall back, in the end all.

        The kernels with the least isolated speedup fall back first. An inconclusive plan is timed again, `LOOKS` times
        at most, while time is left; then it stays if it is faster by its estimate.

        Raises:
            AgentCompileError: the step in PyTorch alone cannot be timed (environment).
        """
        look = 0
        while True:
            timing = self._beside_pytorch(parts, seed + (look << 21))
            kernels = [i for i, part in enumerate(parts) if isinstance(part.choice, Kernel)]
            if isinstance(timing, Timing) and timing.live == (0, 1):
                found = contrast(timing, 1, 0, claim=POLICY.claim)
                if found.comparison == "FASTER" or not kernels:
                    return parts, found
                if found.comparison == "INCONCLUSIVE":
                    look += 1
                    if look < LOOKS and self._left() > 0:
                        continue
                    if found.log_ratio > 0:
                        self._notes.append(f"the {self._name} is kept undecided, {_estimate(found)}: {found.why}")
                        return parts, found
                why = f"measured {_estimate(found)}"
            else:
                why = f"not timed: {_cause(timing)}"
                if not kernels:
                    text = f"the captured {self._name} itself cannot be timed: {_cause(timing)}"
                    hint = "check memory and load, then resume"
                    raise AgentCompileError(text, exit_code=ExitCode.ENVIRONMENT, hint=hint)
            what = "half of the kernels" if len(kernels) > 1 else "PyTorch alone"
            self._notes.append(f"the {self._name} with {len(kernels)} kernels was {why}: retrying with {what}")
            weakest = sorted(kernels, key=lambda i: parts[i].choice.speedup)  # type: ignore[union-attr]
            dropped = set(weakest[: (len(kernels) + 1) // 2])
            because = f"the whole {self._name} with it was {why}"
            parts = tuple(as_fallback(part, because) if i in dropped else part for i, part in enumerate(parts))

    def _timed(
        self,
        arms: Sequence[tuple[str, Sequence[Part]]],
        rounds: int,
        processes: int,
        claim: float,
        seed: int,
        trusted: bool = True,
    ) -> Timing | Death:
        at, policy = self._cut.partition.regime, POLICY.digest(residency=self._cut.residency)
        steps = asked(arms, at, rounds=rounds, processes=processes, claim=claim, seed=seed, policy=policy)
        if (known := self._clock.known.get(steps)) is not None:
            return known
        sources = self._sources.sources()
        cut = self._cut
        programs = [(label, lowered(cut, parts, sources, self._layouts)) for label, parts in arms]
        found = self._clock(
            programs, at=at, rounds=rounds, processes=processes, claim=claim, seed=seed, trusted=trusted
        )
        if isinstance(found, Timing) and not found.failed:
            self._emit(StepsTimed(steps=steps, timing=found))
        return found


def afresh(seed: int, clock: AnyStepClock) -> int:
    """Return a seed for data that no earlier timing of the run had."""
    return seed + (len(clock.known) << 24)


def chunk_of(cut: Cut) -> int:
    """Return the tokens of the prefill chunk at which a plan of `cut` is measured; 0 for a decode step."""
    fed = next(value for value in cut.graph.values if value.role == "token")
    if cut.graph.phase != "prefill":
        return 0
    longest = min(CHUNK, cut.partition.regime.context[1])
    return math.prod(dim if isinstance(dim, int) else longest for dim in fed.shape)


def _estimate(found: Contrast) -> str:
    """Return a speedup and its interval for people: ``1.21x PyTorch (0.98–1.49)``."""
    text = f"{math.exp(found.log_ratio):.2f}x PyTorch"
    ends = interval(found.log_ratio, found.half_width)
    return f"{text} ({ends[0]:.2f}–{ends[1]:.2f})" if ends else f"{text} by the quickest of few rounds"


def _cause(timing: Timing | Death) -> str:
    """Return why a step could not be timed: the verdict of its process, or of the first arm that died."""
    verdict = timing.failed[0][1] if isinstance(timing, Timing) else timing
    if isinstance(verdict, TimedOut):
        return f"no result within {verdict.limit_s:g} s"
    if not isinstance(verdict, Crashed):
        return reason(verdict)
    return f"signal {verdict.signal}" if verdict.signal else verdict.detail.strip().rpartition("\n")[2]


def as_fallback(part: Part, reason: str) -> Part:
    """Return the part with a fallback in place of a kernel; a part that runs in PyTorch is returned unchanged."""
    return replace(part, choice=Fallback(reason=reason)) if isinstance(part.choice, Kernel) else part
