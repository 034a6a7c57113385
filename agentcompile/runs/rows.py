"""One region of a run as front ends show it: what it costs, what was tried, what is best and what was chosen.

Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeVar

from agentcompile.events import FlowStage, Offer
from agentcompile.ir.advice import Advice
from agentcompile.ir.trial import Choice, Measured, Measurement, Trial

RowState = Literal["found", "bounded", "advised", "searching", "chosen"]
T = TypeVar("T")


def changed(value: T, **fields: object) -> T:
    """A copy of a dataclass without slots with other `fields`: a tenth of what `dataclasses.replace` takes, which
    counts where a run of a hundred thousand events is folded."""
    copy = object.__new__(type(value))
    copy.__dict__.update(value.__dict__)
    copy.__dict__.update(fields)
    return copy


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRow:
    """One step of the flow: still running while `seconds` is None."""

    stage: FlowStage
    detail: str = ""
    seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Trials of one region by verdict. Without slots, as a row is."""

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
    """Of all of these, how many came from the measurement database."""

    @property
    def total(self) -> int:
        """Every trial."""
        failed = self.rejected + self.build_failed + self.incorrect + self.crashed + self.timed_out
        return failed + self.disturbed + self.cancelled + self.impossible + self.measured

    def plus(self, trial: Trial) -> Counts:
        """These counts with one trial more."""
        name = trial.verdict.kind.replace("-", "_")
        return changed(self, **{name: getattr(self, name) + 1, "reused": self.reused + trial.reused})


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """The fastest correct candidate so far; a confirmed number outranks a search number."""

    candidate: str
    label: str
    measurement: Measurement
    confirmed: bool

    @property
    def ratio(self) -> float:
        """Times faster than the baseline of the same rounds."""
        return self.measurement.speedup


def better(trial: Trial, best: Best | None) -> Best | None:
    """The better of a trial and what was best so far; of the same candidate, the later number counts."""
    if not isinstance(trial.verdict, Measured):
        return best
    found, confirmed = trial.verdict.measurement, trial.fidelity == "confirm"
    if best is not None and (confirmed, found.log_ratio) <= (best.confirmed, best.measurement.log_ratio):
        same = confirmed == best.confirmed and trial.candidate.label == best.label
        if not (same and trial.candidate.id == best.candidate):
            return best
    return Best(candidate=trial.candidate.id, label=trial.candidate.label, measurement=found, confirmed=confirmed)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One region as a front end shows it. Without slots, so that the next one is a quick copy."""

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
    state: RowState = "found"
    templates: int = 0
    points: int = 0
    refused: int = 0
    reasons: tuple[str, ...] = ()
    offers: tuple[Offer, ...] = ()
    head: tuple[str, ...] = ()
    running: str = ""
    under_way: tuple[tuple[str, str], ...] = ()
    """Id and label of candidates that went to the judge and have no verdict yet."""
    rounds: tuple[int, int] = (0, 0)
    counts: Counts = Counts()
    best: Best | None = None
    choice: Choice | None = None
    advice: Advice | None = None
    """What a model said about it, with its claims as far as they are settled."""
