"""Strategies that learn from each answer, written as a course: a generator that asks for scores and goes on with them.

A course is restarted and replayed from the recorded trials at any time, so a strategy that follows one holds no state:
a killed search goes on exactly as it would have. Replaying from the start for every proposal would take time that grows
with the square of the trials, so the last courses are kept as far as they came; a kept course is used only where every
score that it was given is still the recorded one.
"""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict
from collections.abc import Callable, Container, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

from agentcompile.ir.search_events import Origin, ProposalNode
from agentcompile.ir.template import Candidate
from agentcompile.ir.trial import Trial
from agentcompile.search.ladder import climb
from agentcompile.search.points import Points, points_of
from agentcompile.search.strategy import Budget, Proposal, SearchTask, proposal_of, reached
from agentcompile.search.traces import trace_between

FAILED = -math.inf
"""The score of a candidate without a time."""
_KEPT = 8
"""Courses that are kept as far as they came."""
_IDLE = 1000
"""Batches in a row without a new point at which a course is taken to be at its end."""
_TIMED_AGAIN = 4
"""When the course is at its end, the best `_TIMED_AGAIN` x finalists climb the rungs of successive halving."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A point to evaluate, and where it came from."""

    point: int
    origin: Origin
    parent: int | None = None
    """The point that it was made from; None where it was made from none."""
    level: int = 0
    """The rung at which it is timed: `Budget.rounds` are doubled so many times. It is one for all that is asked at
    once; above 0 stand known points that are timed again, which cost nothing of the budget."""


Asking = Generator[Sequence[Ask], Sequence[float], None]
"""Yields points to evaluate; receives their scores in the same order: ln(baseline ÷ time), higher is faster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What a course walks on: the points, those to begin with, chance, and how many points it may ask for."""

    points: Points
    first: tuple[int, ...]
    """The advised first points, those of every template among them; empty without advice on a single template."""
    advised: tuple[int, ...]
    """All points that the advice names, in its order."""
    rng: Random
    batch: int
    """How many points it may ask for at once."""
    trials: int
    """How many points the budget has in all."""
    consult: Callable[[Sequence[int], int], list[list[int]] | None] | None = None
    """From a focus and a round, as `Consult` has them, to the points that each sequence passes; None: no model."""

    def beginning(self, count: int) -> list[int]:
        """Return at least `count` distinct points to begin with where there are as many: `first`, then random ones."""
        found = dict.fromkeys(self.first)
        room = min(count, len(self.points))
        while len(found) < room:
            found.setdefault(self.rng.randrange(len(self.points)))
        return list(found)

    def asks(self, points: Iterable[int]) -> list[Ask]:
        """Return asks for points made from no other: those of `first` come from the order, others from chance."""
        return [Ask(point=at, origin="order" if at in self.first else "random") for at in points]

    def fresh(self, tried: Container[int]) -> int | None:
        """Return a random point that is not tried; None when all are."""
        count = len(self.points)
        for _ in range(32):
            if (at := self.rng.randrange(count)) not in tried:
                return at
        left = [at for at in range(count) if at not in tried]
        return self.rng.choice(left) if left else None


class Course(Protocol):
    """A search algorithm with its settings, which are the fields of a frozen dataclass."""

    @property
    def tries(self) -> int:
        """The candidates of a round, before which a model is asked; 0 for a search without rounds."""
        return 0

    def walk(self, ground: Ground) -> Asking:
        """Ask for points until nothing is left to learn; most algorithms go on until every point is tried."""


class Explorer:
    """A strategy that follows a course to the end of the budget, then times the best again in rungs of halving."""

    def __init__(self, course: Course) -> None:
        self._course = course
        self._kept: OrderedDict[tuple[int, Budget], _Walk] = OrderedDict()

    @property
    def course(self) -> Course:
        """The algorithm with its settings."""
        return self._course

    def propose(self, task: SearchTask, trials: Sequence[Trial], budget: Budget) -> Proposal[Candidate]:
        """Return the points that the course asks for and that have no trial yet, or those that are timed again."""
        if not task.candidates:
            return Proposal()
        walk = self._walk(task, trials, budget)
        history = walk.history
        left = max(budget.trials - len(history), 0)
        asked = walk.advance()
        level = asked[0].level if asked else 0
        if asked := asked if level else asked[:left]:
            chosen = tuple(task.candidates[ask.point] for ask in asked)
            return Proposal(candidates=chosen, rounds=budget.rounds << level, nodes=walk.nodes(asked))
        if rest := walk.rest()[:left]:
            return proposal_of((task.candidates[at] for at in rest), budget.rounds, "order")
        scores = walk.scores
        best = sorted((at for at, score in scores.items() if score > FAILED), key=lambda at: -scores[at])
        rung = [task.candidates[at] for at in best[: _TIMED_AGAIN * budget.finalists]]
        return climb(rung, history, budget)

    def _walk(self, task: SearchTask, trials: Sequence[Trial], budget: Budget) -> _Walk:
        """Return the kept course of this task where it still holds, or a new one; it has read all trials."""
        key = (id(task.candidates), budget)
        walk = self._kept.get(key)
        if walk is None or walk.order != task.advice.order or not walk.read(trials):
            walk = self._kept[key] = _Walk(self._course, task, budget)
            walk.read(trials)
        self._kept.move_to_end(key)
        if len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
        return walk


class _Walk:
    """A course as far as it came, and the trials that were read until then."""

    def __init__(self, course: Course, task: SearchTask, budget: Budget) -> None:
        self._task, self._budget, self._points = task, budget, points_of(task.candidates)
        self._history: dict[str, list[Trial]] = {}
        self._scores: dict[int, float] = {}
        rng = Random(f"course {budget.seed}")
        named = (self._points.place(candidate) for candidate in task.advice.order)
        ground = Ground(
            points=self._points,
            first=self._first(),
            advised=tuple(dict.fromkeys(at for at in named if at is not None)),
            rng=rng,
            batch=max(budget.batch, 1),
            trials=budget.trials,
            consult=None if task.consult is None else self._consult,
        )
        self._asking = course.walk(ground)
        self._wanted = next(self._asking, None)
        self._count = 0
        self._last: Trial | None = None

    @property
    def history(self) -> Mapping[str, list[Trial]]:
        """The search trials by candidate id, as `by_candidate` has them."""
        return self._history

    @property
    def scores(self) -> Mapping[int, float]:
        """The score in the first rung of every point that has a trial."""
        return self._scores

    @property
    def order(self) -> tuple[str, ...]:
        """The advised order that the course began with."""
        return self._task.advice.order

    def read(self, trials: Sequence[Trial]) -> bool:
        """Read the trials that are new; return whether they go on from those read, so that every score still holds."""
        if len(trials) < self._count or (self._count and trials[self._count - 1] is not self._last):
            return False
        for trial in trials[self._count :]:
            if trial.fidelity == "search":
                own = self._history.setdefault(trial.candidate.id, [])
                own.append(trial)
                at = self._points.place(trial.candidate.id)
                if at is not None and (score := reached(own, self._budget.rounds, 0)) is not None:
                    self._scores[at] = score
        self._count, self._last = len(trials), trials[-1] if trials else None
        return True

    def advance(self) -> list[Ask]:
        """Answer the course until it asks for points that have no trial, and return these; none at its end."""
        for _ in range(_IDLE):
            if self._wanted is None:
                break
            missing: dict[int, Ask] = {}
            answers: list[float] = []
            for ask in self._wanted:
                score = self._answer(ask)
                if score is None:
                    missing.setdefault(ask.point, ask)
                else:
                    answers.append(score)
            if missing:
                return list(missing.values())
            try:
                self._wanted = self._asking.send(answers)
            except StopIteration:
                self._wanted = None
        return []

    def nodes(self, asked: Sequence[Ask]) -> tuple[ProposalNode, ...]:
        """Return what an event says about points that the course asked for."""
        candidates = self._task.candidates
        return tuple(
            ProposalNode(candidate=candidates[ask.point].id, origin=ask.origin)
            if ask.parent is None
            else ProposalNode(
                candidate=candidates[ask.point].id,
                origin=ask.origin,
                parent=candidates[ask.parent].id,
                trace=trace_between(self._points, ask.parent, ask.point),
            )
            for ask in asked
        )

    def rest(self) -> list[int]:
        """Return a batch of untried points in the advised order, for a course that is at its end before the budget."""
        order = (self._points.place(candidate.id) for candidate in self._task.advised)
        return list(
            itertools.islice(
                (at for at in order if at is not None and at not in self._scores), max(self._budget.batch, 1)
            )
        )

    def _answer(self, ask: Ask) -> float | None:
        """Return the score that was asked for; None where the point must still be timed."""
        if not ask.level:
            return self._scores.get(ask.point)
        trials = self._history.get(self._task.candidates[ask.point].id, ())
        return reached(trials, self._budget.rounds << ask.level, ask.level)

    def _consult(self, focus: Sequence[int], number: int) -> list[list[int]] | None:
        assert self._task.consult is not None
        found = self._task.consult(tuple(self._task.candidates[at].id for at in focus), number)
        if found is None:
            return None
        places = ([self._points.place(id) for id in way] for way in found)
        return [[at for at in way if at is not None] for way in places]

    def _first(self) -> tuple[int, ...]:
        """Return the first point of every template, and the first of the order where there is advice."""
        order, advised = self._task.advised, bool(self._task.advice.order)
        if not advised and len(self._points.grid.templates) < 2:
            return ()
        heads = {candidate.template: candidate for candidate in reversed(order)}
        batch = order[: self._budget.batch] if advised else ()
        first = [*(candidate for candidate in order if heads[candidate.template] is candidate), *batch]
        found = dict.fromkeys(self._points.place(candidate.id) for candidate in first)
        most = max(len(heads), self._budget.batch)
        return tuple(itertools.islice((at for at in found if at is not None), most))
