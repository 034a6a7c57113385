"""Coordinate descent over a whole step: one region at a time, and pairs where single moves end.

A kernel that is fastest alone is not always fastest between its neighbours, whose cache and launch gaps it shares. So
each region is tried inside the step, and again whenever it or a neighbour changed; then two at a time, because two
kernels that each take less of a multiprocessor may be faster together where either alone is slower.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Sequence

from agentcompile.search.step import Move, StepTask, StepTrial
from agentcompile.search.strategy import Budget, Proposal

_Course = Generator[Move, StepTrial, None]
"""Yields moves, and is sent the trial of each."""


class Descent:
    """Coordinate descent: single regions until nothing changes or `StepTask.passes` are made; pairs; a last pass."""

    def propose(self, task: StepTask, trials: Sequence[StepTrial], budget: Budget) -> Proposal[Move]:
        """Return the one move that follows `trials`; the descent is replayed from its start to find it."""
        course = _course(task)
        move = next(course, None)
        for trial in trials[: budget.trials]:
            if move is None:
                break
            try:
                move = course.send(trial)
            except StopIteration:
                move = None
        if move is None or len(trials) >= budget.trials:
            return Proposal()
        return Proposal(candidates=(move,), rounds=budget.rounds)


def _course(task: StepTask) -> _Course:
    """Yield every move of the descent."""
    wanted: Collection[str] = {region for move in task.singles for region in move.regions}
    for _ in range(task.passes):
        wanted = yield from _visit(task, wanted)
    touched = frozenset[str]()
    for pair in task.pairs:
        touched |= (yield pair).touched
    # A choice that was found beside other neighbours may not be the best beside the present ones.
    yield from _visit(task, touched)


def _visit(task: StepTask, wanted: Collection[str]) -> Generator[Move, StepTrial, frozenset[str]]:
    """Yield the single moves of the `wanted` regions, and return the regions to visit again."""
    again = frozenset[str]()
    for move in task.singles:
        if wanted and set(move.regions) <= set(wanted):
            trial = yield move
            again = again - set(move.regions) | trial.touched
    return again
