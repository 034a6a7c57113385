"""What may be tried in the step in place of a choice, and what it takes for such an alternative to enter the plan.

On a CPU the alternatives are the next best of the isolated comparison. On a GPU launches overlap, so that what a kernel
is worth between its neighbours differs from what it is worth alone by more than the best differ: there the step looks
at every point of the space that builds, and those that look best are evaluated alone before they are timed long.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from agentcompile.backends import backend_of
from agentcompile.evaluation.time_budget import Left
from agentcompile.ir.template import Launch, Source
from agentcompile.ir.trial import Choice, Kernel, Measured, Part, Trial
from agentcompile.tuning.acceptance import Acceptance
from agentcompile.tuning.prepared import PreparedModel
from agentcompile.tuning.ranking import Ranking
from agentcompile.tuning.run_trials import RunTrials
from agentcompile.tuning.session import TuningSession
from agentcompile.tuning.step_candidates import StepCandidates

MOST_RANKED = 2
"""Alternatives of a choice on a CPU."""
AGAIN = 24
"""Alternatives of a choice, on a GPU, that are looked at again when a neighbour changed: the best of the last look."""
MOST_SPARING = 3
"""Choices of one region that are tried together with those of another, on a GPU."""
NOT_MUCH_SLOWER = 1.3
"""How much longer than the fastest by itself a lean one may take."""
MOST_THREADS, MOST_SHARED = 2048, 227 << 10
"""Of a multiprocessor: threads, and bytes of shared memory (CUDA C++ Programming Guide, compute capability 9.0)."""


class Alternatives(Protocol):
    """What may take the place of a choice."""

    def limit(self, left: Left) -> None:
        """Evaluate nothing any more when no seconds are `left`: the countdown of the step which is tuned now."""

    def candidates_for(self, part: Part) -> tuple[Choice, ...]:
        """Return what to try in the step in place of the part's choice; empty: nothing.

        On a GPU some are not evaluated yet.
        """

    def note_order(self, part: Part, order: Sequence[Choice]) -> None:
        """Note how alternatives of a part looked in the step, the fastest first."""

    def correct_of(self, part: Part, choices: Sequence[Choice]) -> tuple[Choice, ...]:
        """Return those of `choices` that are correct, evaluated now where they were not."""

    def partners(self, part: Part, *, first: bool) -> tuple[Choice, ...]:
        """Return what to try together with alternatives of a neighbour: kernels that leave room for it.

        Where this step is the `first` to choose for the region, also kernels of other templates, which may want other
        neighbours.
        """

    def forget(self, part: Part) -> None:
        """Forget how alternatives of a part looked."""

    def shippable(self, part: Part, known: Choice) -> Choice:
        """Return the part's choice once it may ship, or `known`, which may."""

    def sources(self) -> Mapping[str, Source]:
        """Return the source of every candidate there is, by digest."""


class RankedAlternatives:
    """Kernels of the same layouts that lost to the choice in isolation; none is evaluated anew."""

    def __init__(self, trials: RunTrials, acceptance: Acceptance, rankings: Mapping[str, Ranking]) -> None:
        self._trials, self._acceptance, self._rankings = trials, acceptance, rankings

    def limit(self, left: Left) -> None:
        """Do nothing: nothing new is evaluated."""

    def candidates_for(self, part: Part) -> tuple[Choice, ...]:
        """Return at most `MOST_RANKED`; of a kernel that PyTorch beats by itself PyTorch is the first."""
        ranking = self._rankings[part.region]
        for _, kernels in ranking.kernels:
            if part.choice in kernels:
                return tuple(kernel for kernel in kernels if kernel != part.choice)[:MOST_RANKED]
        for _, kernels in ranking.near:
            if part.choice in kernels:
                rest: tuple[Choice, ...] = tuple(kernel for kernel in kernels if kernel != part.choice)
                return (ranking.fallback, *rest)[:MOST_RANKED]
        return ()

    def note_order(self, part: Part, order: Sequence[Choice]) -> None:
        """Do nothing: the few that there are are all timed long."""

    def correct_of(self, part: Part, choices: Sequence[Choice]) -> tuple[Choice, ...]:
        """Return all: they were evaluated before they were ranked."""
        return tuple(choices)

    def partners(self, part: Part, *, first: bool) -> tuple[Choice, ...]:
        """Return none: kernels on a CPU run one after another."""
        return ()

    def forget(self, part: Part) -> None:
        """Do nothing: nothing was noted."""

    def shippable(self, part: Part, known: Choice) -> Choice:
        """Return the choice, which is confirmed already, if it passes the full suite."""
        return part.choice if not self._acceptance.accept([part]) else known

    def sources(self) -> Mapping[str, Source]:
        """Return those of all trials."""
        return self._trials.sources()


class SpaceAlternatives:
    """The points of a region's space that build, then those of them that looked best."""

    def __init__(self, candidates: StepCandidates, acceptance: Acceptance, multiprocessors: int) -> None:
        self._candidates, self._acceptance, self._multiprocessors = candidates, acceptance, multiprocessors
        self._order: dict[str, tuple[Choice, ...]] = {}
        self._sources: dict[str, Source] = {}

    def limit(self, left: Left) -> None:
        """Take another countdown from here on."""
        self._candidates.limit(left)

    def candidates_for(self, part: Part) -> tuple[Choice, ...]:
        """Return what has been looked at before, the best `AGAIN`; else every promising point that builds.

        A look proves nothing: a kernel may be wrong, which is found out before it is timed long.
        """
        if not isinstance(part.choice, Kernel):
            return ()
        if part.region not in self._order:
            built = self._candidates.built(part.region, self._candidates.promising(part.region))
            self._sources |= {source.digest: source for _, source in built}
            self._order[part.region] = tuple(
                Kernel(candidate=candidate, source=source.digest, speedup=1.0, half_width=0.0)
                for candidate, source in built
            )
        own = part.choice.candidate.id
        return tuple(one for one in self._order[part.region] if isinstance(one, Kernel) and one.candidate.id != own)

    def note_order(self, part: Part, order: Sequence[Choice]) -> None:
        """Keep the best, and what the step had when they were looked at."""
        self._order[part.region] = (part.choice, *order[:AGAIN])

    def correct_of(self, part: Part, choices: Sequence[Choice]) -> tuple[Choice, ...]:
        """Return those that are correct and faster than PyTorch by themselves, in their order."""
        wanted = [one.candidate for one in choices if isinstance(one, Kernel)]
        trials = {trial.candidate.id: trial for trial in self._candidates.evaluated(part.region, wanted)}
        found = [_provisional(trials[one.id]) for one in wanted if one.id in trials]
        return tuple(kernel for kernel in found if kernel is not None)

    def partners(self, part: Part, *, first: bool) -> tuple[Choice, ...]:
        """Return sparing kernels, after the fastest of each other template where the step is the `first` to choose.

        None when there is no time left.
        """
        found = [*(self._other_templates(part) if first else ()), *self._sparing(part)]
        return tuple({one.candidate.id: one for one in found}.values())

    def _sparing(self, part: Part) -> tuple[Kernel, ...]:
        """At most `MOST_SPARING`: of those that are nearly the fastest by themselves each takes less shared memory or
        fewer threads of a multiprocessor than all that are faster, so that more of a neighbour fits beside it. The
        part's own is not among them."""
        found = list[Trial]()
        least: tuple[float, float] = (math.inf, math.inf)
        sources = self._candidates.sources()
        for trial in self._near(part):
            shared, threads = self._takes(sources[trial.source])
            if shared < least[0] or threads < least[1]:
                least = min(least[0], shared), min(least[1], threads)
                found.append(trial)
        return self._others(part, found)[:MOST_SPARING]

    def _other_templates(self, part: Part) -> tuple[Kernel, ...]:
        """Of every template the fastest by itself, where that is nearly the fastest of all. The part's own is not among
        them."""
        best: dict[str, Trial] = {}
        for trial in self._near(part):
            best.setdefault(trial.candidate.template, trial)
        return self._others(part, best.values())

    def forget(self, part: Part) -> None:
        """Look at every promising point again."""
        self._order.pop(part.region, None)

    def _near(self, part: Part) -> list[Trial]:
        """Trials of a part's region that are right and nearly the fastest by themselves, the fastest first."""
        if not isinstance(part.choice, Kernel) or self._candidates.left() <= 0:
            return []
        own = self._candidates.trials(part.region)
        failed = {trial.candidate.id for trial in own if not isinstance(trial.verdict, Measured)}
        times, trials = _times(own), {trial.candidate.id: trial for trial in own}
        ranked = sorted(times.keys() - failed, key=lambda id: (times[id], id))
        return [trials[id] for id in ranked if times[id] <= NOT_MUCH_SLOWER * times[ranked[0]]]

    def _others(self, part: Part, trials: Iterable[Trial]) -> tuple[Kernel, ...]:
        """As choices, without the part's own."""
        made = (_provisional(trial) for trial in trials)
        own = part.choice.candidate if isinstance(part.choice, Kernel) else None
        return tuple(one for one in made if one is not None and one.candidate != own)

    def shippable(self, part: Part, known: Choice) -> Choice:
        """Return the choice once it is confirmed beside PyTorch in fresh processes and passes the full suite."""
        if not isinstance(part.choice, Kernel) or part.choice == known:
            return part.choice
        confirmed = self._candidates.confirmed(part.region, part.choice.candidate)
        if confirmed is None or self._acceptance.accept([Part(region=part.region, choice=confirmed, sites=part.sites)]):
            return known
        return confirmed

    def sources(self) -> Mapping[str, Source]:
        """Return those of all trials, and of what the step looked at."""
        return {**self._sources, **self._candidates.sources()}

    def _takes(self, source: Source) -> tuple[int, int]:
        """Shared bytes and threads that a launch takes of a multiprocessor at once, as far as its geometry tells, of
        the launch that takes most; nothing of a library call."""
        found = [_at_once(launch, self._multiprocessors) for launch in source.launches]
        return max((shared for shared, _ in found), default=0), max((threads for _, threads in found), default=0)


def alternatives_of(
    prepared: PreparedModel, tuning: TuningSession, rankings: Mapping[str, Ranking]
) -> RankedAlternatives | SpaceAlternatives:
    """Return the alternatives that the backend's rules say: of the whole space, or those that were ranked."""
    if backend_of(prepared.here.device).step.whole_space:
        return SpaceAlternatives(tuning.candidates, tuning.acceptance, prepared.here.target.threads)
    return RankedAlternatives(tuning.trials, tuning.acceptance, rankings)


def _times(trials: Iterable[Trial]) -> dict[str, int]:
    """Last known median of a site in ns, by candidate id."""
    return {
        trial.candidate.id: trial.verdict.measurement.median_ns
        for trial in trials
        if isinstance(trial.verdict, Measured)
    }


def _at_once(launch: Launch, multiprocessors: int) -> tuple[int, int]:
    """What the blocks take that one multiprocessor has at once: as many as there are for it, or as fit."""
    shared, threads = int(launch.shared_bytes), math.prod(int(extent) for extent in launch.block)
    blocks = -(-math.prod(int(extent) for extent in launch.grid) // multiprocessors)
    fit = min(blocks, MOST_THREADS // max(threads, 1), MOST_SHARED // shared if shared else blocks)
    return max(fit, 1) * shared, max(fit, 1) * threads


def _provisional(trial: Trial) -> Kernel | None:
    """A kernel on the word of its search trial alone, to be confirmed when the step wants it."""
    if not isinstance(trial.verdict, Measured) or trial.verdict.measurement.log_ratio <= 0:
        return None
    m = trial.verdict.measurement
    return Kernel(candidate=trial.candidate, source=trial.source, speedup=m.speedup, half_width=m.half_width)
