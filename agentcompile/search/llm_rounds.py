"""Rounds of points that a model proposes, then a local search from the best, as Helion's autotuner searches.

The first round follows the advised order. Between rounds the best points are timed again for longer, so that the next
question tells reliable times; it names them and the round, and both follow from earlier rounds alone, so that a search
that is replayed asks the same questions. The local search moves only to a point that is best when timed again too.
Without a model every round follows the order, in which points that no advice names come by chance.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from agentcompile.search.course import FAILED, Ask, Asking, Course, Ground


@dataclass(frozen=True, slots=True, kw_only=True)
class LlmRounds(Course):
    """The algorithm with its settings."""

    width: int = 15
    """Points of a round. The first one has the first point of every template among them, and follows the order."""
    rounds: int = 4
    """Rounds before the local search; after the first none begins when half of the budget is used up."""
    again: int = 3
    """The best points that are timed again after each round, and that the next question names."""

    @property
    def tries(self) -> int:
        """The candidates of a round."""
        return self.width

    def walk(self, ground: Ground) -> Asking:
        """Ask for rounds, then for points near the best, until every point is tried."""
        search = _Search(ground)
        yield from search.round(search.ordered(self.width), self.again)
        most = min(ground.trials / 2, len(ground.points))
        for number in range(2, self.rounds + 1):
            if search.tried >= most:
                break
            proposed = search.proposed(number, self.again)[: self.width]
            others = search.ordered(self.width - len(proposed), besides=proposed)
            yield from search.round([*proposed, *others], self.again)
        while asks := search.near() or search.ordered(ground.batch):
            yield from search.round(asks, 1)


class _Search:
    """What is known of the points so far."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        heads = {ground.points.code(at)[0]: at for at in reversed(ground.first)}
        self._named = dict.fromkeys((*sorted(heads.values(), key=ground.first.index), *ground.advised))
        rest = [at for at in range(len(ground.points)) if at not in self._named]
        ground.rng.shuffle(rest)
        self._order = (*self._named, *rest)
        self._passed = 0
        """Points at the beginning of the order that are all tried."""
        self._scores: dict[int, float] = {}
        self._again: set[int] = set()
        """The points that were timed again."""
        self._ranked: list[tuple[float, int]] = []
        """Those that ran, the fastest first, as (-score, point)."""
        self._near: dict[int, list[int]] = {}
        """By point, those that differ from it in one parameter and were not seen to be tried."""

    @property
    def tried(self) -> int:
        """How many points were tried."""
        return len(self._scores)

    def round(self, asks: Sequence[Ask], count: int) -> Asking:
        """Ask for points, then time the best `count` of all again, and whatever takes their places, once each."""
        while asks:
            for ask, score in zip(asks, (yield asks), strict=True):
                self._take(ask.point, score)
            doubtful = [at for at in self._best(count) if at not in self._again]
            self._again.update(doubtful)
            asks = [Ask(point=at, origin="timed-again", level=1) for at in doubtful]

    def proposed(self, number: int, count: int) -> list[Ask]:
        """Return the untried points that a model's sequences pass, their ends first; none where there is no answer."""
        best = self._best(count)
        ways = (self._ground.consult(best, number) if self._ground.consult is not None else None) or []
        ends = [way[-1] for way in ways if way]
        between = [at for way in ways for at in way[-2::-1]]
        parent = best[0] if best else None
        fresh = (at for at in dict.fromkeys((*ends, *between)) if at not in self._scores)
        return [Ask(point=at, origin="advised", parent=parent) for at in fresh]

    def ordered(self, count: int, besides: Iterable[Ask] = ()) -> list[Ask]:
        """Return the first `count` untried points of the order, without those that are asked for anyway."""
        while self._passed < len(self._order) and self._order[self._passed] in self._scores:
            self._passed += 1
        taken, found = {ask.point for ask in besides}, list[Ask]()
        for place in range(self._passed, len(self._order)):
            if len(found) >= count:
                break
            at = self._order[place]
            if at not in self._scores and at not in taken:
                found.append(Ask(point=at, origin="order" if at in self._named else "random"))
        return found

    def near(self) -> list[Ask]:
        """Return a batch of untried points that differ in one parameter from the best point that has any."""
        for _, parent in self._ranked:
            left = self._near[parent] = [at for at in self._beside(parent) if at not in self._scores]
            if left:
                return [Ask(point=at, origin="changed", parent=parent) for at in left[: self._ground.batch]]
        return []

    def _take(self, point: int, score: float) -> None:
        """Take in the score of a point, in place of an earlier one."""
        before = self._scores.get(point, FAILED)
        if before > FAILED:
            self._ranked.remove((-before, point))
        self._scores[point] = score
        if score > FAILED:
            bisect.insort(self._ranked, (-score, point))

    def _best(self, count: int) -> list[int]:
        return [at for _, at in self._ranked[:count]]

    def _beside(self, point: int) -> list[int]:
        """Return the points that differ from one in a parameter, the nearest values first."""
        if point in self._near:
            return self._near[point]
        points = self._ground.points
        code = points.code(point)
        own = (at for at in points.changes(point) if points.code(at)[0] == code[0])
        return sorted(own, key=lambda at: sum(abs(a - b) for a, b in zip(points.code(at), code, strict=True)))
