"""The step decides: alternatives of each region are tried inside the whole step, and the whole must beat PyTorch.

In: a plan of regions that won alone. Out: the plan that the step admits, with its measured time beside the best
baseline's. Coordinate descent (one region at a time, largest share first): a kernel that is fastest alone is not always
fastest between its neighbours, whose weights and barriers it shares. Where many alternatives stand beside a choice,
short looks pick the few that are evaluated and timed long. A prompt's step is a chunk of tokens.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from agentcompile.backends import StepRules, backend_of
from agentcompile.errors import AgentCompileError
from agentcompile.evaluation.time_budget import Left, any_time
from agentcompile.events import Emit, RoundsProgress
from agentcompile.ir.trial import Choice, Death, Kernel, Part, Plan
from agentcompile.measure import POLICY, Timing
from agentcompile.planning.alternatives import Alternatives
from agentcompile.planning.arms import Arm, candidate_of, fastest, gains, labelled, order, swap, template_of
from agentcompile.planning.plans import Planned
from agentcompile.planning.step_timer import Admitted, Kind, Sources, StepClock, StepTimer, as_fallback
from agentcompile.regions.schedule import schedule
from agentcompile.tuning.partitions import Cut

LOOK_ROUNDS = 2
"""Of a look at more than `FEW` alternatives, at samples of a few steps."""
ABREAST = 32
"""Alternatives that are looked at beside one another: all of them are in memory at once."""
FEW = 4
"""Alternatives that are timed long after a look."""
EVALUATED = 8
"""Of those that looked best, how many are judged to find the few."""
LOOKS_SLOWER = 0.004
"""Relative: how much slower than the choice an alternative may be in a look, whose error is about as large."""


def admit(
    cut: Cut,
    parts: Sequence[Part],
    planned: Planned,
    alternatives: Alternatives,
    clock: StepClock,
    emit: Emit,
    seed: int,
    kind: Kind,
    settled: Mapping[str, Choice],
    left: Left = any_time,
) -> Admitted:
    """Tune `parts`, the cover of `cut` in `planned`, in the step and prove the result against PyTorch in fresh
    processes. `settled` are choices by region that steps of other regimes have made already: they are taken over, and
    change only together with a neighbour that is this step's own. When no seconds are `left` none is tried."""
    step, rules = StepTuner(cut, dict(planned.layouts), alternatives, clock, emit, kind, left), backend_of(kind).step
    start = tuple(replace(part, choice=settled.get(part.region, part.choice)) for part in parts)
    free = frozenset(part.region for part in start if part.region not in settled)
    wider = free | step.beside(start, free) if rules.whole_space else free
    found, untried = start, wider
    for number in range(rules.passes):
        found, stirred = step.one_pass(found, untried, free, seed + (number << 8))
        untried = wider & stirred
    paired = step.pair_up(found, free, seed + (rules.passes << 8))
    if paired != found:  # what was found beside other neighbours is looked for anew beside these
        changed = step.changed_regions(found, paired)
        untried = wider & (changed | step.beside(paired, changed))
        found, _ = step.one_pass(paired, untried, free, seed + ((rules.passes + 1) << 8))
    known = zip(found, start, strict=True)
    found = tuple(replace(part, choice=alternatives.shippable(part, before.choice)) for part, before in known)
    return step.admitted(found, planned.exact, seed)


def admit_chunk(
    cut: Cut,
    planned: Planned,
    alternatives: Alternatives,
    clock: StepClock,
    emit: Emit,
    seed: int,
    kind: Kind,
    left: Left = any_time,
) -> Admitted:
    """Prove the prefill plan of `planned`, which covers `cut`, against PyTorch: a chunk of as many tokens as the cut
    stands for, in fresh processes.

    Its kernels stay or go; no alternative is tried, because a prompt is read once for all the steps that answer it.
    Where not even PyTorch's chunk can be timed, the plan is PyTorch's.
    """
    step = StepTuner(cut, dict(planned.layouts), alternatives, clock, emit, kind, left)
    try:
        return step.admitted(planned.prefill, planned.exact, seed)
    except AgentCompileError as error:
        parts = tuple(as_fallback(part, error.message) for part in planned.prefill)
        plan = Plan(regime=cut.partition.regime, parts=parts, exact=planned.exact)
        return Admitted(plan=plan, parts=parts, notes=(*step.notes, error.message))


def confirm(
    cut: Cut, plan: Plan, planned: Planned, sources: Sources, clock: StepClock, emit: Emit, seed: int, kind: Kind
) -> Admitted:
    """Time an admitted plan again whose timing others disturbed, on fresh data; what of it is no faster goes back."""
    step = StepTimer(cut, dict(planned.layouts), sources, clock, emit, kind)
    return step.admitted(plan.parts, plan.exact, seed + (len(clock.known) << 24))


def time_as_is(
    cut: Cut,
    parts: Sequence[Part],
    planned: Planned,
    alternatives: Alternatives,
    clock: StepClock,
    emit: Emit,
    seed: int,
    kind: Kind,
) -> Plan:
    """Time a plan that a person changed beside PyTorch, in fresh processes; nothing of it falls back.

    Raises AgentCompileError (undecided) for one that cannot be timed.
    """
    return StepTuner(cut, dict(planned.layouts), alternatives, clock, emit, kind).timed_as_is(
        tuple(parts), planned.exact, seed
    )


class StepTuner(StepTimer):
    """The step of one regime, whose parts are tried in it one after another."""

    def __init__(
        self,
        cut: Cut,
        layouts: Mapping[str, str],
        alternatives: Alternatives,
        clock: StepClock,
        emit: Emit,
        kind: Kind,
        left: Left = any_time,
    ) -> None:
        super().__init__(cut, layouts, alternatives, clock, emit, kind, left)
        self._alternatives, self._rules = alternatives, backend_of(kind).step

    def one_pass(
        self, parts: Arm, untried: Collection[str], free: Collection[str], seed: int
    ) -> tuple[Arm, frozenset[str]]:
        """One pass over the `untried` regions: each gets the alternative that makes the whole step fastest. Also the
        regions that changed since they were tried, or whose neighbours did. The `free` come first: a neighbour that
        was chosen beside others would adapt to a kernel that has won alone only, and hold it there."""
        tried = [at for at in _worth_trying(self._cut, parts, self._rules) if parts[at].region in untried]
        tried.sort(key=lambda at: parts[at].region not in free)
        stirred = frozenset[str]()
        for done, index in enumerate(tried):
            if self._left() <= 0:
                self.notes.append(
                    f"the {self._name}: alternatives of {len(tried) - done} regions not tried: time is up"
                )
                break
            region = self._cut.regions[parts[index].region]
            self._emit(RoundsProgress(region=region.id, done=done, total=len(tried)))
            alternatives = self._alternatives.candidates_for(parts[index])
            near = self._nearest(parts, index, alternatives, seed + done, region.name)
            arms = [parts, *(swap(parts, index, choice) for choice in near)]
            found = self._fastest(
                arms, len(alternatives), seed + done, region.name, "alternatives", "an alternative makes"
            )
            stirred -= {region.id}
            if found != parts:
                stirred |= {region.id} | self.beside(parts, {region.id})
            parts = found
        return parts, stirred

    def beside(self, parts: Sequence[Part], regions: Collection[str]) -> frozenset[str]:
        """`regions`, where they run, and what runs right before or after a site of theirs."""
        return frozenset[str]().union(*(pair for pair in self._neighbours(parts) if pair & set(regions)))

    def _nearest(
        self, parts: Arm, index: int, alternatives: Sequence[Choice], seed: int, name: str
    ) -> Sequence[Choice]:
        """Of many alternatives of a part on a GPU the few that looked fastest and are right; else all of them."""
        if not self._rules.whole_space or len(alternatives) <= FEW:
            return self._alternatives.correct_of(parts[index], alternatives)
        looks: dict[int, float] = {}
        for first in range(0, len(alternatives), ABREAST):
            if self._alternatives.left() <= 0 and looks:
                break
            some = range(len(alternatives))[first : first + ABREAST]
            arms = [parts, *(swap(parts, index, alternatives[at]) for at in some)]
            look = self._glance(arms, seed, trusted=False)
            if isinstance(look, dict):
                looks |= {some[arm - 1]: gain for arm, gain in look.items()}
            else:
                self.notes.append(f"{name}: {len(some)} alternatives not looked at in the step: {look.kind}")
        self._alternatives.note_order(parts[index], [alternatives[at] for at in order(looks)])
        best = [alternatives[at] for at in order(looks, -LOOKS_SLOWER)[:EVALUATED]]
        return self._alternatives.correct_of(parts[index], best)[:FEW]

    def pair_up(self, parts: Arm, free: Collection[str], seed: int) -> Arm:
        """Try every two regions together, one of them `free`, that follow one another at several sites: a kernel that
        takes less of a multiprocessor may be slower alone, and faster where its neighbour's loads are on their way
        beside it."""
        neighbours = self._neighbours(parts)
        several = [at for at in _worth_trying(self._cut, parts, self._rules) if len(parts[at].sites) > 1]
        pairs = [
            (one, other)
            for one, other in itertools.combinations(several, 2)
            if {parts[one].region, parts[other].region} & set(free)
            and frozenset((parts[one].region, parts[other].region)) in neighbours
        ]
        for done, (one, other) in enumerate(pairs):
            if self._left() <= 0:
                break
            self._emit(RoundsProgress(region=parts[one].region, done=done, total=len(pairs)))
            firsts, seconds = ((parts[at].choice, *self._partners(parts[at], free)) for at in (one, other))
            both = itertools.product(firsts, seconds)  # the first is what the step has now
            arms = [swap(swap(parts, one, mine), other, its) for mine, its in both]
            names = " and ".join(self._cut.regions[parts[at].region].name for at in (one, other))
            parts = self._fastest(
                arms, len(arms) - 1, seed + done, names, "alternatives of both", "alternatives of both make"
            )
        return parts

    def _partners(self, part: Part, free: Collection[str]) -> tuple[Choice, ...]:
        """What to try of a part together with another's: lean ones, and of a `free` one every kind."""
        kinds = self._alternatives.other_templates(part) if part.region in free else ()
        return tuple({candidate_of(one): one for one in (*kinds, *self._alternatives.sparing(part))}.values())

    def changed_regions(self, before: Arm, after: Arm) -> frozenset[str]:
        """The regions whose choice is another. Where it is of another template, what was known of its alternatives is
        forgotten."""
        changed = [(old, new) for old, new in zip(before, after, strict=True) if old.choice != new.choice]
        for old, new in changed:
            if template_of(old.choice) != template_of(new.choice):
                self._alternatives.forget(new)
        return frozenset(new.region for _, new in changed)

    def _neighbours(self, parts: Sequence[Part]) -> frozenset[frozenset[str]]:
        """Every two regions of which one runs right after a site of the other."""
        ids = [step.region.id for step in schedule(self._cut.graph, self._cut.partition, parts)]
        return frozenset(frozenset(pair) for pair in itertools.pairwise(ids))

    def _fastest(self, arms: Sequence[Arm], among: int, seed: int, name: str, who: str, makes: str) -> Arm:
        """The first of `arms`, or the fastest step of those that were chosen `among` so many; `who` is for notes."""
        kept, unseen = list(arms), ""
        if self._rules.whole_space and len(arms) > FEW + 1:
            look = self._glance(arms, seed, trusted=True)
            seen = order(look, -LOOKS_SLOWER)[:FEW] if isinstance(look, dict) else []
            kept, unseen = [arms[0], *(arms[at] for at in seen)], "" if isinstance(look, dict) else look.kind
        if len(kept) > 1:
            claim = self._rules.claim
            timing = self._timed(labelled(kept), self._rules.rounds, 1, claim, seed)
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


def _worth_trying(cut: Cut, parts: Sequence[Part], rules: StepRules) -> list[int]:
    """Indices of parts that run a kernel, largest share first."""
    shares = {row.id: row.share for row in cut.summary.rows}
    found = [
        index
        for index, part in enumerate(parts)
        if isinstance(part.choice, Kernel) and shares[part.region] >= rules.least_share
    ]
    return sorted(found, key=lambda index: -shares[parts[index].region])
