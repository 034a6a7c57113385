"""The messages between parent and worker; every one is a dataclass that is encoded by `ir.codec`.

The parent sends one request and waits for its reply; the first is always `Setup`. Replies echo the request's random
token, so that a frame forged by a kernel that found the pipe is not accepted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from agentcompile.build.binary import Binary
from agentcompile.build.toolchain import Toolchain
from agentcompile.ir.model import ModelInfo
from agentcompile.ir.program import Program
from agentcompile.ir.region import Region
from agentcompile.ir.target import Ceiling, Residency, Target
from agentcompile.ir.template import Accumulation, Depth, Source
from agentcompile.ir.timing import Samples
from agentcompile.ir.trial import BuildFailed, Check, Disturbed, NumericReport, TimedOut
from agentcompile.ir.whole import Walk
from agentcompile.measure.policy import Policy
from agentcompile.measure.selftest import SelfTest
from agentcompile.system.exhausted import Resource


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The target, store and toolchain that the worker uses; `memory_bytes` limits what it allocates after its start."""

    kind: Literal["setup"] = "setup"
    target: Target
    store: str
    toolchain: Toolchain
    memory_bytes: int
    torch_threads: int
    device: str = "cpu"
    """``cuda:0`` for the first GPU that PyTorch sees."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """Compile a source; answered by `BinaryBuilt`, `BuildFailed`, `TimedOut` or `Disturbed`."""

    kind: Literal["build"] = "build"
    source: Source
    limit_s: float
    fenced: bool = False
    """Whether the compiler reaches nothing but its own files and a scratch folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Implementation:
    """A built candidate and the facts that evaluating it needs."""

    kind: Literal["implementation"] = "implementation"
    label: str
    source: Source
    binary: Binary
    layouts: tuple[tuple[str, str], ...]
    rounds: tuple[tuple[str, str], ...]
    accumulation: Accumulation
    deterministic: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """The region's own body, run by PyTorch in the model's dtype: the baseline arm `pytorch`."""

    kind: Literal["reference"] = "reference"
    label: str = "pytorch"


Arm = Implementation | Reference


@dataclass(frozen=True, slots=True, kw_only=True)
class Validate:
    """Run the correctness suite; answered by `SuiteReport`."""

    kind: Literal["validate"] = "validate"
    region: Region
    implementation: Implementation
    seed: int
    repeats: int
    lengths: tuple[Region, ...] = ()
    """The region at other numbers of tokens, at which the kernel must be right too."""
    chunk: tuple[Region, ...] = ()
    """The region of any number of tokens, where that is open, for launches at many of them; at most one."""
    depth: Depth
    launches: int = 0
    """The number of launches in a row at the end, with every result compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Time:
    """Time arms in interleaved rounds; answered by `RoundsTimed`, or `Wrong`."""

    kind: Literal["time"] = "time"
    region: Region
    arms: tuple[Arm, ...]
    rounds: int
    residency: Residency
    claim: float
    policy: Policy
    seed: int
    seconds: float = 0.0
    """The wall time in seconds after which no more rounds begin than an interval needs at least; 0 means no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSteps:
    """Time whole steps over the real weights in interleaved rounds; answered by `RoundsTimed`, or `Wrong`."""

    kind: Literal["time-steps"] = "time-steps"
    programs: tuple[Program, ...]
    """Plans lowered to whole decode steps, or on a GPU to prefill chunks."""
    checkpoint: str
    """The path of the checkpoint's directory."""
    constants: str
    """The path of a safetensors file with the tables that capture made."""
    binaries: tuple[tuple[str, str], ...]
    """The path of the binary of every source that a program calls, by source digest."""
    position: int
    """The cache position of the timed decode steps; a prefill chunk begins at 0."""
    rounds: int
    claim: float
    policy: Policy
    seed: int
    unroll: int = 4
    """The number of steps in a graph, on a GPU."""
    seconds: float = 0.0
    """The wall-time limit, as in `Time`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Feeding:
    """One way to run a prompt of `tokens` tokens on a CPU: in chunks, or with a `chunk` of 0 in decode steps."""

    tokens: int
    chunk: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimePrompts:
    """Time whole prompts on a CPU, each in its own way, in interleaved rounds; answer: `RoundsTimed` or `Wrong`."""

    kind: Literal["time-prompts"] = "time-prompts"
    info: ModelInfo
    decode: Program
    prefill: tuple[tuple[int, Program], ...]
    """Prefill programs with the longest chunk that each serves, shortest first."""
    arms: tuple[Feeding, ...]
    checkpoint: str
    constants: str
    binaries: tuple[tuple[str, str], ...]
    """The paths of binaries, as in `TimeSteps`."""
    rounds: int
    claim: float
    policy: Policy
    seed: int
    seconds: float = 0.0
    """The wall-time limit, as in `Time`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedModel:
    """Run a whole model on sequences, its logits to a file; the box has the running group; answered by `Fed`."""

    kind: Literal["feed-model"] = "feed-model"
    info: ModelInfo
    decode: tuple[tuple[int, Program], ...]
    """The steps of one sequence with the last context that each serves, then those of more sequences."""
    prefill: tuple[tuple[int, Program], ...]
    """The prefill programs by number of tokens; on a CPU one for any number, listed under the longest chunk."""
    capacity: int
    """The number of tokens of the longest chunk."""
    steps_up_to: int = 0
    """The most tokens of a prompt that run through decode steps, because no more of it are left."""
    checkpoint: str
    constants: str
    binaries: tuple[tuple[str, str], ...]
    """The paths of binaries, as in `TimeSteps`."""
    groups: tuple[tuple[Walk, ...], ...]
    out: str
    """A file for the logits: float32 [scored positions of all walks in order, vocab]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureCeiling:
    """Measure the machine's roofline limits; answered by `CeilingMeasured`."""

    kind: Literal["measure-ceiling"] = "measure-ceiling"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckHarness:
    """Run the harness's self-test with a real kernel on the real timer; answered by `HarnessChecked`."""

    kind: Literal["check-harness"] = "check-harness"
    trials: int
    rounds: int
    planted: float
    policy: Policy
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Canary:
    """Run a kernel that is known to be right; answered by `Alive`, or by `WorkerFault` when its answer is wrong."""

    kind: Literal["canary"] = "canary"


@dataclass(frozen=True, slots=True, kw_only=True)
class Furnish:
    """Build what a confined worker loads and cannot build itself; answered by `Alive`, or by `WorkerFault`."""

    kind: Literal["furnish"] = "furnish"


Timer = Time | TimeSteps | TimePrompts
"""The requests that are answered by samples."""
Request = Setup | Build | Validate | Timer | FeedModel | MeasureCeiling | CheckHarness | Furnish | Canary


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """The worker is set up."""

    kind: Literal["ready"] = "ready"


@dataclass(frozen=True, slots=True, kw_only=True)
class BinaryBuilt:
    """A binary is in the store."""

    kind: Literal["built"] = "built"
    binary: Binary


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteReport:
    """The correctness suite's findings, right or wrong."""

    kind: Literal["report"] = "report"
    report: NumericReport


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundsTimed:
    """The samples of all rounds of this process."""

    kind: Literal["timed"] = "timed"
    samples: Samples


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrong:
    """A timed arm, by its index in the request, left wrong outputs or a changed process: it has no time."""

    kind: Literal["wrong"] = "wrong"
    arm: int
    report: NumericReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Fed:
    """All logits are written."""

    kind: Literal["fed"] = "fed"
    rows: int
    longest_s: float
    """The seconds of the longest part: one step, one prefill chunk, or one tensor to load."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lacking:
    """The machine has too little of a resource for the request, whatever runs; `detail` is the system's message."""

    kind: Literal["lacking"] = "lacking"
    resource: Resource
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CeilingMeasured:
    """The machine's roofline limits."""

    kind: Literal["ceiling"] = "ceiling"
    ceiling: Ceiling


@dataclass(frozen=True, slots=True, kw_only=True)
class HarnessChecked:
    """The result of the harness's self-test."""

    kind: Literal["harness-checked"] = "harness-checked"
    result: SelfTest


@dataclass(frozen=True, slots=True, kw_only=True)
class Alive:
    """The canary kernel gave the right answer."""

    kind: Literal["alive"] = "alive"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFault:
    """The request raised an exception.

    `environment` faults look like the machine's, which is the user's to fix, and carry a hint; the evaluator finds out
    whether they are, because a candidate's own code may cause them too.
    """

    kind: Literal["fault"] = "fault"
    error: str
    environment: bool = False
    hint: str = ""


Done = Ready | BinaryBuilt | SuiteReport | RoundsTimed | Fed | CeilingMeasured | HarnessChecked | Alive
Reply = Done | BuildFailed | TimedOut | Disturbed | Wrong | Lacking | WorkerFault


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRequest:
    """The JSON of a frame to the worker."""

    token: str
    request: Request


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerAnswer:
    """The JSON of a frame from the worker."""

    token: str
    reply: Reply


class WrongOutput(Exception):
    """A timed arm, by index, gave wrong outputs or changed its process, which stops the comparison."""

    def __init__(self, arm: int, check: Check) -> None:
        super().__init__(check.detail)
        self.arm, self.report = arm, NumericReport(checks=(check,), error_ratio=0.0, cases=0, repeats=0)
