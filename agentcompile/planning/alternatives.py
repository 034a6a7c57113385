"""Alternatives that may be tried in the step in place of a choice, and the checks that they pass to enter the plan.

On a CPU the alternatives are the next best of the isolated comparison. On a GPU launches overlap: the time of a kernel
between its neighbours differs from its time in isolation by more than the best kernels differ. So there the step times
every promising point of the space that builds, shortly, and the fastest are evaluated in isolation before they are
timed long.
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
"""The most alternatives of a choice on a CPU."""
AGAIN = 24
"""How many of the fastest alternatives of the last short timing are timed again when a neighbour changed (GPU)."""
MOST_SPARING = 3
"""The most sparing kernels of one region that are tried together with those of a neighbour (GPU)."""
NOT_MUCH_SLOWER = 1.3
"""A sparing kernel may take at most this times as long, in isolation, as the fastest."""
MOST_THREADS, MOST_SHARED = 2048, 227 << 10
"""Threads and bytes of shared memory of a multiprocessor (CUDA C++ Programming Guide, compute capability 9.0)."""


class Alternatives(Protocol):
    """The alternatives of the choices of a step."""

    def limit(self, left: Left) -> None:
        """Set the countdown of the step that is tuned now: when no seconds are `left` nothing more is evaluated."""
        return

    def candidates_for(self, part: Part) -> tuple[Choice, ...]:
        """Return the choices to try in the step in place of the part's own; empty when there are none.

        On a GPU some are not evaluated yet.
        """

    def note_order(self, part: Part, order: Sequence[Choice]) -> None:
        """Note the order of a part's alternatives in a short timing of the step, the fastest first."""
        return

    def correct_of(self, part: Part, choices: Sequence[Choice]) -> tuple[Choice, ...]:
        """Return those of `choices` that are correct; those that were not evaluated yet are evaluated now."""
        return tuple(choices)

    def partners(self, part: Part, *, first: bool) -> tuple[Choice, ...]:
        """Return the choices to try together with alternatives of a neighbour: kernels that leave room for it.

        Where this step is the `first` to choose for the region, kernels of other templates are added, which may suit
        other neighbours. There are none where kernels run one after another.
        """
        return ()

    def forget(self, part: Part) -> None:
        """Forget the noted order of a part's alternatives."""
        return

    def shippable(self, part: Part, known: Choice) -> Choice:
        """Return the part's choice if it may ship (confirmed and accepted); else `known`, which may."""

    def sources(self) -> Mapping[str, Source]:
        """Return the source of every candidate that a choice may have, by digest."""


class RankedAlternatives(Alternatives):
    """Alternatives on a CPU: kernels of the same layouts that lost to the choice in isolation, evaluated already.

    So nothing new is evaluated; they are few, so that all are timed long and their order need not be noted.
    """

    def __init__(self, trials: RunTrials, acceptance: Acceptance, rankings: Mapping[str, Ranking]) -> None:
        self._trials, self._acceptance, self._rankings = trials, acceptance, rankings

    def candidates_for(self, part: Part) -> tuple[Choice, ...]:
        """Return at most `MOST_RANKED`; for a kernel that PyTorch beats in isolation the fallback is the first."""
        ranking = self._rankings[part.region]
        for _, kernels in ranking.kernels:
            if part.choice in kernels:
                return tuple(kernel for kernel in kernels if kernel != part.choice)[:MOST_RANKED]
        for _, kernels in ranking.near:
            if part.choice in kernels:
                rest: tuple[Choice, ...] = tuple(kernel for kernel in kernels if kernel != part.choice)
                return (ranking.fallback, *rest)[:MOST_RANKED]
        return ()

    def shippable(self, part: Part, known: Choice) -> Choice:
        """Return the part's choice, which is confirmed already, if it passes the full suite; else `known`."""
        return part.choice if not self._acceptance.accept([part]) else known

    def sources(self) -> Mapping[str, Source]:
        """Return the sources of all trials, by digest."""
        return self._trials.sources()


class SpaceAlternatives:
    """Alternatives on a GPU: first every promising point that builds, later the fastest of them in the step."""

    def __init__(self, candidates: StepCandidates, acceptance: Acceptance, multiprocessors: int) -> None:
        self._candidates, self._acceptance, self._multiprocessors = candidates, acceptance, multiprocessors
        self._order: dict[str, tuple[Choice, ...]] = {}
        self._sources: dict[str, Source] = {}

    def limit(self, left: Left) -> None:
        """Set the countdown of the step that is tuned from here on."""
        self._candidates.limit(left)

    def candidates_for(self, part: Part) -> tuple[Choice, ...]:
        """Return the fastest `AGAIN` of an earlier short timing; without one, every promising point that builds.

        A short timing does not check results: a kernel may be incorrect, which is found before it is timed long.
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
        """Keep the fastest `AGAIN`, and the choice that the step had when they were timed."""
        self._order[part.region] = (part.choice, *order[:AGAIN])

    def correct_of(self, part: Part, choices: Sequence[Choice]) -> tuple[Choice, ...]:
        """Return those of `choices` that are correct and faster than PyTorch in isolation, in their order."""
        wanted = [one.candidate for one in choices if isinstance(one, Kernel)]
        trials = {trial.candidate.id: trial for trial in self._candidates.evaluated(part.region, wanted)}
        found = [_provisional(trials[one.id]) for one in wanted if one.id in trials]
        return tuple(kernel for kernel in found if kernel is not None)

    def partners(self, part: Part, *, first: bool) -> tuple[Choice, ...]:
        """Return sparing kernels, after the fastest of each template where the step is the `first` to choose.

        Empty when no time is left.
        """
        found = [*(self._other_templates(part) if first else ()), *self._sparing(part)]
        return tuple({one.candidate.id: one for one in found}.values())

    def _sparing(self, part: Part) -> tuple[Kernel, ...]:
        """Return at most `MOST_SPARING` kernels that leave more of a multiprocessor to a neighbour.

        They are nearly the fastest in isolation, and each takes less shared memory or fewer threads of a multiprocessor
        than all that are faster. The part's own kernel is left out.
        """
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
        """Return the fastest kernel in isolation of each template, if it is nearly the fastest of all.

        The part's own kernel is left out.
        """
        best: dict[str, Trial] = {}
        for trial in self._near(part):
            best.setdefault(trial.candidate.template, trial)
        return self._others(part, best.values())

    def forget(self, part: Part) -> None:
        """Forget the order, so that every promising point is timed again."""
        self._order.pop(part.region, None)

    def _near(self, part: Part) -> list[Trial]:
        """Return trials of correct candidates that are nearly the fastest in isolation, the fastest first."""
        if not isinstance(part.choice, Kernel) or self._candidates.left() <= 0:
            return []
        own = self._candidates.trials(part.region)
        failed = {trial.candidate.id for trial in own if not isinstance(trial.verdict, Measured)}
        times, trials = _times(own), {trial.candidate.id: trial for trial in own}
        ranked = sorted(times.keys() - failed, key=lambda id: (times[id], id))
        return [trials[id] for id in ranked if times[id] <= NOT_MUCH_SLOWER * times[ranked[0]]]

    def _others(self, part: Part, trials: Iterable[Trial]) -> tuple[Kernel, ...]:
        made = (_provisional(trial) for trial in trials)
        own = part.choice.candidate if isinstance(part.choice, Kernel) else None
        return tuple(one for one in made if one is not None and one.candidate != own)

    def shippable(self, part: Part, known: Choice) -> Choice:
        """Return the part's choice once it is confirmed in fresh processes and passes the full suite; else `known`."""
        if not isinstance(part.choice, Kernel) or part.choice == known:
            return part.choice
        confirmed = self._candidates.confirmed(part.region, part.choice.candidate)
        if confirmed is None or self._acceptance.accept([Part(region=part.region, choice=confirmed, sites=part.sites)]):
            return known
        return confirmed

    def sources(self) -> Mapping[str, Source]:
        """Return the sources of all trials and of all points that the step timed, by digest."""
        return {**self._sources, **self._candidates.sources()}

    def _takes(self, source: Source) -> tuple[int, int]:
        """Return the most shared bytes and threads that a launch of `source` takes of a multiprocessor at once.

        They follow from the launch geometry; a library call, which has none, takes 0 of both.
        """
        found = [_at_once(launch, self._multiprocessors) for launch in source.launches]
        return max((shared for shared, _ in found), default=0), max((threads for _, threads in found), default=0)


def alternatives_of(
    prepared: PreparedModel, tuning: TuningSession, rankings: Mapping[str, Ranking]
) -> RankedAlternatives | SpaceAlternatives:
    """Return the alternatives by the backend's rules: points of the whole space, or only ranked kernels."""
    if backend_of(prepared.here.device).step.whole_space:
        return SpaceAlternatives(tuning.candidates, tuning.acceptance, prepared.here.target.threads)
    return RankedAlternatives(tuning.trials, tuning.acceptance, rankings)


def _times(trials: Iterable[Trial]) -> dict[str, int]:
    return {
        trial.candidate.id: trial.verdict.measurement.median_ns
        for trial in trials
        if isinstance(trial.verdict, Measured)
    }


def _at_once(launch: Launch, multiprocessors: int) -> tuple[int, int]:
    """Return shared bytes and threads of the blocks that a multiprocessor runs at once: its share, or all that fit."""
    shared, threads = int(launch.shared_bytes), math.prod(int(extent) for extent in launch.block)
    blocks = -(-math.prod(int(extent) for extent in launch.grid) // multiprocessors)
    fit = min(blocks, MOST_THREADS // max(threads, 1), MOST_SHARED // shared if shared else blocks)
    return max(fit, 1) * shared, max(fit, 1) * threads


def _provisional(trial: Trial) -> Kernel | None:
    """Return the kernel of a search trial, to be confirmed when the step picks it; None when it is no faster."""
    if not isinstance(trial.verdict, Measured) or trial.verdict.measurement.log_ratio <= 0:
        return None
    m = trial.verdict.measurement
    return Kernel(candidate=trial.candidate, source=trial.source, speedup=m.speedup, half_width=m.half_width)
