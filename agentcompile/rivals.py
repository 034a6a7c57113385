"""What may be tried in the step in place of a choice, and what it takes for such a rival to enter the plan.

On a CPU the rivals are the runners-up of the isolated comparison. On a GPU launches overlap, so that what a kernel is
worth between its neighbours differs from what it is worth alone by more than the best differ: there the space is
searched on, around each choice, and the step decides.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from agentcompile.choose import Ranking
from agentcompile.ir.template import Candidate, Launch, Source
from agentcompile.ir.trial import Choice, Kernel, Measured, Part, Trial
from agentcompile.survey import Survey

RUNNERS_UP = 2
"""Rivals of a choice on a CPU."""
ELSEWHERE = 2
"""Best candidates of each other template that are tried beside those around a choice, on a GPU."""
WIDE = 24
"""Candidates two parameters away that are tried when none that is nearer is better, on a GPU."""
LEAN = 3
"""Choices of one region that are tried together with those of another, on a GPU."""
NOT_MUCH_SLOWER = 1.3
"""How much longer than the fastest by itself a lean one may take."""
MOST_THREADS, MOST_SHARED = 2048, 227 << 10
"""Of a multiprocessor: threads, and bytes of shared memory (CUDA C++ Programming Guide, compute capability 9.0)."""


class Rivals(Protocol):
    """Who may stand in for a choice."""

    def of(self, part: Part, reach: int = 1) -> tuple[Choice, ...]:
        """What to try in the step in place of the part's choice; empty: nothing. `reach` 2: what is farther away."""

    def lean(self, part: Part) -> tuple[Choice, ...]:
        """What to try together with other regions' choices: kernels that leave room for their neighbours."""

    def settled(self, part: Part, known: Choice) -> Choice:
        """The part's choice once it may ship, or `known`, which may."""

    def sources(self) -> Mapping[str, Source]:
        """The source of every candidate there is, by digest."""


class RunnersUp:
    """Kernels of the same layouts that lost to the choice in isolation."""

    def __init__(self, survey: Survey, rankings: Mapping[str, Ranking]) -> None:
        self._survey, self._rankings = survey, rankings

    def of(self, part: Part, reach: int = 1) -> tuple[Choice, ...]:
        """At most `RUNNERS_UP`."""
        if reach > 1:
            return ()
        for _, kernels in self._rankings[part.region].kernels:
            if part.choice in kernels:
                return tuple(kernel for kernel in kernels if kernel != part.choice)[:RUNNERS_UP]
        return ()

    def lean(self, part: Part) -> tuple[Choice, ...]:
        """None: kernels on a CPU run one after another."""
        return ()

    def settled(self, part: Part, known: Choice) -> Choice:
        """Confirmed already: it remains to pass the whole correctness suite."""
        return part.choice if not self._survey.accept([part]) else known

    def sources(self) -> Mapping[str, Source]:
        """Of the survey."""
        return self._survey.sources()


class Around:
    """Points of the space that differ from the choice in one parameter, and the best of every other template; farther
    away, some of those that differ in two."""

    def __init__(self, survey: Survey, multiprocessors: int) -> None:
        self._survey, self._multiprocessors = survey, multiprocessors

    def of(self, part: Part, reach: int = 1) -> tuple[Choice, ...]:
        """Candidates that are correct and faster than PyTorch by themselves, judged now where they were not."""
        if not isinstance(part.choice, Kernel):
            return ()
        own, chosen = part.region, part.choice.candidate
        near = [*self._at(own, chosen, 1), *self._elsewhere(own, chosen)]
        wanted = near if reach == 1 else self._promising(own, list(self._at(own, chosen, 2)))
        trials = self._survey.judged(own, wanted)
        found = [_provisional(trial) for trial in trials if trial.candidate.id != chosen.id]
        return tuple(kernel for kernel in found if kernel is not None)

    def lean(self, part: Part) -> tuple[Choice, ...]:
        """At most `LEAN`: of those that are nearly the fastest by themselves each takes less shared memory or fewer
        threads of a multiprocessor than all that are faster, so that more of a neighbour fits beside it. The part's own
        is not among them. None when there is no time left.
        """
        if not isinstance(part.choice, Kernel) or self._survey.left() <= 0:
            return ()
        own = self._survey.trials.get(part.region, ())
        failed = {trial.candidate.id for trial in own if not isinstance(trial.verdict, Measured)}
        times, trials = self._times(part.region), {trial.candidate.id: trial for trial in own}
        ranked = sorted(times.keys() - failed, key=lambda id: (times[id], id))
        sources, found = self._survey.sources(), list[Choice]()
        least: tuple[float, float] = (math.inf, math.inf)
        for trial in (trials[id] for id in ranked if times[id] <= NOT_MUCH_SLOWER * times[ranked[0]]):
            shared, threads = self._takes(sources[trial.source])
            if shared < least[0] or threads < least[1]:
                least = min(least[0], shared), min(least[1], threads)
                made = _provisional(trial)
                if made is not None and trial.candidate != part.choice.candidate:
                    found.append(made)
        return tuple(found[:LEAN])

    def settled(self, part: Part, known: Choice) -> Choice:
        """Confirmed beside PyTorch in fresh processes, and through the whole correctness suite."""
        if not isinstance(part.choice, Kernel) or part.choice == known:
            return part.choice
        confirmed = self._survey.confirmed(part.region, part.choice.candidate)
        if confirmed is None or self._survey.accept([Part(region=part.region, choice=confirmed, sites=part.sites)]):
            return known
        return confirmed

    def sources(self) -> Mapping[str, Source]:
        """Of the survey, which grows as rivals are judged."""
        return self._survey.sources()

    def _takes(self, source: Source) -> tuple[int, int]:
        """Shared bytes and threads that a launch takes of a multiprocessor at once, as far as its geometry tells, of
        the launch that takes most; nothing of a library call."""
        found = [_at_once(launch, self._multiprocessors) for launch in source.launches]
        return max((shared for shared, _ in found), default=0), max((threads for _, threads in found), default=0)

    def _at(self, region: str, chosen: Candidate, distance: int) -> Iterator[Candidate]:
        return (candidate for candidate in self._survey.space(region) if candidate.distance(chosen) == distance)

    def _times(self, region: str) -> dict[str, int]:
        """Last known median of a site in ns, by candidate."""
        return {
            trial.candidate.id: trial.verdict.measurement.median_ns
            for trial in self._survey.trials.get(region, ())
            if isinstance(trial.verdict, Measured)
        }

    def _promising(self, region: str, candidates: Sequence[Candidate]) -> list[Candidate]:
        """At most `WIDE`: half of them the fastest by themselves, as far as they are known, half any others."""
        times = self._times(region)
        known = sorted((one for one in candidates if one.id in times), key=lambda one: times[one.id])[: WIDE // 2]
        rest = sorted((one for one in candidates if one.id not in times), key=lambda one: one.id)
        return [*known, *rest[: WIDE - len(known)]]

    def _elsewhere(self, region: str, chosen: Candidate) -> Iterator[Candidate]:
        """What is known to do best, and the default."""
        known = [trial for trial in self._survey.trials.get(region, ()) if isinstance(trial.verdict, Measured)]
        best = sorted(known, key=lambda trial: -trial.verdict.measurement.log_ratio)  # type: ignore[union-attr]
        for template in dict.fromkeys(candidate.template for candidate in self._survey.space(region)):
            if template != chosen.template:
                own = dict.fromkeys(trial.candidate.id for trial in best if trial.candidate.template == template)
                by_id = {trial.candidate.id: trial.candidate for trial in best}
                yield from [by_id[id] for id in own][:ELSEWHERE]
                default = self._survey.default(region, template)
                if default is not None and default.id not in list(own)[:ELSEWHERE]:
                    yield default


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
