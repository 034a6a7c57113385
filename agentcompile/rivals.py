"""What may be tried in the step in place of a choice, and what it takes for such a rival to enter the plan.

On a CPU the rivals are the runners-up of the isolated comparison. On a GPU launches overlap, so that what a kernel is
worth between its neighbours differs from what it is worth alone by more than the best differ: there the space is
searched on, around each choice, and the step decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from agentcompile.choose import Ranking
from agentcompile.ir.template import Candidate, Source
from agentcompile.ir.trial import Choice, Kernel, Measured, Part, Trial
from agentcompile.survey import Survey

RUNNERS_UP = 2
"""Rivals of a choice on a CPU."""
ELSEWHERE = 2
"""Best candidates of each other template that are tried beside those around a choice, on a GPU."""


class Rivals(Protocol):
    """Who may stand in for a choice."""

    def of(self, part: Part) -> tuple[Choice, ...]:
        """What to try in the step in place of the part's choice; empty: nothing."""

    def settled(self, part: Part, known: Choice) -> Choice:
        """The part's choice once it may ship, or `known`, which may."""

    def sources(self) -> Mapping[str, Source]:
        """The source of every candidate there is, by digest."""


class RunnersUp:
    """Kernels of the same layouts that lost to the choice in isolation."""

    def __init__(self, survey: Survey, rankings: Mapping[str, Ranking]) -> None:
        self._survey, self._rankings = survey, rankings

    def of(self, part: Part) -> tuple[Choice, ...]:
        """At most `RUNNERS_UP`."""
        for _, kernels in self._rankings[part.region].kernels:
            if part.choice in kernels:
                return tuple(kernel for kernel in kernels if kernel != part.choice)[:RUNNERS_UP]
        return ()

    def settled(self, part: Part, known: Choice) -> Choice:
        """Confirmed already: it remains to pass the whole correctness suite."""
        return part.choice if not self._survey.accept([part]) else known

    def sources(self) -> Mapping[str, Source]:
        """Of the survey."""
        return self._survey.sources()


class Around:
    """Points of the space that differ from the choice in one parameter, and the best of every other template."""

    def __init__(self, survey: Survey) -> None:
        self._survey = survey

    def of(self, part: Part) -> tuple[Choice, ...]:
        """Candidates that are correct and faster than PyTorch by themselves, judged now where they were not."""
        if not isinstance(part.choice, Kernel):
            return ()
        own, chosen = part.region, part.choice.candidate
        wanted = [*self._beside(own, chosen), *self._elsewhere(own, chosen)]
        trials = self._survey.judged(own, wanted)
        found = [_provisional(trial) for trial in trials if trial.candidate.id != chosen.id]
        return tuple(kernel for kernel in found if kernel is not None)

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

    def _beside(self, region: str, chosen: Candidate) -> Iterator[Candidate]:
        for candidate in self._survey.space(region):
            if candidate.template == chosen.template:
                pairs = zip(candidate.params, chosen.params, strict=True)
                if sum(mine != theirs for mine, theirs in pairs) == 1:
                    yield candidate

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


def _provisional(trial: Trial) -> Kernel | None:
    """A kernel on the word of its search trial alone, to be confirmed when the step wants it."""
    if not isinstance(trial.verdict, Measured) or trial.verdict.measurement.log_ratio <= 0:
        return None
    m = trial.verdict.measurement
    return Kernel(candidate=trial.candidate, source=trial.source, speedup=m.speedup, half_width=m.half_width)
