"""The step decides: alternatives of each region are tried inside the whole step, and the whole must beat PyTorch.

In: a plan of choices that were fastest in isolation. Out: the admitted plan, with its measured time beside PyTorch's. A
strategy proposes the moves: alternatives of one region, or of two neighbours, are timed inside the step. Where a choice
has many alternatives, short timings pick the few that are evaluated and timed long. The step of a prompt is a chunk of
tokens.
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
from agentcompile.planning.arms import Arm, fastest, gains, labelled, order, swap, template_of
from agentcompile.planning.plans import Planned
from agentcompile.planning.step_timer import Admitted, AnyStepClock, Kind, StepTimer, as_fallback
from agentcompile.regions.schedule import schedule
from agentcompile.search import Budget, Move, StepStrategy, StepTask, StepTrial
from agentcompile.tuning.partitions import Cut

LOOK_ROUNDS = 2
"""Rounds of a short timing of more than `FEW` alternatives, whose samples are a few steps each."""
ABREAST = 32
"""The most alternatives in one short timing: all of them are in memory at once."""
FEW = 4
"""The most alternatives that are timed long after a short timing."""
EVALUATED = 8
"""How many of the fastest in a short timing are evaluated to find the `FEW` to time long."""
LOOKS_SLOWER = 0.004
"""Log ratio by which an alternative may be slower than the choice in a short timing, whose error is about as large."""


def admit(
    cut: Cut,
    parts: Sequence[Part],
    planned: Planned,
    alternatives: Alternatives,
    clock: AnyStepClock,
    emit: Emit,
    seed: int,
    kind: Kind,
    settled: Mapping[str, Choice],
    strategy: StepStrategy,
    left: Left = any_time,
) -> Admitted:
    """Tune `parts`, the cover of `cut` in `planned`, in the step, and measure the result beside PyTorch.

    The measurement runs in fresh processes. `settled` has choices by region id that steps of other regimes made
    already: they are reused, and change only together with a neighbour that this step is the first to choose. When no
    seconds are `left` no alternative is tried.
    """
    step = StepTuner(cut, dict(planned.layouts), alternatives, clock, emit, kind, left)
    start = tuple(replace(part, choice=settled.get(part.region, part.choice)) for part in parts)
    found = step.tune(start, frozenset(settled), strategy, seed)
    known = zip(found, start, strict=True)
    found = tuple(replace(part, choice=alternatives.shippable(part, before.choice)) for part, before in known)
    return step.admitted(found, planned.exact, seed)


def admit_chunk(
    cut: Cut,
    planned: Planned,
    alternatives: Alternatives,
    clock: AnyStepClock,
    emit: Emit,
    seed: int,
    kind: Kind,
    left: Left = any_time,
) -> Admitted:
    """Measure the prefill plan of `planned` beside PyTorch in fresh processes, for one chunk of the cut's tokens.

    Its kernels stay or fall back; no alternative is tried, because a prompt is read once for all the decode steps that
    answer it. Where not even PyTorch's chunk can be timed, the whole plan falls back.
    """
    step = StepTuner(cut, dict(planned.layouts), alternatives, clock, emit, kind, left)
    try:
        return step.admitted(planned.prefill, planned.exact, seed)
    except AgentCompileError as error:
        parts = tuple(as_fallback(part, error.message) for part in planned.prefill)
        plan = Plan(regime=cut.partition.regime, parts=parts, exact=planned.exact)
        return Admitted(plan=plan, parts=parts, notes=(*step.notes, error.message))


class StepTuner(StepTimer):
    """A tuner of the step of one regime, which makes a strategy's moves one after another."""

    def __init__(
        self,
        cut: Cut,
        layouts: Mapping[str, str],
        alternatives: Alternatives,
        clock: AnyStepClock,
        emit: Emit,
        kind: Kind,
        left: Left = any_time,
    ) -> None:
        super().__init__(cut, layouts, alternatives, clock, emit, kind, left)
        self._alternatives, self._rules = alternatives, backend_of(kind).step

    def tune(self, start: Arm, settled: Collection[str], strategy: StepStrategy, seed: int) -> Arm:
        """Make the moves that `strategy` proposes while time is left, and return the parts of the resulting step.

        `settled` has the ids of regions that steps of other regimes chose first.
        """
        free = frozenset(part.region for part in start if part.region not in settled)
        neighbours = self._neighbours(start)
        task, parts, trials = self._task(start, free, neighbours), start, list[StepTrial]()
        budget = Budget(trials=(task.passes + 2) * len(task.candidates), seed=seed, rounds=self._rules.rounds)
        while len(trials) < budget.trials:
            moves = strategy.propose(task, trials, budget).candidates
            for move in moves:
                if self._left() <= 0:
                    self._note_untried(task, trials)
                    return parts
                total = len(task.candidates)
                self._emit(RoundsProgress(region=move.regions[0], done=min(len(trials), total), total=total))
                found, log_ratio = self._made(parts, move, free, seed + len(trials))
                changed = self._changed(parts, found, together=len(move.regions) > 1)
                touched = changed.union(*(pair for pair in neighbours if pair & changed))
                trials.append(StepTrial(candidate=move, log_ratio=log_ratio, touched=touched))
                parts = found
            if not moves:
                break
        return parts

    def _task(self, start: Arm, free: frozenset[str], neighbours: Collection[frozenset[str]]) -> StepTask:
        """Return the task of this step; of settled regions it has only those right before or after a `free` one."""
        whole = self._rules.whole_space
        wider = free.union(*(pair for pair in neighbours if pair & free)) if whole else free
        worth = _worth_trying(self._cut, start, self._rules)
        singles = [part.region for part in sorted(worth, key=lambda part: part.region not in free)]
        several = [part.region for part in worth if len(part.sites) > 1]
        pairs = [
            pair
            for pair in itertools.combinations(several, 2)
            if whole and free & set(pair) and frozenset(pair) in neighbours
        ]
        return StepTask(
            singles=tuple(Move(regions=(region,)) for region in singles if region in wider),
            pairs=tuple(Move(regions=pair) for pair in pairs),
            passes=self._rules.passes,
        )

    def _made(self, parts: Arm, move: Move, free: Collection[str], seed: int) -> tuple[Arm, float]:
        """Return the parts of the step after a move, and the log ratio by which the move made it faster.

        A move of a region that fell back since the task was made changes nothing.
        """
        at = [index for index, part in enumerate(parts) if part.region in move.regions]
        at.sort(key=lambda index: move.regions.index(parts[index].region))
        if not all(isinstance(parts[index].choice, Kernel) for index in at):
            return parts, 0.0
        return self._single(parts, at[0], seed) if len(at) == 1 else self._pair(parts, at[0], at[1], free, seed)

    def _single(self, parts: Arm, index: int, seed: int) -> tuple[Arm, float]:
        name = self._cut.regions[parts[index].region].name
        alternatives = self._alternatives.candidates_for(parts[index])
        near = self._nearest(parts, index, alternatives, seed, name)
        arms = [parts, *(swap(parts, index, choice) for choice in near)]
        return self._fastest(arms, len(alternatives), seed, name, "alternatives", "an alternative makes")

    def _pair(self, parts: Arm, one: int, other: int, free: Collection[str], seed: int) -> tuple[Arm, float]:
        """Time all pairs of alternatives of two parts that follow one another, and return the fastest step.

        A kernel that takes less of a multiprocessor may be slower alone but faster in the step, where its neighbour's
        loads are in flight beside it.
        """
        firsts, seconds = (
            (
                parts[at].choice,
                *self._alternatives.partners(parts[at], first=parts[at].region in free),
            )
            for at in (one, other)
        )
        both = itertools.product(firsts, seconds)  # the first pair is what the step has now
        arms = [swap(swap(parts, one, mine), other, its) for mine, its in both]
        names = " and ".join(self._cut.regions[parts[at].region].name for at in (one, other))
        return self._fastest(arms, len(arms) - 1, seed, names, "alternatives of both", "alternatives of both make")

    def _nearest(
        self, parts: Arm, index: int, alternatives: Sequence[Choice], seed: int, name: str
    ) -> Sequence[Choice]:
        """Return correct alternatives of a part to time long: of many on a GPU the `FEW` fastest when timed shortly."""
        if not self._rules.whole_space or len(alternatives) <= FEW:
            return self._alternatives.correct_of(parts[index], alternatives)
        looks: dict[int, float] = {}
        for first in range(0, len(alternatives), ABREAST):
            if self._left() <= 0 and looks:
                break
            some = range(len(alternatives))[first : first + ABREAST]
            arms = [parts, *(swap(parts, index, alternatives[at]) for at in some)]
            look = self._glance(arms, seed, trusted=False)
            if isinstance(look, dict):
                looks |= {some[arm - 1]: gain for arm, gain in look.items()}
            else:
                self._notes.append(f"{name}: {len(some)} alternatives not looked at in the step: {look.kind}")
        self._alternatives.note_order(parts[index], [alternatives[at] for at in order(looks)])
        best = [alternatives[at] for at in order(looks, -LOOKS_SLOWER)[:EVALUATED]]
        return self._alternatives.correct_of(parts[index], best)[:FEW]

    def _changed(self, before: Arm, after: Arm, *, together: bool) -> frozenset[str]:
        """Return the ids of the regions whose choice changed.

        Where a region changed its template `together` with a neighbour, the order of its alternatives is forgotten:
        beside the new neighbour others may be best.
        """
        changed = [(old, new) for old, new in zip(before, after, strict=True) if old.choice != new.choice]
        for old, new in changed:
            if together and template_of(old.choice) != template_of(new.choice):
                self._alternatives.forget(new)
        return frozenset(new.region for _, new in changed)

    def _note_untried(self, task: StepTask, trials: Sequence[StepTrial]) -> None:
        tried = {trial.candidate.id for trial in trials}
        if left := sum(move.id not in tried for move in task.singles):
            self._notes.append(f"the {self._name}: alternatives of {left} regions not tried: time is up")

    def _neighbours(self, parts: Sequence[Part]) -> frozenset[frozenset[str]]:
        """Return every pair of region ids of which one runs right after a site of the other."""
        ids = [step.region.id for step in schedule(self._cut.graph, self._cut.partition, parts)]
        return frozenset(frozenset(pair) for pair in itertools.pairwise(ids))

    def _fastest(
        self, arms: Sequence[Arm], among: int, seed: int, name: str, who: str, makes: str
    ) -> tuple[Arm, float]:
        """Return the fastest of `arms`, or the first when none is FASTER than it, and the log ratio of the gain.

        `among` is how many alternatives the arms were chosen from. `name`, `who` and `makes` are for notes.
        """
        kept, unseen = list(arms), ""
        if self._rules.whole_space and len(arms) > FEW + 1:
            look = self._glance(arms, seed, trusted=True)
            seen = order(look, -LOOKS_SLOWER)[:FEW] if isinstance(look, dict) else []
            kept, unseen = [arms[0], *(arms[at] for at in seen)], "" if isinstance(look, dict) else look.kind
        if len(kept) > 1:
            claim = self._rules.claim
            timing = self._timed(labelled(kept), self._rules.rounds, 1, claim, seed)
            if isinstance(timing, Timing):
                # The comparison counts all alternatives of the short timing: the few timed long were chosen from them.
                best = fastest(timing, len(kept), claim, max(among, 1))
                if best is not None:
                    at, gain = best
                    self._notes.append(f"{name}: {makes} the step {gain:.1%} faster")
                    return kept[at], gain
            else:
                unseen = timing.kind
        if unseen:
            self._notes.append(f"{name}: {who} not tried in the step: {unseen}")
        return arms[0], 0.0

    def _glance(self, arms: Sequence[Arm], seed: int, trusted: bool) -> dict[int, float] | Death:
        """Return by index each arm's log ratio over the first in a short timing, or why the timing failed."""
        look = self._timed(labelled(arms), LOOK_ROUNDS, 1, POLICY.search_claim, seed, trusted)
        if not isinstance(look, Timing):
            return look
        return {arm: found.log_ratio for arm, found in gains(look, len(arms), POLICY.search_claim, 1).items()}


def _worth_trying(cut: Cut, parts: Sequence[Part], rules: StepRules) -> list[Part]:
    shares = {row.region.id: row.share for row in cut.summary.rows}
    found = [part for part in parts if isinstance(part.choice, Kernel) and shares[part.region] >= rules.least_share]
    return sorted(found, key=lambda part: -shares[part.region])
