"""What screens share on regions and trials: what the plans run, each candidate's newest trial, labels. Pure."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar

from agentcompile.ir.template import Candidate
from agentcompile.ir.trial import Choice, Impossible, Kernel, Measured, Measurement, Plan, Trial
from agentcompile.runs.persistent import GrowingSequence
from agentcompile.runs.progress import RegionProgress, State
from agentcompile.runs.rows import trials_in

from .ink import Span, Style
from .scene import Scene, View

T = TypeVar("T")
_FAILED: dict[str, tuple[str, Style]] = {
    "rejected": ("⊘ rejected", "bad"),
    "build-failed": ("✗ not built", "bad"),
    "incorrect": ("✗ incorrect", "bad"),
    "crashed": ("✗ crashed", "bad"),
    "timed-out": ("✗ timed out", "bad"),
    "disturbed": ("▲ disturbed", "warn"),
    "impossible": ("▲ too fast", "warn"),
    "cancelled": ("‖ cancelled", "dim"),
}
SEVERAL = ":"
"""In the keys of rows that stand for several candidates; the id of a candidate has none."""
Placed = Mapping[str, Choice]
"""Region id to what the decode plans run there; empty before there is a plan."""


class Same(Generic[T]):
    """A value as the key of a cache: it equals only itself, and keeps the value alive.

    Comparing thousands of trials by what they hold would cost more than the cache saves.
    """

    __slots__ = ("value",)

    def __init__(self, value: T) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def placed(state: State) -> Placed:
    """Return what the decode plans run in each region; where plans differ, that of the shortest context."""
    found: dict[str, Choice] = {}
    for part in (part for plan in decode_plans(state) for part in plan.parts):
        found.setdefault(part.region, part.choice)
    return found


def decode_plans(state: State) -> list[Plan]:
    """Return the plans of decode steps as a lock has them, that of the smallest batch and shortest context first."""
    plans = sorted(state.final, key=lambda plan: (plan.regime.batch, plan.regime.context))
    return [plan for plan in plans if plan.phase == "decode"]


def ordered(state: State) -> tuple[RegionProgress, ...]:
    """Return the regions: those of the plan first, then by their share of the step."""
    return _ordered(Same(state))


@functools.lru_cache(maxsize=2)
def _ordered(state: Same[State]) -> tuple[RegionProgress, ...]:
    plan = placed(state.value)
    return tuple(sorted(state.value.rows, key=lambda row: (row.region not in plan, -row.share, row.name)))


def region_of(scene: Scene, view: View) -> str:
    """Return the region that the person chose; the first one before that, and empty when there is none."""
    if any(row.region == view.region for row in scene.state.rows):
        return view.region
    return next((row.region for row in ordered(scene.state)), "")


def trials_of(state: State, region: str) -> Sequence[Trial]:
    """Return a region's trials in the order they were made."""
    return trials_in(state.trials, region)


def latest(state: State, region: str) -> Mapping[str, Trial]:
    """Return each candidate's newest trial by candidate id, in the order they were first tried.

    A confirming trial outranks a search trial.
    """
    return _latest(Same(state.trials), region)


@functools.lru_cache(maxsize=4)
def _latest(trials: Same[GrowingSequence[Trial]], region: str) -> Mapping[str, Trial]:
    found: dict[str, Trial] = {}
    for trial in trials_in(trials.value, region):
        old = found.get(trial.candidate.id)
        outranked = old is not None and old.fidelity == "confirm" and trial.fidelity == "search"
        found[trial.candidate.id] = old if old is not None and outranked else trial
    return found


def state_of(trial: Trial, best: str, runs: Choice | None) -> Span:
    """Return a candidate's state as glyph and word; `best` is the id that is marked so, `runs` what its region runs."""
    if trial.verdict.kind != "measured":
        return _FAILED[trial.verdict.kind]
    if isinstance(runs, Kernel) and runs.candidate.id == trial.candidate.id:
        return "● chosen", "good"
    if best == trial.candidate.id:
        return "▲ best", "good"
    return ("✓ confirmed", "") if trial.fidelity == "confirm" else ("✓ measured", "")


def measured(trial: Trial) -> Measurement | None:
    """Return the measurement of a trial; None for a trial without one."""
    return trial.verdict.measurement if isinstance(trial.verdict, (Measured, Impossible)) else None


def times(ratio: float) -> str:
    """Return a ratio in at most six cells: ``1.38×``, ``32.9×``, ``345×``."""
    return f"{ratio:.2f}×" if ratio < 10 else f"{ratio:.1f}×" if ratio < 100 else f"{ratio:.0f}×"


def tone(ratio: float) -> Style:
    """Return the style of a ratio to the baseline: faster, slower or neither."""
    return "good" if ratio >= 1.02 else "bad" if ratio <= 0.98 else ""


def short(label: str) -> str:
    """Return a candidate's label without its region's kind: ``rows(ROWS=4)``."""
    return label.partition("/")[2] or label


def named(candidate: Candidate, cells: int) -> str:
    """Return a candidate's variant with its parameters in `cells` cells, their names cut to what there is room for."""
    label = short(candidate.label)
    most = max((len(name) for name, _ in candidate.params), default=0)
    found = (brief(candidate, letters) for letters in range(most, 0, -1))
    return next((text for text in (label, *found) if len(text) <= cells), brief(candidate))


def brief(candidate: Candidate, letters: int = 1) -> str:
    """Return a candidate's variant with its parameters by so many letters, or by more that tell them apart."""
    names = [name for name, _ in candidate.params]
    values = ", ".join(f"{_start(name, names, letters)}={value}" for name, value in candidate.params)
    variant = candidate.template.partition("/")[2] or candidate.template
    return f"{variant}({values})" if values else variant


def _start(name: str, names: Sequence[str], letters: int) -> str:
    others = [other for other in names if other != name]
    ends = range(letters, len(name))
    return next((name[:end] for end in ends if not any(one.startswith(name[:end]) for one in others)), name)
