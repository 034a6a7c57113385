"""What may be tried in the step in place of a choice, and what it takes for such an alternative to enter the plan.

On a CPU the alternatives are the next best of the isolated comparison. On a GPU launches overlap, so that what a kernel
is worth between its neighbours differs from what it is worth alone by more than the best differ: there the step looks
at every point of the space that builds, and those that look best are evaluated alone before they are timed long.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from agentcompile.ir.template import Launch, Source
from agentcompile.ir.trial import Choice, Kernel, Measured, Part, Trial
from agentcompile.tuning.ranking import Ranking
from agentcompile.tuning.scheduler import TaskScheduler

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
    """Who may stand in for a choice."""

    def candidates_for(self, part: Part) -> tuple[Choice, ...]:
        """What to try in the step in place of the part's choice; empty: nothing. On a GPU some are not judged yet."""

    def note_order(self, part: Part, order: Sequence[Choice]) -> None:
        """Take note of how alternatives of a part looked in the step, the fastest first."""

    def correct_of(self, part: Part, choices: Sequence[Choice]) -> tuple[Choice, ...]:
        """Those of `choices` that are correct, judged now where they were not."""

    def left(self) -> float:
        """Seconds in which alternatives may still be looked at."""

    def sparing(self, part: Part) -> tuple[Choice, ...]:
        """What to try together with other regions' choices: kernels that leave room for their neighbours."""

    def other_templates(self, part: Part) -> tuple[Choice, ...]:
        """What else to try so of a region that the step chooses first: kernels of other kinds, which may want other
        neighbours."""

    def forget(self, part: Part) -> None:
        """How alternatives of a part looked counts for nothing any more."""

    def shippable(self, part: Part, known: Choice) -> Choice:
        """The part's choice once it may ship, or `known`, which may."""

    def sources(self) -> Mapping[str, Source]:
        """The source of every candidate there is, by digest."""


class RankedAlternatives:
    """Kernels of the same layouts that lost to the choice in isolation."""

    def __init__(self, scheduler: TaskScheduler, rankings: Mapping[str, Ranking]) -> None:
        self._scheduler, self._rankings = scheduler, rankings

    def candidates_for(self, part: Part) -> tuple[Choice, ...]:
        """At most `RUNNERS_UP`; of a kernel that PyTorch beats by itself PyTorch is the first."""
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
        """Nothing to note: the few that there are are timed in earnest."""

    def correct_of(self, part: Part, choices: Sequence[Choice]) -> tuple[Choice, ...]:
        """All: they were evaluated before they were ranked."""
        return tuple(choices)

    def left(self) -> float:
        """Any time: nothing new is judged."""
        return math.inf

    def sparing(self, part: Part) -> tuple[Choice, ...]:
        """None: kernels on a CPU run one after another."""
        return ()

    def other_templates(self, part: Part) -> tuple[Choice, ...]:
        """None, as of lean ones."""
        return ()

    def forget(self, part: Part) -> None:
        """Nothing was noted."""

    def shippable(self, part: Part, known: Choice) -> Choice:
        """Confirmed already: it remains to pass the whole correctness suite."""
        return part.choice if not self._scheduler.accept([part]) else known

    def sources(self) -> Mapping[str, Source]:
        """Of the scheduler."""
        return self._scheduler.sources()


class SpaceAlternatives:
    """The points of a region's space that build, then those of them that looked best."""

    def __init__(self, scheduler: TaskScheduler, multiprocessors: int) -> None:
        self._scheduler, self._multiprocessors = scheduler, multiprocessors
        self._order: dict[str, tuple[Choice, ...]] = {}
        self._sources: dict[str, Source] = {}

    def candidates_for(self, part: Part) -> tuple[Choice, ...]:
        """What has been looked at before, the best `AGAIN`; else every promising point that builds. A look is no
        judgement: a kernel may be wrong, and is then found out before it is timed in earnest."""
        if not isinstance(part.choice, Kernel):
            return ()
        if part.region not in self._order:
            built = self._scheduler.built(part.region, self._scheduler.candidates_for_step(part.region))
            self._sources |= {source.digest: source for _, source in built}
            self._order[part.region] = tuple(
                Kernel(candidate=candidate, source=source.digest, speedup=1.0, half_width=0.0)
                for candidate, source in built
            )
        own = part.choice.candidate.id
        return tuple(one for one in self._order[part.region] if isinstance(one, Kernel) and one.candidate.id != own)

    def note_order(self, part: Part, order: Sequence[Choice]) -> None:
        """Keeps the best, and what the step had when they were looked at."""
        self._order[part.region] = (part.choice, *order[:AGAIN])

    def correct_of(self, part: Part, choices: Sequence[Choice]) -> tuple[Choice, ...]:
        """Those that are correct and faster than PyTorch by themselves, in their order."""
        wanted = [one.candidate for one in choices if isinstance(one, Kernel)]
        trials = {trial.candidate.id: trial for trial in self._scheduler.evaluated(part.region, wanted)}
        found = [_provisional(trials[one.id]) for one in wanted if one.id in trials]
        return tuple(kernel for kernel in found if kernel is not None)

    def left(self) -> float:
        """As the scheduler has it."""
        return self._scheduler.left()

    def sparing(self, part: Part) -> tuple[Choice, ...]:
        """At most `LEAN`: of those that are nearly the fastest by themselves each takes less shared memory or fewer
        threads of a multiprocessor than all that are faster, so that more of a neighbour fits beside it. The part's own
        is not among them. None when there is no time left.
        """
        found = list[Trial]()
        least: tuple[float, float] = (math.inf, math.inf)
        sources = self._scheduler.sources()
        for trial in self._near(part):
            shared, threads = self._takes(sources[trial.source])
            if shared < least[0] or threads < least[1]:
                least = min(least[0], shared), min(least[1], threads)
                found.append(trial)
        return self._others(part, found)[:MOST_SPARING]

    def other_templates(self, part: Part) -> tuple[Choice, ...]:
        """Of every template the fastest by itself, where that is nearly the fastest of all. The part's own is not among
        them. None when there is no time left."""
        best: dict[str, Trial] = {}
        for trial in self._near(part):
            best.setdefault(trial.candidate.template, trial)
        return self._others(part, best.values())

    def forget(self, part: Part) -> None:
        """Look at every promising point again."""
        self._order.pop(part.region, None)

    def _near(self, part: Part) -> list[Trial]:
        """Trials of a part's region that are right and nearly the fastest by themselves, the fastest first."""
        if not isinstance(part.choice, Kernel) or self._scheduler.left() <= 0:
            return []
        own = self._scheduler.trials.get(part.region, ())
        failed = {trial.candidate.id for trial in own if not isinstance(trial.verdict, Measured)}
        times, trials = self._times(part.region), {trial.candidate.id: trial for trial in own}
        ranked = sorted(times.keys() - failed, key=lambda id: (times[id], id))
        return [trials[id] for id in ranked if times[id] <= NOT_MUCH_SLOWER * times[ranked[0]]]

    def _others(self, part: Part, trials: Iterable[Trial]) -> tuple[Choice, ...]:
        """As choices, without the part's own."""
        made = (_provisional(trial) for trial in trials)
        own = part.choice.candidate if isinstance(part.choice, Kernel) else None
        return tuple(one for one in made if one is not None and one.candidate != own)

    def shippable(self, part: Part, known: Choice) -> Choice:
        """Confirmed beside PyTorch in fresh processes, and through the whole correctness suite."""
        if not isinstance(part.choice, Kernel) or part.choice == known:
            return part.choice
        confirmed = self._scheduler.confirmed(part.region, part.choice.candidate)
        if confirmed is None or self._scheduler.accept([Part(region=part.region, choice=confirmed, sites=part.sites)]):
            return known
        return confirmed

    def sources(self) -> Mapping[str, Source]:
        """Of the scheduler, and of what the step looked at."""
        return {**self._sources, **self._scheduler.sources()}

    def _takes(self, source: Source) -> tuple[int, int]:
        """Shared bytes and threads that a launch takes of a multiprocessor at once, as far as its geometry tells, of
        the launch that takes most; nothing of a library call."""
        found = [_at_once(launch, self._multiprocessors) for launch in source.launches]
        return max((shared for shared, _ in found), default=0), max((threads for _, threads in found), default=0)

    def _times(self, region: str) -> dict[str, int]:
        """Last known median of a site in ns, by candidate."""
        return {
            trial.candidate.id: trial.verdict.measurement.median_ns
            for trial in self._scheduler.trials.get(region, ())
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
