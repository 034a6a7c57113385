"""One region of a run as front ends show it: its cost, its trials, its best candidate and its choice.

Standard library only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from agentcompile.events import Consulted, FlowStage, Offer, Proposed
from agentcompile.ir.advice import Advice
from agentcompile.ir.search_events import RecalledPoint
from agentcompile.ir.trial import Choice, Measured, Measurement, Trial
from agentcompile.runs.persistent import GrowingSequence

RowState = Literal["found", "bounded", "advised", "searching", "chosen"]
T = TypeVar("T")


def changed(value: T, **fields: object) -> T:
    """Return a copy of a dataclass without slots with other `fields`.

    It takes a tenth of the time of `dataclasses.replace`, which matters where a run of a hundred thousand events is
    folded.
    """
    copy = object.__new__(type(value))
    copy.__dict__.update(value.__dict__)
    copy.__dict__.update(fields)
    return copy


def trials_in(trials: GrowingSequence[Trial], region: str) -> Sequence[Trial]:
    """Return those of `trials` that are of a region, in the order they were made."""
    return trials.of(_region, region)


def _region(trial: Trial) -> str:
    return trial.candidate.region


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRow:
    """One stage of the flow; it still runs while `seconds` is None."""

    stage: FlowStage
    detail: str = ""
    seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Trials of one region by verdict; without slots, as a row is."""

    rejected: int = 0
    build_failed: int = 0
    incorrect: int = 0
    crashed: int = 0
    timed_out: int = 0
    disturbed: int = 0
    cancelled: int = 0
    impossible: int = 0
    measured: int = 0
    reused: int = 0
    """How many of all these trials came from the measurement database."""

    @property
    def total(self) -> int:
        """The number of all trials."""
        failed = self.rejected + self.build_failed + self.incorrect + self.crashed + self.timed_out
        return failed + self.disturbed + self.cancelled + self.impossible + self.measured

    def plus(self, trial: Trial) -> Counts:
        """Return these counts with one more trial."""
        name = trial.verdict.kind.replace("-", "_")
        return changed(self, **{name: getattr(self, name) + 1, "reused": self.reused + trial.reused})


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """The fastest correct candidate so far; a confirmed measurement outranks one of the search."""

    candidate: str
    label: str
    measurement: Measurement
    confirmed: bool

    @property
    def ratio(self) -> float:
        """The speedup over the baseline of the same rounds."""
        return self.measurement.speedup


def better(trial: Trial, best: Best | None) -> Best | None:
    """Return the better of a trial and the best so far; of the same candidate, the later measurement counts."""
    if not isinstance(trial.verdict, Measured):
        return best
    found, confirmed = trial.verdict.measurement, trial.fidelity == "confirm"
    if best is not None and (confirmed, found.log_ratio) <= (best.confirmed, best.measurement.log_ratio):
        same = confirmed == best.confirmed and trial.candidate.label == best.label
        if not (same and trial.candidate.id == best.candidate):
            return best
    return Best(candidate=trial.candidate.id, label=trial.candidate.label, measurement=found, confirmed=confirmed)


@dataclass(frozen=True, kw_only=True)
class RegionProgress:
    """One region as a front end shows it; without slots, so that the next one is a quick copy."""

    region: str
    name: str
    kind: str
    regime: str
    sites: int
    flops: int
    bytes: int
    floor_ns: float
    share: float
    operators: tuple[str, ...] = ()
    ports: tuple[str, ...] = ()
    dims: tuple[tuple[str, int], ...] = ()
    covers: tuple[int, ...] = ()
    state: RowState = "found"
    templates: int = 0
    points: int = 0
    refused: int = 0
    reasons: tuple[str, ...] = ()
    offers: tuple[Offer, ...] = ()
    head: tuple[str, ...] = ()
    running: str = ""
    under_way: tuple[tuple[str, str], ...] = ()
    """Id and label of the candidates whose evaluation began and has not ended."""
    rounds: tuple[int, int] = (0, 0)
    counts: Counts = Counts()
    proposed: tuple[Proposed, ...] = ()
    """What the strategy proposed, in its order."""
    consulted: tuple[Consulted, ...] = ()
    """What a strategy asked a model in the middle of the search."""
    memories: tuple[RecalledPoint, ...] = ()
    """What earlier runs found on like regions."""
    best: Best | None = None
    choice: Choice | None = None
    advice: Advice | None = None
    """What a model advised for the region, with its claims as far as they are settled."""
