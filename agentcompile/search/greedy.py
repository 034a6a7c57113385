"""Hill climbing from the best point, alone or with random points in between (epsilon-greedy)."""

from __future__ import annotations

from dataclasses import dataclass

from agentcompile.search.course import FAILED, Ask, Asking, Course, Ground


@dataclass(frozen=True, slots=True, kw_only=True)
class Greedy(Course):
    """Try the changes of the best point in a random order and move as soon as one is better; else begin elsewhere."""

    beginning: int = 4
    """Points among which the first climb begins at the best."""
    epsilon: float = 0.0
    """The share of batches that are random points instead; a better one among them is where the climb goes on."""

    def walk(self, ground: Ground) -> Asking:
        """Climb until every point is tried."""
        tried: dict[int, float] = {}
        wanted = ground.beginning(self.beginning)
        while wanted:
            tried.update(zip(wanted, (yield ground.asks(wanted)), strict=True))
            top = max(wanted, key=lambda at: tried[at])
            yield from self._climb(ground, tried, top)
            wanted = [] if (fresh := ground.fresh(tried)) is None else [fresh]

    def _climb(self, ground: Ground, tried: dict[int, float], top: int) -> Asking:
        """Climb from `top` until none of its changes is better."""
        rng = ground.rng
        left = _shuffled(ground, top, tried)
        while left:
            if self.epsilon and rng.random() < self.epsilon and (fresh := ground.fresh(tried)) is not None:
                part, asked = [fresh], ground.asks([fresh])
            else:
                part, left = left[: ground.batch], left[ground.batch :]
                asked = [Ask(point=at, origin="changed", parent=top) for at in part]
            tried.update(zip(part, (yield asked), strict=True))
            best = max(part, key=lambda at: tried[at])
            if tried[best] > tried[top] or (tried[top] == FAILED < tried[best]):
                top, left = best, _shuffled(ground, best, tried)


def _shuffled(ground: Ground, point: int, tried: dict[int, float]) -> list[int]:
    """Return the untried changes of a point in a random order."""
    near = [at for at in ground.points.changes(point) if at not in tried]
    ground.rng.shuffle(near)
    return near
