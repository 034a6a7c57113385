"""What happened, as a union of frozen dataclasses: one stream for the command line, the terminal app and the bench.

In: facts from the flow. Out: lines of JSON and back. Invariant: no text in an event, however it was made, holds a
control, escape or bidirectional character, because every event cleans itself when it is created, and decoding
creates it. Standard library only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from agentcompile.ir.advice import Advice, Claim, Proposal, Usage
from agentcompile.ir.cleaning import TEXT_LIMIT as TEXT_LIMIT
from agentcompile.ir.cleaning import Clean as _Clean
from agentcompile.ir.cleaning import clean as clean
from agentcompile.ir.cleaning import harmless as harmless
from agentcompile.ir.codec import decode as _decode
from agentcompile.ir.codec import decode_bare as _decode_bare
from agentcompile.ir.codec import encode as _encode
from agentcompile.ir.digest import Json
from agentcompile.ir.graph import Phase
from agentcompile.ir.search_progress import SearchProgress as SearchProgress
from agentcompile.ir.target import Target
from agentcompile.ir.template import Candidate, Param
from agentcompile.ir.timing import Timing
from agentcompile.ir.trial import Choice, Layouts, Plan, Ruling, Trial
from agentcompile.ir.whole import ModelCheck

FlowStage = Literal[
    "probe", "capture", "partition", "space", "advise", "search", "choose", "cover", "admit", "lock",
    "load", "rebuild", "verify",
]  # fmt: skip
"""The steps a person sees, in the order of the flow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted(_Clean):
    """A run began, or goes on after it had stopped. `options` is the digest of what was asked."""

    kind: Literal["run-started"] = "run-started"
    model: str
    target: Target
    options: str
    version: str
    budget_trials: int = 0
    """How many trials the search may spend; 0 when it is not bounded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageStarted(_Clean):
    """A step of the flow began."""

    kind: Literal["stage-started"] = "stage-started"
    stage: FlowStage


@dataclass(frozen=True, slots=True, kw_only=True)
class StageFinished(_Clean):
    """A step of the flow ended; `detail` is one line for people."""

    kind: Literal["stage-finished"] = "stage-finished"
    stage: FlowStage
    detail: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphCaptured(_Clean):
    """One phase's graph: how many operators, and the names of those that have no normalised form."""

    kind: Literal["graph-captured"] = "graph-captured"
    phase: Phase
    operators: int
    digest: str
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionFound(_Clean):
    """A region and its cost: `floor_ns` is one site's roofline floor, `share` its sites' part of the step's floor."""

    kind: Literal["region-found"] = "region-found"
    region: str
    name: str
    region_kind: str
    regime: str
    sites: int
    flops: int
    bytes: int
    floor_ns: float
    share: float
    operators: tuple[str, ...] = ()
    """Names of its operators, in order."""
    ports: tuple[str, ...] = ()
    """Its interface, a line a port: ``x: activation, read, bf16 [1, 1, 1024]``."""
    dims: tuple[tuple[str, int], ...] = ()
    """What constraints of templates may name beside parameters, and its value here; a name that is missing is 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundaryFound(_Clean):
    """An operator that no region may cross, and why."""

    kind: Literal["boundary-found"] = "boundary-found"
    op: str
    reason: str
    detail: str
    path: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A template that serves a region: its parameters with their domains, and the constraints on them as written."""

    template: str
    language: str
    about: str
    params: tuple[Param, ...] = ()
    requires: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceBounded(_Clean):
    """A region's space: how many templates serve it, how many points are legal, how many were refused and why."""

    kind: Literal["space-bounded"] = "space-bounded"
    region: str
    templates: int
    points: int
    rejected: int
    reasons: tuple[str, ...] = ()
    offers: tuple[Offer, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Advised(_Clean):
    """What an adviser would try first; unverified until a measurement says so."""

    kind: Literal["advised"] = "advised"
    region: str
    adviser: str
    head: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviserCalled(_Clean):
    """A model is about to be asked. On disk before it is: `booked` counts until `AdviserReplied` says what it took."""

    kind: Literal["adviser-called"] = "adviser-called"
    call: int
    booked: Usage
    way: str
    """`json_schema`, `json_object` or `text`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviserReplied(_Clean):
    """A call ended, with an answer or without."""

    kind: Literal["adviser-replied"] = "adviser-replied"
    call: int
    booked: Usage
    used: Usage
    result: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceTaken(_Clean):
    """What a model said about a region, every proposal with its reason where it was refused. `exchange` is a digest;
    the order of `advice` holds what was ranked alone."""

    kind: Literal["advice-taken"] = "advice-taken"
    region: str
    exchange: str
    advice: Advice
    head: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceMissed(_Clean):
    """No advice about these regions, or parts of an answer that no region's advice holds, and why."""

    kind: Literal["advice-missed"] = "advice-missed"
    regions: tuple[str, ...]
    reason: str
    refused: tuple[Proposal, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimSettled(_Clean):
    """A measurement confirmed or refuted what an adviser had claimed."""

    kind: Literal["claim-settled"] = "claim-settled"
    region: str
    claim: Claim


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialStarted(_Clean):
    """A candidate went to the judge."""

    kind: Literal["trial-started"] = "trial-started"
    region: str
    candidate: str
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialFinished(_Clean):
    """A candidate has its verdict. On disk before anything acts on it."""

    kind: Literal["trial-finished"] = "trial-finished"
    trial: Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundsProgress(_Clean):
    """How far a timing is; never sent from inside a timed round."""

    kind: Literal["rounds-progress"] = "rounds-progress"
    region: str
    done: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceMade(_Clean):
    """A region has its kernel or its fallback. On disk before anything acts on it."""

    kind: Literal["choice-made"] = "choice-made"
    region: str
    choice: Choice


@dataclass(frozen=True, slots=True, kw_only=True)
class StepsTimed(_Clean):
    """Whole steps were timed beside one another. `steps` is a digest of what they run and how they were timed."""

    kind: Literal["steps-timed"] = "steps-timed"
    steps: str
    timing: Timing


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanAdmitted(_Clean):
    """A plan stood against the best baseline step, or was not to be timed. On disk before anything acts on it."""

    kind: Literal["plan-admitted"] = "plan-admitted"
    plan: Plan
    layouts: Layouts = ()
    """Resident layouts that it was admitted with, those of all plans of its run."""
    ruled: bool = False
    """Whether it is another's plan as a person changed it; it was measured, and nothing of it fell back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelChecked(_Clean):
    """The whole model stood beside float32; `plans` is a digest of what it ran. On disk before anything acts on it."""

    kind: Literal["model-checked"] = "model-checked"
    plans: str
    check: ModelCheck


@dataclass(frozen=True, slots=True, kw_only=True)
class LockWritten(_Clean):
    """The lock is on disk."""

    kind: Literal["lock-written"] = "lock-written"
    path: str
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftFound(_Clean):
    """A field of a lock that differs from the machine or the model at hand, and what repairs it."""

    kind: Literal["drift-found"] = "drift-found"
    field: str
    locked: str
    here: str
    grade: Literal["warn", "rebuild", "remeasure", "refuse"]
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Warned(_Clean):
    """Something a person should know that stops nothing."""

    kind: Literal["warned"] = "warned"
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided(_Clean):
    """A person decided on one region, or on several at once. On disk before anything acts on it."""

    kind: Literal["decided"] = "decided"
    rulings: tuple[Ruling, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Undone(_Clean):
    """A person took the last decision that stood back. On disk before anything acts on it."""

    kind: Literal["undone"] = "undone"


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateAsked(_Clean):
    """A person wants a candidate given up (`cancel`) or judged afresh (`rerun`), one of other parameters too (`edit`).
    On disk before anything acts on it."""

    kind: Literal["candidate-asked"] = "candidate-asked"
    what: Literal["cancel", "rerun", "edit"]
    region: str
    candidate: str
    point: Candidate | None = None
    """The candidate itself where it is known; of a cancelled one the id is enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Steered(_Clean):
    """A person paused the session, let it go on, or ended it. On disk before anything acts on it."""

    kind: Literal["steered"] = "steered"
    what: Literal["pause", "resume", "stop"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched(_Clean):
    """A screen follows the run and draws at most `ui_hz` times a second; numbers of record come from runs without."""

    kind: Literal["watched"] = "watched"
    ui_hz: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewOpened(_Clean):
    """Plans stand and wait for a person before the lock is written. `regions` are undecided or stale."""

    kind: Literal["review-opened"] = "review-opened"
    regions: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFailed(_Clean):
    """The run ended without its result; the exit code is the process's."""

    kind: Literal["run-failed"] = "run-failed"
    exit_code: int
    message: str
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFinished(_Clean):
    """The run ended with its result."""

    kind: Literal["run-finished"] = "run-finished"
    detail: str = ""
    seconds: float = 0.0


Event = (
    RunStarted | StageStarted | StageFinished | GraphCaptured | RegionFound | BoundaryFound | SpaceBounded
    | Advised | TrialStarted | TrialFinished | RoundsProgress | ChoiceMade | PlanAdmitted | LockWritten | DriftFound
    | Warned | Decided | Undone | CandidateAsked | Steered | ReviewOpened | RunFailed | RunFinished
    | AdviserCalled | AdviserReplied | AdviceTaken | AdviceMissed | ClaimSettled | Watched | StepsTimed | ModelChecked
    | SearchProgress
)  # fmt: skip
Emit = Callable[[Event], None]
"""How the flow says what happened; passed down, never global."""

PROGRESS = (TrialStarted, RoundsProgress, SearchProgress)
"""Events that may be dropped: they say only how far something is."""
DURABLE = (
    RunStarted, TrialFinished, ChoiceMade, PlanAdmitted, LockWritten, Decided, Undone, CandidateAsked, Steered,
    ReviewOpened, RunFailed, RunFinished, AdviserCalled, AdviserReplied, ModelChecked,
)  # fmt: skip
"""Events that are on disk before anything acts on them."""


def silent(event: Event) -> None:
    """An `Emit` for callers that do not watch."""


def encode(event: Event) -> Json:
    """Plain JSON of an event."""
    return _encode(event)


def decode(data: Json, *, clean: bool = False) -> Event:
    """An event from `encode`'s output, its texts cleaned; raises `ir.codec.CodecError` naming the first fault. `clean`:
    the line that it came in was `harmless`, so that there is nothing to clean."""
    event: Event = _decode_bare(Event, data, "event") if clean else _decode(Event, data, "event")
    return event
