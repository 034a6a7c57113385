"""Simulated annealing (Kirkpatrick, Gelatt and Vecchi, 1983) over one-parameter changes, restarted when it is cold."""

from __future__ import annotations

import math
from dataclasses import dataclass

from agentcompile.search.course import FAILED, Ask, Asking, Course, Ground


@dataclass(frozen=True, slots=True, kw_only=True)
class Annealing(Course):
    """The algorithm. Temperatures are differences of log time: at 0.2 a point 20 % slower is accepted in e⁻¹."""

    hot: float = 0.2
    cold: float = 0.001
    cooling: float = 0.99
    """Factor of the temperature for every point that was asked for."""

    def walk(self, ground: Ground) -> Asking:
        """Walk until every point is tried; the first walks begin at the advised points, the best one first."""
        tried: dict[int, float] = {}
        rng = ground.rng
        if ground.first:
            tried.update(zip(ground.first, (yield ground.asks(ground.first)), strict=True))
        starts = sorted(ground.first, key=lambda at: tried[at])
        while (start := starts.pop() if starts else ground.fresh(tried)) is not None:
            (tried[start],) = yield ground.asks([start])
            current, temperature = start, self.hot
            while temperature > self.cold and (near := ground.points.changes(current)):
                asked = rng.sample(near, min(ground.batch, len(near)))
                answers = yield [Ask(point=at, origin="changed", parent=current) for at in asked]
                tried.update(zip(asked, answers, strict=True))
                for point, score in zip(asked, answers, strict=True):
                    worse = tried[current] - score
                    if worse < 0 or (score > FAILED and rng.random() < math.exp(-worse / temperature)):
                        current = point
                    temperature *= self.cooling
