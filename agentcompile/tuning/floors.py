"""Roofline floors that hold now: below one, a time is called impossible, and its kernel is not used."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

from agentcompile.evaluation.evaluator import Evaluator
from agentcompile.ir.target import Ceiling
from agentcompile.ir.trial import Measured, Trial
from agentcompile.measure import Timing, impossible, usual_ns
from agentcompile.tuning.tasks import TuneTask

RECHECKS = 3
"""How often the machine's ceilings are measured again before a time is called impossible."""


NEAR = 0.02
"""How much slower than its floor a kernel may be, as a share, for the search of its region to end."""


class Floors:
    """The floors of one run; they fall when the machine turns out to be faster than it was measured to be."""

    def __init__(self, evaluator: Evaluator) -> None:
        """Keep the `evaluator` that measures the machine's ceilings again."""
        self._evaluator = evaluator
        self._ceilings: list[Ceiling] = []

    def floor_ns(self, task: TuneTask, timing: Timing, trusted: Collection[int]) -> float:
        """Return the floor in ns that the times of a task's arms are compared with.

        `trusted` arms run PyTorch's own code: what they take is possible, whatever the ceilings say. While the fastest
        time of the others is impossibly far below the floor, the ceilings are measured again, `RECHECKS` times at
        most: on a shared host the bandwidth that neighbours leave has been seen to double within a minute.
        """
        times = {arm: usual_ns(timing, arm) for arm in timing.live}
        fastest = min((ns for arm, ns in times.items() if arm not in trusted), default=task.floor_ns)
        reached = [ns for arm, ns in times.items() if arm in trusted]
        floor = min([self._known_ns(task), *(_least_ns(task, one) for one in self._ceilings), *reached])
        for _ in range(RECHECKS):
            if not impossible(fastest, floor):
                break
            self._ceilings.append(self._evaluator.ceiling())
            floor = min(floor, _least_ns(task, self._ceilings[-1]))
        return floor

    def reached(self, task: TuneTask, trials: Sequence[Trial]) -> bool:
        """Return whether a search trial of a task is within `NEAR` of its floor: no other can be much faster."""
        times = [
            trial.verdict.measurement.median_ns
            for trial in trials
            if trial.fidelity == "search" and isinstance(trial.verdict, Measured)
        ]
        return min(times, default=math.inf) <= (1 + NEAR) * self._known_ns(task)

    def _known_ns(self, task: TuneTask) -> float:
        """Return the lowest floor in ns under all ceilings that were measured."""
        return min([task.floor_ns, *(task.region.floor_ns(one, task.residency) for one in self._ceilings)])


def _least_ns(task: TuneTask, ceiling: Ceiling) -> float:
    """Return the time in ns below which a site's time is impossible.

    Bytes count for nothing where they may lie in the second of three caches, a core's own: the rate of the last one,
    which all cores share, is measured, and no nearer one. That holds for activations, and for rows that are gathered
    from tables, since every launch gathers some of the same ones.
    """
    region, own = task.region, task.space.target.cache_bytes[1:-1]
    far = replace(region.cost, activation_bytes=0)
    if not region.swept:
        far = replace(far, weight_bytes=0, state_bytes=0)
    near = region.cost.bytes - far.bytes
    if own and 2 * near <= own[-1]:
        region = replace(region, cost=far)
    return region.floor_ns(ceiling, task.residency)
