"""The state of a run: a pure fold over its events, read by every front end.

In: a `State` and an event. Out: the next `State`. Invariant: the state after a run is the fold of its events, so
resuming, attaching and watching a past run need no second store. Standard library only.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, assert_never

from agentcompile.events import (
    AdviceMissed,
    AdviceTaken,
    Advised,
    AdviserCalled,
    AdviserReplied,
    BoundaryFound,
    CandidateAsked,
    ChoiceMade,
    ClaimSettled,
    Consulted,
    Decided,
    DriftFound,
    Event,
    FlowStage,
    GraphCaptured,
    LockWritten,
    ModelChecked,
    PlanAdmitted,
    Proposed,
    RegionFound,
    Remembered,
    ReviewOpened,
    RoundsProgress,
    RunFailed,
    RunFinished,
    RunStarted,
    SpaceBounded,
    StageFinished,
    StageStarted,
    Steered,
    StepsTimed,
    TrialFinished,
    TrialStarted,
    Undone,
    Warned,
    Watched,
)
from agentcompile.ir.advice import Claim, Usage
from agentcompile.ir.search_events import SearchProgress
from agentcompile.ir.target import Target
from agentcompile.ir.template import Candidate
from agentcompile.ir.timing import Timing
from agentcompile.ir.trial import Decision, Layouts, Plan, Trial
from agentcompile.ir.whole import ModelCheck
from agentcompile.runs.persistent import GrowingSequence, GrowingSet
from agentcompile.runs.rows import Best, Counts, RegionProgress, RowState, StageRow, better, changed

RunStatus = Literal["waiting", "running", "review", "failed", "finished"]
__all__ = ["Best", "Counts", "RegionProgress", "RowState", "RunStatus", "StageRow", "State", "apply", "fold"]

WARNINGS_KEPT = 100
TIMED = ("search", "choose", "cover", "admit")
"""Stages that the time budget of a search covers."""
NOTHING = Usage()


@dataclass(frozen=True, kw_only=True)
class State:
    """A run as far as its events tell; without slots, so that the next state is a quick copy."""

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
    rows: tuple[RegionProgress, ...] = ()
    trials: GrowingSequence[Trial] = field(default_factory=GrowingSequence[Trial])
    tried: GrowingSet[tuple[Candidate, str]] = field(default_factory=GrowingSet[tuple[Candidate, str]])
    """Candidates with fidelities that `Row.counts` counts; one that is evaluated again counts once."""
    plans: tuple[Plan, ...] = ()
    """The plans that the step admitted, one per regime."""
    ruled: tuple[Plan, ...] = ()
    """Plans that were changed after admission, by a person's decisions or the model check, as they were measured."""
    layouts: Layouts = ()
    settled: bool = False
    """Whether `plans` are complete: admitted in the step, and not searched again since."""
    decided: tuple[Decided, ...] = ()
    """Decisions in force, oldest first; those undone are removed."""
    asked: tuple[CandidateAsked, ...] = ()
    """Requests of a person on candidates that have no verdict yet."""
    paused: bool = False
    ui_hz: float = 0.0
    """The highest drawing rate of a screen that followed the run, per second; 0 while none did."""
    review: ReviewOpened | None = None
    lock: LockWritten | None = None
    drift: tuple[DriftFound, ...] = ()
    warnings: tuple[str, ...] = ()
    failure: RunFailed | None = None
    finished: RunFinished | None = None
    spent: Usage = NOTHING
    """Usage of the model that advises, with what is booked for calls that never ended."""
    exchanges: tuple[str, ...] = ()
    """Digests of the exchanges that advice was taken from, in the order in which it came."""
    unadvised: tuple[AdviceMissed, ...] = ()
    searched_s: float = 0.0
    """Seconds that the finished searches took."""
    steps: Mapping[str, Timing] = field(default_factory=dict[str, Timing])
    """Timings of whole steps, by the digest of what was timed; cleared when a candidate is to be evaluated again."""
    pace: SearchProgress | None = None
    """The last word on how far a search is; a process that has nothing left to search says none."""
    checks: Mapping[str, ModelCheck] = field(default_factory=dict[str, ModelCheck])
    """Comparisons of the whole model with float32, by the digest of what ran."""

    @property
    def stage(self) -> FlowStage | None:
        """The stage that runs now."""
        return next((row.stage for row in reversed(self.stages) if row.seconds is None), None)

    @property
    def working(self) -> str:
        """How far the stage that runs now says it is."""
        return next((row.detail for row in reversed(self.stages) if row.seconds is None), "")

    @property
    def final(self) -> tuple[Plan, ...]:
        """The plans as a lock has them: admitted ones, replaced by `ruled` ones where there are any."""
        changed_ones = {plan.regime: plan for plan in self.ruled}
        return tuple(changed_ones.get(plan.regime, plan) for plan in self.plans)

    @property
    def under_way(self) -> frozenset[str]:
        """Ids of candidates whose evaluation began and has not ended."""
        return frozenset(id for row in self.rows for id, _ in row.under_way)

    @property
    def decisions(self) -> dict[str, Decision]:
        """The last decision on each region that a person decided on."""
        return {decision.region: decision for decided in self.decided for decision in decided.rulings}

    @property
    def counts(self) -> Counts:
        """Trials of all regions by verdict."""
        total = Counts()
        for row in self.rows:
            names = Counts.__dataclass_fields__
            total = Counts(**{name: getattr(total, name) + getattr(row.counts, name) for name in names})
        return total

    def row(self, region: str) -> RegionProgress | None:
        """Return the row of a region id; None when there is none."""
        at = self.at(region)
        return self.rows[at] if at >= 0 else None

    def at(self, region: str) -> int:
        """Return the index in `rows` of a region id; -1 when there is none."""
        return next((at for at, row in enumerate(self.rows) if row.region == region), -1)


def apply(state: State, event: Event) -> State:
    """Return the state after `event`; pure, and defined for every kind of event."""
    match event:
        case RunStarted():
            return _started(state, event)
        case StageStarted():
            stages = (*_without(state.stages, event.stage), StageRow(stage=event.stage, detail=event.detail))
            if event.stage == "search":  # the search makes new plans
                return changed(state, stages=stages, plans=(), ruled=(), layouts=(), settled=False)
            return changed(state, stages=stages)
        case StageFinished():
            done = StageRow(stage=event.stage, detail=event.detail, seconds=event.seconds)
            stages, settled = (*_without(state.stages, event.stage), done), state.settled or event.stage == "admit"
            searched_s = state.searched_s + (event.seconds if event.stage in TIMED else 0.0)
            return changed(state, stages=stages, settled=settled, searched_s=searched_s)
        case GraphCaptured():
            return changed(state, graphs=(*state.graphs, event))
        case BoundaryFound():
            return changed(state, boundaries=(*state.boundaries, event))
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
                reasons=event.reasons,
                offers=event.offers,
            )
        case Advised():
            return _update(state, event.region, state_if=("found", "bounded"), to="advised", head=event.head)
        case TrialStarted():
            row = state.row(event.region)
            one = (event.candidate, event.label)
            under_way = (*(other for other in (row.under_way if row else ()) if other != one), one)
            return _update(state, event.region, to="searching", running=event.label, under_way=under_way, rounds=(0, 0))
        case Proposed() | Remembered() | Consulted():
            return _searching(state, event)
        case RoundsProgress():
            return _update(state, event.region, rounds=(event.done, event.total))
        case TrialFinished():
            return _evaluated(state, event.trial)
        case ChoiceMade():
            return _update(
                state, event.region, to="chosen", choice=event.choice, running="", under_way=(), rounds=(0, 0)
            )
        case PlanAdmitted():
            if event.ruled:
                return changed(state, ruled=_placed(state.ruled, event.plan))
            return changed(state, plans=_placed(state.plans, event.plan), layouts=event.layouts)
        case SearchProgress() | StepsTimed() | ModelChecked():
            return _found_out(state, event)
        case LockWritten():
            return changed(state, lock=event)
        case DriftFound():
            return changed(state, drift=(*state.drift, event))
        case Warned():
            return changed(state, warnings=(*state.warnings, event.text)[-WARNINGS_KEPT:])
        case AdviserCalled() | AdviserReplied() | AdviceTaken() | AdviceMissed() | ClaimSettled():
            return _counselled(state, event)
        case Decided():
            return changed(state, decided=(*state.decided, event), ruled=())
        case Undone():
            return changed(state, decided=state.decided[:-1], ruled=())
        case CandidateAsked():
            return _asked(state, event)
        case Steered():
            return changed(state, paused=event.what == "pause")
        case Watched():
            return changed(state, ui_hz=max(state.ui_hz, event.ui_hz))
        case ReviewOpened():
            return changed(state, status="review", review=event)
        case RunFailed():
            return changed(state, status="failed", failure=event, paused=False)
        case RunFinished():
            return changed(state, status="finished", finished=event, paused=False)
    assert_never(event)


def _searching(state: State, event: Proposed | Remembered | Consulted) -> State:
    row = state.row(event.region)
    if isinstance(event, Consulted):
        known = row.consulted if row else ()  # a resumed run gets its recorded answers again
        return state if event in known else _update(state, event.region, consulted=(*known, event))
    if isinstance(event, Remembered):
        return _update(state, event.region, memories=event.memories)
    return _update(state, event.region, proposed=(*(row.proposed if row else ()), event))


def _found_out(state: State, event: SearchProgress | StepsTimed | ModelChecked) -> State:
    match event:
        case SearchProgress():
            return changed(state, pace=event)
        case StepsTimed():
            return changed(state, steps={**state.steps, event.steps: event.timing})
        case ModelChecked():
            return changed(state, checks={**state.checks, event.plans: event.check})


def fold(events: Iterable[Event], state: State | None = None) -> State:
    """Return the state after all of `events`."""
    state = state or State()
    for event in events:
        state = apply(state, event)
    return state


_OF_A_PROCESS = (
    "stages", "graphs", "boundaries", "paused", "lock", "drift", "failure", "finished", "unadvised",
)  # fmt: skip
"""Fields that tell of one process of a run; the next one begins without them."""


def _started(state: State, event: RunStarted) -> State:
    """Start a new run, or continue one: then trials, rows, choices, decisions and complete plans stay."""
    fresh = State()
    gone = (*_OF_A_PROCESS, *(() if state.settled else ("plans", "ruled", "layouts")))
    return changed(
        state,
        status="running",
        **{name: getattr(event, name) for name in ("model", "version", "options", "target", "budget_trials")},
        **{name: getattr(fresh, name) for name in gone},
        resumed=state.resumed + (state.status != "waiting"),
        rows=tuple(changed(row, running="", under_way=(), rounds=(0, 0)) for row in state.rows),
        asked=tuple(asked for asked in state.asked if asked.what != "cancel"),
    )


def _asked(state: State, event: CandidateAsked) -> State:
    """Remember a person's request; trials of a candidate that is to be evaluated again no longer count."""
    asked = (*(old for old in state.asked if old.candidate != event.candidate), event)
    row = state.row(event.region)
    if event.what != "rerun" or row is None:
        return changed(state, asked=asked, steps={} if event.what == "rerun" else state.steps)
    kept = [trial for trial in state.trials if trial.candidate != event.point]
    best: Best | None = None
    for trial in kept:
        if trial.candidate.region == event.region:
            best = better(trial, best)
    rows = tuple(changed(old, best=best) if old.region == event.region else old for old in state.rows)
    return changed(state, asked=asked, trials=GrowingSequence(kept), rows=rows, steps={})


def _placed(plans: tuple[Plan, ...], plan: Plan) -> tuple[Plan, ...]:
    """Put `plan` in the place of its regime's plan, because a resumed run takes plans by the order of their regimes."""
    kept = tuple(plan if other.regime == plan.regime else other for other in plans)
    return kept if plan in kept else (*kept, plan)


def _without(stages: tuple[StageRow, ...], stage: FlowStage) -> tuple[StageRow, ...]:
    return tuple(row for row in stages if row.stage != stage)


_SHOWN = [name for name in RegionFound.__dataclass_fields__ if name not in ("kind", "region_kind")]
_KEPT = ("state", "counts", "proposed", "consulted", "best", "choice", "head", "advice")
"""Fields of a row that stay when a resumed run finds its region again."""


def _found(state: State, event: RegionFound) -> State:
    row = RegionProgress(kind=event.region_kind, **{name: getattr(event, name) for name in _SHOWN})
    if (known := state.row(event.region)) is None:
        return changed(state, rows=(*state.rows, row))
    kept = changed(row, **{name: getattr(known, name) for name in _KEPT})
    return changed(state, rows=tuple(kept if old.region == event.region else old for old in state.rows))


def _update(
    state: State, region: str, *, to: RowState | None = None, state_if: tuple[RowState, ...] = (), **changes: object
) -> State:
    """Change one row; `to` is its new state, taken only from the states in `state_if` when any are named."""
    at = state.at(region)
    if at < 0:
        return state
    row = state.rows[at]
    step: RowState = to if to is not None and (not state_if or row.state in state_if) else row.state
    new = changed(row, state=step, **changes)
    return changed(state, rows=(*state.rows[:at], new, *state.rows[at + 1 :]))


def _counselled(
    state: State, event: AdviserCalled | AdviserReplied | AdviceTaken | AdviceMissed | ClaimSettled
) -> State:
    match event:
        case AdviserCalled():
            return changed(state, spent=state.spent + event.booked)
        case AdviserReplied():
            return changed(state, spent=state.spent + event.used - event.booked)
        case AdviceTaken():
            known = tuple(dict.fromkeys((*state.exchanges, event.exchange)))
            return _update(changed(state, exchanges=known), event.region, advice=event.advice, head=event.head)
        case AdviceMissed():
            return changed(state, unadvised=(*state.unadvised, event)[-WARNINGS_KEPT:])
        case ClaimSettled():
            return _settled(state, event.region, event.claim)


def _settled(state: State, region: str, settled: Claim) -> State:
    """Replace the claim of a region's advice with the same text by the settled one."""
    row = state.row(region)
    if row is None or row.advice is None:
        return state
    claims = tuple(settled if claim.text == settled.text else claim for claim in row.advice.claims)
    return _update(state, region, advice=dataclasses.replace(row.advice, claims=claims))


def _evaluated(state: State, trial: Trial) -> State:
    asked = state.asked
    if asked:
        asked = tuple(one for one in asked if one.candidate != trial.candidate.id)
    tried = state.tried.plus((trial.candidate, trial.fidelity))
    trials = state.trials.plus(trial)
    at = state.at(trial.candidate.region)
    if at < 0:
        return changed(state, trials=trials, tried=tried, asked=asked)
    row = state.rows[at]
    under_way = row.under_way
    if under_way:
        label = trial.candidate.label
        under_way = tuple(one for one in under_way if one[1] != label)
    new = changed(
        row,
        counts=row.counts if tried is state.tried else row.counts.plus(trial),
        best=better(trial, row.best),
        running=under_way[-1][1] if under_way else "",
        under_way=under_way,
        rounds=(0, 0),
    )
    rows = (*state.rows[:at], new, *state.rows[at + 1 :])
    return changed(state, trials=trials, tried=tried, asked=asked, rows=rows)
