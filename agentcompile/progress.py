"""What is known so far: a pure fold over the events, read by every front end.

In: a `State` and an event. Out: the next `State`. Invariant: the state after a run is the fold of its events, so
resuming, attaching and watching a past run need no second store. Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal, assert_never

from agentcompile.events import (
    AdviceMissed,
    AdviceTaken,
    Advised,
    AdviserCalled,
    AdviserReplied,
    BoundaryFound,
    ChoiceMade,
    ClaimSettled,
    DriftFound,
    Event,
    FlowStage,
    GraphCaptured,
    LockWritten,
    PlanAdmitted,
    RegionFound,
    RoundsProgress,
    RunFailed,
    RunFinished,
    RunStarted,
    SpaceBounded,
    StageFinished,
    StageStarted,
    TrialFinished,
    TrialStarted,
    Warned,
)
from agentcompile.ir.advice import Advice, Claim, Usage
from agentcompile.ir.target import Target
from agentcompile.ir.trial import Choice, Measured, Measurement, Plan, Trial

RowState = Literal["found", "bounded", "advised", "searching", "chosen"]
RunStatus = Literal["waiting", "running", "failed", "finished"]
WARNINGS_KEPT = 100
NOTHING = Usage()


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Trials of one region by verdict."""

    rejected: int = 0
    build_failed: int = 0
    incorrect: int = 0
    crashed: int = 0
    timed_out: int = 0
    impossible: int = 0
    measured: int = 0
    reused: int = 0
    """Of all of these, how many came from the measurement database."""

    @property
    def total(self) -> int:
        """Every trial."""
        failed = self.rejected + self.build_failed + self.incorrect + self.crashed + self.timed_out + self.impossible
        return failed + self.measured

    def plus(self, trial: Trial) -> Counts:
        """These counts with one trial more."""
        name = trial.verdict.kind.replace("-", "_")
        return replace(self, **{name: getattr(self, name) + 1, "reused": self.reused + trial.reused})


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

    @property
    def _rank(self) -> tuple[bool, float]:
        return self.confirmed, self.measurement.log_ratio

    def beats(self, other: Best | None) -> bool:
        """Whether this one should be shown instead of `other`; of the same candidate, the later number counts."""
        if other is None:
            return True
        same = self.candidate == other.candidate and self.confirmed == other.confirmed
        return same or self._rank > other._rank


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One region as a front end shows it."""

    region: str
    name: str
    kind: str
    regime: str
    sites: int
    flops: int
    bytes: int
    floor_ns: float
    share: float
    state: RowState = "found"
    templates: int = 0
    points: int = 0
    refused: int = 0
    head: tuple[str, ...] = ()
    running: str = ""
    rounds: tuple[int, int] = (0, 0)
    counts: Counts = Counts()
    best: Best | None = None
    choice: Choice | None = None
    advice: Advice | None = None
    """What a model said about it, with its claims as far as they are settled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRow:
    """One step of the flow: still running while `seconds` is None."""

    stage: FlowStage
    detail: str = ""
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A run as far as its events tell."""

    status: RunStatus = "waiting"
    model: str = ""
    version: str = ""
    options: str = ""
    target: Target | None = None
    budget_trials: int = 0
    resumed: int = 0
    stages: tuple[StageRow, ...] = ()
    graphs: tuple[GraphCaptured, ...] = ()
    boundaries: tuple[BoundaryFound, ...] = ()
    rows: tuple[Row, ...] = ()
    trials: tuple[Trial, ...] = ()
    plans: tuple[Plan, ...] = ()
    lock: LockWritten | None = None
    drift: tuple[DriftFound, ...] = ()
    warnings: tuple[str, ...] = ()
    failure: RunFailed | None = None
    finished: RunFinished | None = None
    asked: Usage = NOTHING
    """What asking a model took, with what is booked for calls that never ended."""
    exchanges: tuple[str, ...] = ()
    """Digests of those that advice was taken from, in the order in which it came."""
    unadvised: tuple[AdviceMissed, ...] = ()

    @property
    def stage(self) -> FlowStage | None:
        """The step that runs now."""
        return next((row.stage for row in reversed(self.stages) if row.seconds is None), None)

    @property
    def counts(self) -> Counts:
        """Trials of all regions by verdict."""
        total = Counts()
        for row in self.rows:
            names = Counts.__dataclass_fields__
            total = Counts(**{name: getattr(total, name) + getattr(row.counts, name) for name in names})
        return total

    def row(self, region: str) -> Row | None:
        """The row of a region id."""
        return next((row for row in self.rows if row.region == region), None)


def apply(state: State, event: Event) -> State:
    """The state after `event`; pure, total over the union."""
    match event:
        case RunStarted():
            return _started(state, event)
        case StageStarted():
            return replace(state, stages=(*_without(state.stages, event.stage), StageRow(stage=event.stage)))
        case StageFinished():
            done = StageRow(stage=event.stage, detail=event.detail, seconds=event.seconds)
            return replace(state, stages=(*_without(state.stages, event.stage), done))
        case GraphCaptured():
            return replace(state, graphs=(*state.graphs, event))
        case BoundaryFound():
            return replace(state, boundaries=(*state.boundaries, event))
        case RegionFound():
            return _found(state, event)
        case SpaceBounded():
            return _update(
                state,
                event.region,
                state_if=("found",),
                to="bounded",
                templates=event.templates,
                points=event.points,
                refused=event.rejected,
            )
        case Advised():
            return _update(state, event.region, state_if=("found", "bounded"), to="advised", head=event.head)
        case TrialStarted():
            return _update(state, event.region, to="searching", running=event.label, rounds=(0, 0))
        case RoundsProgress():
            return _update(state, event.region, rounds=(event.done, event.total))
        case TrialFinished():
            return _judged(state, event.trial)
        case ChoiceMade():
            return _update(state, event.region, to="chosen", choice=event.choice, running="", rounds=(0, 0))
        case PlanAdmitted():
            others = tuple(plan for plan in state.plans if plan.regime != event.plan.regime)
            return replace(state, plans=(*others, event.plan))
        case LockWritten():
            return replace(state, lock=event)
        case DriftFound():
            return replace(state, drift=(*state.drift, event))
        case Warned():
            return replace(state, warnings=(*state.warnings, event.text)[-WARNINGS_KEPT:])
        case AdviserCalled():
            return replace(state, asked=state.asked + event.booked)
        case AdviserReplied():
            return replace(state, asked=state.asked + event.used - event.booked)
        case AdviceTaken():
            known = tuple(dict.fromkeys((*state.exchanges, event.exchange)))
            state = replace(state, exchanges=known)
            return _update(state, event.region, advice=event.advice, head=event.head)
        case AdviceMissed():
            return replace(state, unadvised=(*state.unadvised, event)[-WARNINGS_KEPT:])
        case ClaimSettled():
            return _settled(state, event.region, event.claim)
        case RunFailed():
            return replace(state, status="failed", failure=event)
        case RunFinished():
            return replace(state, status="finished", finished=event)
    assert_never(event)


def fold(events: Iterable[Event], state: State | None = None) -> State:
    """The state after all of `events`."""
    state = state or State()
    for event in events:
        state = apply(state, event)
    return state


def _started(state: State, event: RunStarted) -> State:
    """A new run, or the same one again: then trials, rows and choices that were acknowledged stay."""
    again = state.status != "waiting"
    return State(
        status="running",
        model=event.model,
        version=event.version,
        options=event.options,
        target=event.target,
        budget_trials=event.budget_trials,
        resumed=state.resumed + again,
        rows=tuple(replace(row, running="", rounds=(0, 0)) for row in state.rows),
        trials=state.trials,
        warnings=state.warnings,
        asked=state.asked,
        exchanges=state.exchanges,
    )


def _without(stages: tuple[StageRow, ...], stage: FlowStage) -> tuple[StageRow, ...]:
    return tuple(row for row in stages if row.stage != stage)


def _found(state: State, event: RegionFound) -> State:
    row = Row(
        region=event.region,
        name=event.name,
        kind=event.region_kind,
        regime=event.regime,
        sites=event.sites,
        flops=event.flops,
        bytes=event.bytes,
        floor_ns=event.floor_ns,
        share=event.share,
    )
    if (known := state.row(event.region)) is None:
        return replace(state, rows=(*state.rows, row))
    # Found again by a resumed run: what the trials said stays.
    kept = replace(row, state=known.state, counts=known.counts, best=known.best, choice=known.choice, head=known.head)
    kept = replace(kept, advice=known.advice)
    return replace(state, rows=tuple(kept if old.region == event.region else old for old in state.rows))


def _update(
    state: State, region: str, *, to: RowState | None = None, state_if: tuple[RowState, ...] = (), **changes: object
) -> State:
    """Change one row; `to` is its new state, taken only from the states in `state_if` when any are named."""

    def changed(row: Row) -> Row:
        if row.region != region:
            return row
        step: RowState = to if to is not None and (not state_if or row.state in state_if) else row.state
        return replace(row, state=step, **changes)  # type: ignore[arg-type] # the names are Row's own

    return replace(state, rows=tuple(changed(row) for row in state.rows))


def _settled(state: State, region: str, settled: Claim) -> State:
    """The claim of a region's advice that says the same, as it was settled."""
    row = state.row(region)
    if row is None or row.advice is None:
        return state
    claims = tuple(settled if claim.text == settled.text else claim for claim in row.advice.claims)
    return _update(state, region, advice=replace(row.advice, claims=claims))


def _judged(state: State, trial: Trial) -> State:
    known = any(trial.fidelity == old.fidelity and trial.candidate == old.candidate for old in state.trials)
    state = replace(state, trials=(*state.trials, trial))
    row = state.row(trial.candidate.region)
    if row is None:
        return state
    best = row.best
    if isinstance(trial.verdict, Measured):
        best = _better(trial, trial.verdict.measurement, best)
    counts = row.counts if known else row.counts.plus(trial)
    running = "" if row.running == trial.candidate.label else row.running
    return _update(state, row.region, counts=counts, best=best, running=running, rounds=(0, 0))


def _better(trial: Trial, measurement: Measurement, best: Best | None) -> Best | None:
    entry = Best(
        candidate=trial.candidate.id,
        label=trial.candidate.label,
        measurement=measurement,
        confirmed=trial.fidelity == "confirm",
    )
    return entry if entry.beats(best) else best
