"""What earlier runs on this machine found on like regions: points to try first, and points to try last.

A region is like another when kind, phase and batch are the same and every extent is near (`Shape.distance`). What is
taken over is only the order of candidates: each of them is built, checked and timed here as any other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from agentcompile.events import Emit, Remembered
from agentcompile.ir.advice import Advice
from agentcompile.ir.region import Region
from agentcompile.ir.search_events import RecalledPoint
from agentcompile.ir.shape import Shape
from agentcompile.ir.template import Candidate, ParamValue
from agentcompile.ir.trial import BuildFailed, Crashed, Incorrect, Measured, TimedOut, Trial
from agentcompile.tuning.machine_trials import MachineTrials
from agentcompile.tuning.tasks import TuneTask

WINNERS = 3
"""Points that are tried first because they were fast on like regions, at most."""
_LIKE = 4
"""Like regions that are looked at, the nearest ones."""
_TRAPS = (BuildFailed, Crashed, Incorrect, TimedOut)

Point = tuple[str, tuple[tuple[str, ParamValue], ...]]
"""A template's id, and the value of each parameter: the point of a space whatever the region."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recalled:
    """What is remembered about the regions of a run; nothing by default."""

    memories: Mapping[str, tuple[RecalledPoint, ...]] = field(default_factory=dict[str, tuple[RecalledPoint, ...]])
    """By region id: what was fast on like regions, the best first, then what failed there."""

    def advised(self, adviser: Callable[[str], Advice]) -> Callable[[TuneTask], Advice]:
        """Return what an adviser says about a task now, by its region's id, in the order that is remembered."""
        return lambda task: self.order(task, adviser(task.region.id))

    def order(self, task: TuneTask, advice: Advice) -> Advice:
        """Return `advice` with what was fast on like regions before its order, and what failed there behind it."""
        memories = self.memories.get(task.region.id, ())
        if not memories:
            return advice
        first = [one.candidate for one in memories if one.speedup]
        last = {one.candidate for one in memories if not one.speedup}
        rest = [one.id for one in advice.sorted(tuple(task.space)) if one.id not in first]
        order = (*first, *(id for id in rest if id not in last), *(id for id in rest if id in last))
        return replace(advice, order=order)


def recall(
    tasks: Sequence[TuneTask], history: MachineTrials, policy: str, emit: Emit, *, asked: bool = True
) -> Recalled:
    """Return what is remembered about the regions of `tasks`, and emit it; note their shapes for later runs.

    Only regions that are not among `tasks` count, so that a killed run remembers the same when it goes on: what it
    found itself is reused as it is. Where it is not `asked` for, nothing is read and noted.

    Raises:
        AgentCompileError: the database cannot be used (environment).
    """
    if not asked:
        return Recalled()
    own = {task.region.id for task in tasks}
    noted = history.note_shapes({task.region.id: Shape.of(task.region) for task in tasks})
    shapes = {id: shape for id, shape in noted.items() if id not in own}
    near = {task.region.id: _near(task.region, shapes) for task in tasks}
    trials: dict[str, list[Trial]] = {}
    for trial in history.on_regions({id for found in near.values() for id in found}, policy):
        trials.setdefault(trial.candidate.region, []).append(trial)
    found = {task.region.id: _of(task, near[task.region.id], trials) for task in tasks}
    for id, memories in found.items():
        if memories:
            emit(Remembered(region=id, memories=memories))
    return Recalled(memories=found)


def _near(region: Region, shapes: Mapping[str, Shape]) -> list[str]:
    shape = Shape.of(region)
    found = sorted((distance, id) for id, other in shapes.items() if (distance := shape.distance(other)) < math.inf)
    return [id for _, id in found[:_LIKE]]


def _of(task: TuneTask, near: Sequence[str], trials: Mapping[str, Sequence[Trial]]) -> tuple[RecalledPoint, ...]:
    """Return what is remembered about a task: the points to try first, then those to try last."""
    points = {_point(candidate): candidate for candidate in task.space}
    first: dict[str, RecalledPoint] = {}
    last: dict[str, RecalledPoint] = {}
    for region in near:
        found = [trial for trial in trials.get(region, ()) if _point(trial.candidate) in points]
        for trial in _fastest(found):
            here = points[_point(trial.candidate)]
            if len(first) < WINNERS and here.id not in first and here.id not in last:
                first[here.id] = _memory(trial, here)
        for trial in found:
            here = points[_point(trial.candidate)]
            if isinstance(trial.verdict, _TRAPS) and here.id not in first:
                last.setdefault(here.id, _memory(trial, here))
    return (*first.values(), *last.values())


def _fastest(trials: Iterable[Trial]) -> list[Trial]:
    """Return the trials that were faster than PyTorch, the fastest first; of one candidate the confirmed trial."""
    kept: dict[str, tuple[tuple[bool, float], Trial]] = {}
    for trial in trials:
        if isinstance(trial.verdict, Measured) and trial.verdict.measurement.comparison == "FASTER":
            rank = (trial.fidelity == "confirm", trial.verdict.measurement.log_ratio)
            if trial.candidate.id not in kept or rank > kept[trial.candidate.id][0]:
                kept[trial.candidate.id] = (rank, trial)
    return [trial for (_, _), trial in sorted(kept.values(), key=lambda one: -one[0][1])]


def _memory(trial: Trial, here: Candidate) -> RecalledPoint:
    verdict = trial.verdict
    return RecalledPoint(
        candidate=here.id,
        label=here.label,
        region=trial.candidate.region,
        verdict=verdict.kind,
        speedup=verdict.measurement.speedup if isinstance(verdict, Measured) else 0.0,
        stale=trial.candidate.template_digest != here.template_digest,
    )


def _point(candidate: Candidate) -> Point:
    return candidate.template, candidate.params
