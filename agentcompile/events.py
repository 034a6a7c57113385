"""Events: what happened in a run, as a union of frozen dataclasses that the CLI, the terminal app and the bench read.

`encode` and `decode` turn events into JSON and back. An event cleans its texts of control, escape and bidi characters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from agentcompile.ir import codec as _codec
from agentcompile.ir.advice import Advice, AnswerItem, Claim, Usage
from agentcompile.ir.cleaning import Clean as _Clean
from agentcompile.ir.cleaning import clean as clean
from agentcompile.ir.cleaning import harmless as harmless
from agentcompile.ir.digest import Json
from agentcompile.ir.graph import Phase
from agentcompile.ir.search_events import Consulted as Consulted
from agentcompile.ir.search_events import Proposed as Proposed
from agentcompile.ir.search_events import Remembered as Remembered
from agentcompile.ir.search_events import SearchProgress as SearchProgress
from agentcompile.ir.target import Target
from agentcompile.ir.template import Candidate, Param
from agentcompile.ir.timing import Timing
from agentcompile.ir.trial import Choice, Decision, Layouts, Plan, Trial
from agentcompile.ir.whole import ModelCheck

FlowStage = Literal[
    "probe", "capture", "partition", "space", "advise", "search", "choose", "cover", "admit", "lock",
    "load", "rebuild", "verify", "convert",
]  # fmt: skip
"""The stages that a person sees, in the order of the flow; a GGUF file is converted before any other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted(_Clean):
    """A run began or was resumed; `options` is the digest of the options that shape the result."""

    kind: Literal["run-started"] = "run-started"
    model: str
    target: Target
    options: str
    version: str
    budget_trials: int = 0
    """About how many candidates the search evaluates; 0 when it is not bounded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageStarted(_Clean):
    """A stage of the flow began; once more with `detail`, one line for people, as it goes on."""

    kind: Literal["stage-started"] = "stage-started"
    stage: FlowStage
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageFinished(_Clean):
    """A stage of the flow ended; `detail` is one line for people."""

    kind: Literal["stage-finished"] = "stage-finished"
    stage: FlowStage
    detail: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphCaptured(_Clean):
    """The graph of one phase was captured: its number of operators, and the names of those with no normalised form."""

    kind: Literal["graph-captured"] = "graph-captured"
    phase: Phase
    operators: int
    digest: str
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionFound(_Clean):
    """A region: `floor_ns` is a site's roofline, `share` all sites' of the step, `covers` its operators' places."""

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
    """Names of the region's operators, in order."""
    ports: tuple[str, ...] = ()
    """The region's interface, one line for each port: ``x: activation, read, bf16 [1, 1, 1024]``."""
    dims: tuple[tuple[str, int], ...] = ()
    """Names that a template's constraints may use beside parameters, with their values here; a missing name is 0."""
    covers: tuple[int, ...] = ()  # places in the graph; regions that share one overlap


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundaryFound(_Clean):
    """An operator that no region may cross, and the reason."""

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
    """A region's space: how many templates serve it, how many points are legal, how many were rejected and why."""

    kind: Literal["space-bounded"] = "space-bounded"
    region: str
    templates: int
    points: int
    rejected: int
    reasons: tuple[str, ...] = ()
    offers: tuple[Offer, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Advised(_Clean):
    """The candidates that an adviser would measure first; nothing is verified until a measurement says so."""

    kind: Literal["advised"] = "advised"
    region: str
    adviser: str
    head: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviserCalled(_Clean):
    """A model is about to be asked; on disk first: `booked` counts as spent until `AdviserReplied` tells the usage."""

    kind: Literal["adviser-called"] = "adviser-called"
    call: int
    booked: Usage
    way: str
    """The form of answer that is asked for: `json_schema`, `json_object` or `text`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviserReplied(_Clean):
    """A call to a model ended, with an answer or without."""

    kind: Literal["adviser-replied"] = "adviser-replied"
    call: int
    booked: Usage
    used: Usage
    result: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceTaken(_Clean):
    """A model's advice on a region: what it ranked (`advice.order`), and each proposal, with a reason where refused."""

    kind: Literal["advice-taken"] = "advice-taken"
    region: str
    exchange: str
    advice: Advice
    head: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceMissed(_Clean):
    """No advice came for these regions, or parts of an answer fit no region's advice; and the reason."""

    kind: Literal["advice-missed"] = "advice-missed"
    regions: tuple[str, ...]
    reason: str
    refused: tuple[AnswerItem, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimSettled(_Clean):
    """A measurement confirmed or refuted what an adviser had claimed."""

    kind: Literal["claim-settled"] = "claim-settled"
    region: str
    claim: Claim


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialStarted(_Clean):
    """The evaluation of a candidate began."""

    kind: Literal["trial-started"] = "trial-started"
    region: str
    candidate: str
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialFinished(_Clean):
    """The evaluation of a candidate ended. On disk before anything acts on it."""

    kind: Literal["trial-finished"] = "trial-finished"
    trial: Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundsProgress(_Clean):
    """How many rounds of a timing are done; never sent from inside a timed round."""

    kind: Literal["rounds-progress"] = "rounds-progress"
    region: str
    done: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceMade(_Clean):
    """A kernel or the fallback was chosen for a region. On disk before anything acts on it."""

    kind: Literal["choice-made"] = "choice-made"
    region: str
    choice: Choice


@dataclass(frozen=True, slots=True, kw_only=True)
class StepsTimed(_Clean):
    """Whole steps were timed side by side; `steps` is a digest of what they run and how they were timed."""

    kind: Literal["steps-timed"] = "steps-timed"
    steps: str
    timing: Timing


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanAdmitted(_Clean):
    """A plan was measured against the best baseline step, or is not to be timed. On disk before anything acts on it."""

    kind: Literal["plan-admitted"] = "plan-admitted"
    plan: Plan
    layouts: Layouts = ()
    """The resident layouts that it was admitted with: those of all plans of its run."""
    ruled: bool = False
    """Whether it was changed after admission (overrides, model check), then measured; no region fell back by that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelChecked(_Clean):
    """The whole model was compared with float32; `plans` digests what it ran. On disk before anything acts on it."""

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
    """A field of a lock that differs from this machine or the model at hand, and what repairs it."""

    kind: Literal["drift-found"] = "drift-found"
    field: str
    locked: str
    here: str
    grade: Literal["warn", "rebuild", "remeasure", "refuse"]
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Warned(_Clean):
    """Something that a person should know and that stops nothing."""

    kind: Literal["warned"] = "warned"
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided(_Clean):
    """A person decided on one region, or on several at once. On disk before anything acts on it."""

    kind: Literal["decided"] = "decided"
    rulings: tuple[Decision, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Undone(_Clean):
    """A person took back the last decision that was in force. On disk before anything acts on it."""

    kind: Literal["undone"] = "undone"


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateAsked(_Clean):
    """A person cancels a candidate, or wants it evaluated again (`rerun`) or changed (`edit`). On disk before that."""

    kind: Literal["candidate-asked"] = "candidate-asked"
    what: Literal["cancel", "rerun", "edit"]
    region: str
    candidate: str
    point: Candidate | None = None
    """The candidate itself where it is known; to cancel one, its id is enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Steered(_Clean):
    """A person paused, resumed or stopped the session. On disk before anything acts on it."""

    kind: Literal["steered"] = "steered"
    what: Literal["pause", "resume", "stop"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched(_Clean):
    """A screen follows the run and draws at most `ui_hz` times a second; official numbers come from runs without it."""

    kind: Literal["watched"] = "watched"
    ui_hz: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewOpened(_Clean):
    """The plans wait for a person before the lock is written; `regions` are those undecided or with stale decisions."""

    kind: Literal["review-opened"] = "review-opened"
    regions: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFailed(_Clean):
    """The run ended without its result; `exit_code` is that of the process."""

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
    RunStarted | StageStarted | StageFinished | GraphCaptured | RegionFound | BoundaryFound | SpaceBounded | Decided
    | Advised | Remembered | TrialStarted | TrialFinished | RoundsProgress | ChoiceMade | PlanAdmitted | LockWritten
    | DriftFound | Warned | Undone | CandidateAsked | Steered | ReviewOpened | RunFailed | RunFinished | SearchProgress
    | Proposed | AdviserCalled | AdviserReplied | AdviceTaken | AdviceMissed | ClaimSettled | Watched | StepsTimed
    | ModelChecked | Consulted
)  # fmt: skip
Emit = Callable[[Event], None]
"""The function by which the flow reports an event; it is passed down, never global."""
PROGRESS = (TrialStarted, RoundsProgress, SearchProgress)
"""Events that may be dropped, because they say only how far something is."""
DURABLE = (
    RunStarted, TrialFinished, ChoiceMade, PlanAdmitted, LockWritten, Decided, Undone, CandidateAsked, Steered,
    ReviewOpened, RunFailed, RunFinished, AdviserCalled, AdviserReplied, ModelChecked,
)  # fmt: skip
"""Events that are on disk before anything acts on them."""


def silent(event: Event) -> None:
    """Do nothing with an event: the `Emit` of callers that do not watch."""


def encode(event: Event) -> Json:
    """Return an event as plain JSON."""
    return _codec.encode(event)


def decode(data: Json, *, clean: bool = False) -> Event:
    """Return the event of `encode`'s output; `clean` says that its line was `harmless`, so that no text needs cleaning.

    Raises:
        CodecError: the data is not an event; the message names the first fault.
    """
    event: Event = _codec.decode_bare(Event, data, "event") if clean else _codec.decode(Event, data, "event")
    return event
