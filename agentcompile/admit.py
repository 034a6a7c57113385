"""The step decides: alternatives of each region are tried inside the whole step, and the whole must beat PyTorch.

In: a plan of regions that won alone. Out: the plan that the step admits, with its measured time beside the best
baseline's. Coordinate descent (one region at a time, largest share first): a kernel that is fastest alone is not always
fastest between its neighbours, whose weights and barriers it shares. Where many rivals stand beside a choice, short
looks pick the few that are judged and timed long. A prompt's step is a chunk of tokens.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from agentcompile.arms import Arm, asked, candidate_of, fastest, gains, labelled, order, swap, template_of
from agentcompile.cuts import Cut
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.events import Emit, RoundsProgress, StepsTimed
from agentcompile.ir.graph import Graph, concrete
from agentcompile.ir.program import Program
from agentcompile.ir.region import Regime
from agentcompile.ir.template import Source
from agentcompile.ir.trial import NO_INTERVAL, Choice, Crashed, Death, Fallback, Kernel, Part, Plan, TimedOut, reason
from agentcompile.measure import POLICY, Contrast, Timing, contrast
from agentcompile.plans import Planned
from agentcompile.regions.schedule import schedule
from agentcompile.rivals import Rivals
from agentcompile.runtime.lower import lower

PASSES = {"cpu": 1, "cuda": 3}
"""How often the regions are gone through at most. What was tried is tried again only when it or a neighbour changed."""
WORTH = {"cpu": 0.02, "cuda": 0.0}
"""Share of the step's floor below which a region's rivals are not tried. On a CPU its gain could not be told from
noise; on a GPU what moves few bytes still takes a launch and a wait."""
LOOKS = 3
"""How often a plan that a person changed is timed while the machine is disturbed."""
Kind = Literal["cpu", "cuda"]
CLAIM = {"cpu": POLICY.search_claim, "cuda": 0.001}
"""Relative: the smallest gain for which the step takes a rival. Steps on a GPU repeat to a few tenths of a percent, and
a region's gains are as small."""
ROUNDS = {"cpu": POLICY.search_rounds, "cuda": 10}
LOOK_ROUNDS = 2
"""Of a look at more than `FEW` rivals, at samples of a few steps."""
ABREAST = 32
"""Rivals that are looked at beside one another: all of them are in memory at once."""
FEW = 4
"""Rivals that are timed long after a look."""
JUDGED = 8
"""Of those that looked best, how many are judged to find the few."""
HOPE = 0.004
"""Relative: how much slower than the choice a rival may be in a look, whose error is about as large."""


class StepClock(Protocol):
    """Times whole steps beside one another."""

    @property
    def known(self) -> Mapping[str, Timing]:
        """What an earlier process of the run found, by `arms.asked`."""

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
        """Time labelled programs beside one another, in the middle of what a regime serves; not `trusted`: may hang."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """The plan as it goes into the lock, and what the step said of each region that changed."""

    plan: Plan
    parts: tuple[Part, ...]
    notes: tuple[str, ...]


def admit(
    cut: Cut,
    parts: Sequence[Part],
    planned: Planned,
    rivals: Rivals,
    clock: StepClock,
    emit: Emit,
    seed: int,
    kind: Kind,
    settled: Mapping[str, Choice],
) -> Admitted:
    """Tune `parts`, the cover of `cut` in `planned`, in the step and prove the result against PyTorch in fresh
    processes. `settled` are choices by region that steps of other regimes have made already: they are taken over, and
    change only together with a neighbour that is this step's own."""
    step = _Step(cut, dict(planned.layouts), rivals, clock, emit, kind)
    start = tuple(replace(part, choice=settled.get(part.region, part.choice)) for part in parts)
    free = frozenset(part.region for part in start if part.region not in settled)
    wider = free | step.beside(start, free) if kind == "cuda" else free
    found, untried = start, wider
    for number in range(PASSES[kind]):
        found, stirred = step.descend(found, untried, free, seed + (number << 8))
        untried = wider & stirred
    paired = step.pair_up(found, free, seed + (PASSES[kind] << 8))
    if paired != found:  # what was found beside other neighbours is looked for anew beside these
        changed = step.turned(found, paired)
        untried = wider & (changed | step.beside(paired, changed))
        found, _ = step.descend(paired, untried, free, seed + ((PASSES[kind] + 1) << 8))
    known = zip(found, start, strict=True)
    found = tuple(replace(part, choice=rivals.settled(part, before.choice)) for part, before in known)
    return step.proved(found, planned.exact, seed)


def admit_chunk(
    cut: Cut, planned: Planned, rivals: Rivals, clock: StepClock, emit: Emit, seed: int, kind: Kind
) -> Admitted:
    """Prove the prefill plan of `planned`, which covers `cut`, against PyTorch: a chunk of as many tokens as the cut
    stands for, in fresh processes.

    Its kernels stay or go; no rival is tried, because a prompt is read once for all the steps that answer it. Where not
    even PyTorch's chunk can be timed, the plan is PyTorch's.
    """
    step = _Step(cut, dict(planned.layouts), rivals, clock, emit, kind)
    try:
        return step.proved(planned.prefill, planned.exact, seed)
    except AgentCompileError as error:
        parts = tuple(_fallen(part, error.message) for part in planned.prefill)
        plan = Plan(regime=cut.partition.regime, parts=parts, exact=planned.exact)
        return Admitted(plan=plan, parts=parts, notes=(*step.notes, error.message))


def weigh(
    cut: Cut,
    parts: Sequence[Part],
    planned: Planned,
    rivals: Rivals,
    clock: StepClock,
    emit: Emit,
    seed: int,
    kind: Kind,
) -> Plan:
    """Time a plan that a person changed beside PyTorch, in fresh processes, and give nothing of it back.

    Raises AgentCompileError (undecided) for one that cannot be timed.
    """
    return _Step(cut, dict(planned.layouts), rivals, clock, emit, kind).weighed(tuple(parts), planned.exact, seed)


class _Step:
    """The step of one regime, in which covers are timed beside one another."""

    def __init__(
        self, cut: Cut, layouts: Mapping[str, str], rivals: Rivals, clock: StepClock, emit: Emit, kind: Kind
    ) -> None:
        self._cut, self._layouts, self._rivals = cut, layouts, rivals
        self._clock, self._emit = clock, emit
        self._kind: Kind = kind
        self._chunk = _chunk(cut.graph)
        self._name = "chunk" if self._chunk else "step"
        self.notes: list[str] = []

    def descend(
        self, parts: Arm, untried: Collection[str], free: Collection[str], seed: int
    ) -> tuple[Arm, frozenset[str]]:
        """One pass over the `untried` regions: each gets the alternative that makes the whole step fastest. Also the
        regions that changed since they were tried, or whose neighbours did. The `free` come first: a neighbour that
        was chosen beside others would adapt to a kernel that has won alone only, and hold it there."""
        tried = [at for at in _worth_trying(self._cut, parts, self._kind) if parts[at].region in untried]
        tried.sort(key=lambda at: parts[at].region not in free)
        stirred = frozenset[str]()
        for done, index in enumerate(tried):
            region = self._cut.regions[parts[index].region]
            self._emit(RoundsProgress(region=region.id, done=done, total=len(tried)))
            rivals = self._rivals.of(parts[index])
            near = self._nearest(parts, index, rivals, seed + done, region.name)
            arms = [parts, *(swap(parts, index, choice) for choice in near)]
            found = self._fastest(arms, len(rivals), seed + done, region.name, "rivals", "a rival makes")
            stirred -= {region.id}
            if found != parts:
                stirred |= {region.id} | self.beside(parts, {region.id})
            parts = found
        return parts, stirred

    def beside(self, parts: Sequence[Part], regions: Collection[str]) -> frozenset[str]:
        """`regions`, where they run, and what runs right before or after a site of theirs."""
        return frozenset[str]().union(*(pair for pair in self._neighbours(parts) if pair & set(regions)))

    def _nearest(self, parts: Arm, index: int, rivals: Sequence[Choice], seed: int, name: str) -> Sequence[Choice]:
        """Of many rivals of a part on a GPU the few that looked fastest and are right; else all of them."""
        if self._kind != "cuda" or len(rivals) <= FEW:
            return self._rivals.proven(parts[index], rivals)
        looks: dict[int, float] = {}
        for first in range(0, len(rivals), ABREAST):
            if self._rivals.left() <= 0 and looks:
                break
            some = range(len(rivals))[first : first + ABREAST]
            arms = [parts, *(swap(parts, index, rivals[at]) for at in some)]
            look = self._glance(arms, seed, trusted=False)
            if isinstance(look, dict):
                looks |= {some[arm - 1]: gain for arm, gain in look.items()}
            else:
                self.notes.append(f"{name}: {len(some)} rivals not looked at in the step: {look.kind}")
        self._rivals.ranked(parts[index], [rivals[at] for at in order(looks)])
        best = [rivals[at] for at in order(looks, -HOPE)[:JUDGED]]
        return self._rivals.proven(parts[index], best)[:FEW]

    def pair_up(self, parts: Arm, free: Collection[str], seed: int) -> Arm:
        """Try every two regions together, one of them `free`, that follow one another at several sites: a kernel that
        takes less of a multiprocessor may be slower alone, and faster where its neighbour's loads are on their way
        beside it."""
        neighbours = self._neighbours(parts)
        several = [at for at in _worth_trying(self._cut, parts, self._kind) if len(parts[at].sites) > 1]
        pairs = [
            (one, other)
            for one, other in itertools.combinations(several, 2)
            if {parts[one].region, parts[other].region} & set(free)
            and frozenset((parts[one].region, parts[other].region)) in neighbours
        ]
        for done, (one, other) in enumerate(pairs):
            self._emit(RoundsProgress(region=parts[one].region, done=done, total=len(pairs)))
            firsts, seconds = ((parts[at].choice, *self._partners(parts[at], free)) for at in (one, other))
            both = itertools.product(firsts, seconds)  # the first is what the step has now
            arms = [swap(swap(parts, one, mine), other, its) for mine, its in both]
            names = " and ".join(self._cut.regions[parts[at].region].name for at in (one, other))
            parts = self._fastest(arms, len(arms) - 1, seed + done, names, "rivals of both", "rivals of both make")
        return parts

    def _partners(self, part: Part, free: Collection[str]) -> tuple[Choice, ...]:
        """What to try of a part together with another's: lean ones, and of a `free` one every kind."""
        kinds = self._rivals.kinds(part) if part.region in free else ()
        return tuple({candidate_of(one): one for one in (*kinds, *self._rivals.lean(part))}.values())

    def turned(self, before: Arm, after: Arm) -> frozenset[str]:
        """The regions whose choice is another. Where it is of another template, what was known of its rivals is
        forgotten."""
        changed = [(old, new) for old, new in zip(before, after, strict=True) if old.choice != new.choice]
        for old, new in changed:
            if template_of(old.choice) != template_of(new.choice):
                self._rivals.forget(new)
        return frozenset(new.region for _, new in changed)

    def _neighbours(self, parts: Sequence[Part]) -> frozenset[frozenset[str]]:
        """Every two regions of which one runs right after a site of the other."""
        ids = [step.region.id for step in schedule(self._cut.graph, self._cut.partition, parts)]
        return frozenset(frozenset(pair) for pair in itertools.pairwise(ids))

    def _fastest(self, arms: Sequence[Arm], among: int, seed: int, name: str, who: str, makes: str) -> Arm:
        """The first of `arms`, or the fastest step of those that were chosen `among` so many; `who` is for notes."""
        kept, unseen = list(arms), ""
        if self._kind == "cuda" and len(arms) > FEW + 1:
            look = self._glance(arms, seed, trusted=True)
            seen = order(look, -HOPE)[:FEW] if isinstance(look, dict) else []
            kept, unseen = [arms[0], *(arms[at] for at in seen)], "" if isinstance(look, dict) else look.kind
        if len(kept) > 1:
            claim = CLAIM[self._kind]
            timing = self._timed(labelled(kept), ROUNDS[self._kind], 1, claim, seed)
            if isinstance(timing, Timing):
                # All that were looked at compete: the few that are timed long were chosen from them.
                best = fastest(timing, len(kept), claim, max(among, 1))
                if best is not None:
                    at, gain = best
                    self.notes.append(f"{name}: {makes} the step {gain:.1%} faster")
                    return kept[at]
            else:
                unseen = timing.kind
        if unseen:
            self.notes.append(f"{name}: {who} not tried in the step: {unseen}")
        return arms[0]

    def _glance(self, arms: Sequence[Arm], seed: int, trusted: bool) -> dict[int, float] | Death:
        """How much faster than the first of `arms` every other looks, as a logarithm."""
        look = self._timed(labelled(arms), LOOK_ROUNDS, 1, POLICY.search_claim, seed, trusted)
        if not isinstance(look, Timing):
            return look
        return {arm: found.log_ratio for arm, found in gains(look, len(arms), POLICY.search_claim, 1).items()}

    def proved(self, parts: Arm, exact: bool, seed: int) -> Admitted:
        """What `prove` leaves of a plan, with its time; `exact` as the cover was solved."""
        parts, ratio, timing = self.prove(parts, seed)
        return Admitted(plan=self._plan(parts, exact, ratio, timing), parts=parts, notes=tuple(self.notes))

    def weighed(self, parts: Arm, exact: bool, seed: int) -> Plan:
        """A plan as it is, with its time; where others disturb the machine it is timed again, `LOOKS` times at most."""
        for look in range(LOOKS):
            timing, found = self._look(parts, seed + (look << 21))
            if found.half_width < NO_INTERVAL:
                break
        return self._plan(parts, exact, found, timing)

    def _look(self, parts: Arm, seed: int) -> tuple[Timing, Contrast]:
        timing = self._beside_pytorch(parts, seed)
        if isinstance(timing, Timing) and timing.live == (0, 1):
            return timing, contrast(timing, 1, 0, claim=POLICY.claim)
        text = f"the {self._name} with these decisions cannot be timed: {_cause(timing)}"
        hint = "take a decision back: agentcompile decide --undo"
        raise AgentCompileError(text, exit_code=ExitCode.UNDECIDED, hint=hint)

    def _plan(self, parts: Arm, exact: bool, ratio: Contrast, timing: Timing) -> Plan:
        return Plan(
            regime=self._cut.partition.regime,
            parts=parts,
            exact=exact,
            step_ns=round(timing.median_ns(1)),
            baseline_ns=round(timing.median_ns(0)),
            log_ratio=ratio.log_ratio,
            half_width=ratio.half_width,
            chunk=self._chunk,
        )

    def _beside_pytorch(self, parts: Arm, seed: int) -> Timing | Death:
        """Arm 0 is PyTorch, arm 1 the plan."""
        arms = [("pytorch", tuple(_fallen(part, "baseline") for part in parts)), ("plan", parts)]
        return self._timed(arms, POLICY.confirm_rounds, POLICY.confirm_processes, POLICY.claim, seed + (1 << 20))

    def prove(self, parts: Arm, seed: int) -> tuple[Arm, Contrast, Timing]:
        """Time the plan beside PyTorch; while it does not win, give half of its kernels back, and at last all."""
        because = f"the whole {self._name} is not faster with it"
        while True:
            timing = self._beside_pytorch(parts, seed)
            kernels = [i for i, part in enumerate(parts) if isinstance(part.choice, Kernel)]
            if isinstance(timing, Timing) and timing.live == (0, 1):
                found = contrast(timing, 1, 0, claim=POLICY.claim)
                if found.comparison == "FASTER" or not kernels:
                    return parts, found, timing
                why: str = found.comparison
            else:
                why = _cause(timing)
                if not kernels:
                    text = f"the captured {self._name} itself cannot be timed: {why}"
                    hint = "check memory and load, then resume"
                    raise AgentCompileError(text, exit_code=ExitCode.ENVIRONMENT, hint=hint)
            self.notes.append(
                f"the {self._name} with {len(kernels)} kernels is {why} against PyTorch: half of them are given back"
            )
            weakest = sorted(kernels, key=lambda i: parts[i].choice.speedup)  # type: ignore[union-attr]
            dropped = set(weakest[: (len(kernels) + 1) // 2])
            parts = tuple(_fallen(part, because) if i in dropped else part for i, part in enumerate(parts))

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
        sources = self._rivals.sources()
        programs = [(label, self._program(parts, sources)) for label, parts in arms]
        found = self._clock(
            programs, at=at, rounds=rounds, processes=processes, claim=claim, seed=seed, trusted=trusted
        )
        if isinstance(found, Timing) and not found.failed:
            self._emit(StepsTimed(steps=steps, timing=found))
        return found

    def _program(self, parts: Sequence[Part], sources: Mapping[str, Source]) -> Program:
        cut = self._cut
        placed = schedule(cut.graph, cut.partition, parts)
        return lower(cut.graph, placed, sources, self._layouts)


def _chunk(graph: Graph) -> int:
    """Tokens of the prefill chunk that a graph of numbers is; 0 for a decode step."""
    fed = [value for value in graph.values if value.role == "token"]
    return math.prod(concrete(fed[0].shape)) if graph.phase == "prefill" else 0


def _worth_trying(cut: Cut, parts: Sequence[Part], kind: Kind) -> list[int]:
    """Indices of parts that run a kernel, largest share first."""
    shares = {row.id: row.share for row in cut.summary.rows}
    found = [
        index
        for index, part in enumerate(parts)
        if isinstance(part.choice, Kernel) and shares[part.region] >= WORTH[kind]
    ]
    return sorted(found, key=lambda index: -shares[parts[index].region])


def _cause(timing: Timing | Death) -> str:
    """Why a step could not be timed: the verdict of its process, or of the first arm that died."""
    verdict = timing.failed[0][1] if isinstance(timing, Timing) else timing
    if isinstance(verdict, TimedOut):
        return f"no result within {verdict.limit_s:g} s"
    if not isinstance(verdict, Crashed):
        return reason(verdict)
    return f"signal {verdict.signal}" if verdict.signal else verdict.detail.strip().rpartition("\n")[2]


def _fallen(part: Part, reason: str) -> Part:
    return replace(part, choice=Fallback(reason=reason)) if isinstance(part.choice, Kernel) else part
