"""The messages between an evaluator and its two processes: one that holds the task, and one that runs a written kernel.

Every message is a dataclass that is encoded by `ir.codec`. The parent sends one request and waits for its reply, which
echoes the request's random token. Buffers are no part of messages: all processes map the same files (see `arena`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from agentcompile.ir.graph import DType
from agentcompile.ir.region import Region
from agentcompile.ir.template import Source
from agentcompile.ir.timing import Interval
from agentcompile.ir.trial import Check
from agentcompile.tasks.inputs import SCALES

TensorRole = Literal["input", "parameter", "output"]
Pattern = Literal["low", "high", "nan"]
"""What outputs and scratch hold before a launch."""
Order = Literal["threads", "forwards", "backwards"]
"""Whether a kernel's ranks run at once, or one after another in this order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFact:
    """One tensor of a task; `source` is its qualified name in the model, or its place among inputs or outputs."""

    name: str
    role: TensorRole
    dtype: DType
    shape: tuple[int, ...]
    source: str = ""
    varies: bool = True
    """Whether it differs from call to call of ``get_inputs``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """The tensors of a task at one shape, and the inputs that are plain numbers, which are the same at every call."""

    tensors: tuple[TensorFact, ...]
    numbers: tuple[tuple[str, float], ...] = ()
    flags: tuple[tuple[str, int], ...] = ()
    """Inputs that are whole numbers or booleans."""

    def of(self, *roles: TensorRole) -> tuple[TensorFact, ...]:
        """Return the tensors in these roles, in order."""
        return tuple(one for one in self.tensors if one.role in roles)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """The place of one buffer in a file: whole pages from `offset` on, in which the buffer begins at `start`."""

    name: str
    offset: int
    size: int
    start: int
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ArenaFile:
    """A file that holds the buffers of one set of inputs; every process maps it."""

    path: str
    size: int
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scratch:
    """A workspace of a kernel; one that is zeroed begins as zeros, and every launch leaves zeros there."""

    name: str
    dtype: str
    elements: int
    zeroed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Load a task file; answered by `Loaded` or `TaskRefused`."""

    kind: Literal["load"] = "load"
    path: str
    seed: int
    threads: int
    memory_bytes: int
    device: str = "cpu"
    """Where the model and its inputs lie."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What a task file asks for, at its own shape first and then at its boundary shapes."""

    kind: Literal["loaded"] = "loaded"
    text: str
    signatures: tuple[Signature, ...]
    flops: int
    """Counted by ``torch.utils.flop_counter``, which knows products, convolutions and attention."""
    touched_bytes: int
    """Bytes of inputs and parameters on which the outputs depend, and of the outputs."""
    wide: bool
    """Whether the model runs in float64, which makes the reference; otherwise the reference is the model as it is."""
    note: str = ""
    scales: tuple[float, ...] = SCALES
    """The factors on floating-point inputs for which the model gives a result."""
    nudges: bool = True
    """Whether the model gives one where single elements of these inputs change."""
    tf32: bool = False
    """Whether PyTorch is timed with TF32, for which the tolerance then allows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRefused:
    """The task file is at fault: what is wrong, and the remedy."""

    kind: Literal["refused"] = "refused"
    error: str
    hint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Attach:
    """Map arenas and forget those before; `shape` is a place in `Loaded.signatures`."""

    kind: Literal["attach"] = "attach"
    arenas: tuple[ArenaFile, ...]
    scratch: tuple[Scratch, ...]
    shape: int
    deterministic: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """Draw fresh inputs and parameters into an arena, and compute what the outputs must be."""

    kind: Literal["draw"] = "draw"
    arena: int
    label: str
    seed: int
    scale: float
    randomised: bool
    """Whether parameters differ from those that the task's model begins with."""
    nudged: bool = False
    """Whether floating-point inputs are those before, changed in a few places."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spoil:
    """Fill the outputs and the scratch of an arena with a pattern."""

    kind: Literal["spoil"] = "spoil"
    arena: int
    pattern: Pattern


@dataclass(frozen=True, slots=True, kw_only=True)
class Stir:
    """List changes of an arena, which the kernel's process makes before each launch of a batch and before its warm-up.

    Inputs and parameters become what they were when they were drawn.
    """

    kind: Literal["stir"] = "stir"
    arena: int
    batch: int
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Renew:
    """Compute what an arena, the last one launched on, must hold after all listed changes; or else undo them."""

    kind: Literal["renew"] = "renew"
    arena: int
    undo: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Examine:
    """Compare an arena with what it must hold after a launch; answered by `Examined`."""

    kind: Literal["examine"] = "examine"
    arena: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """What was checked, and the largest error in units of PyTorch's own."""

    kind: Literal["examined"] = "examined"
    checks: tuple[Check, ...]
    error_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeBaseline:
    """Make an arm of PyTorch: as it is, or compiled in a mode of ``torch.compile``; `Done` or `TaskRefused`."""

    kind: Literal["baseline"] = "baseline"
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeBaseline:
    """Time launches of an arm of PyTorch, which walk over inputs of their own; answered by `Timed`."""

    kind: Literal["time-baseline"] = "time-baseline"
    name: str
    batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Bind:
    """Load a built kernel and bind its launches to arenas; parameters are those of the first."""

    kind: Literal["bind"] = "bind"
    binary: str
    executor: str
    threads: int
    launches: tuple[tuple[str, tuple[str, ...]], ...]
    """(entry, names of buffers, empty for a null pointer) of each launch."""
    arenas: tuple[ArenaFile, ...]
    shared: tuple[str, ...]
    """Buffers that are those of the first arena everywhere."""
    memory_bytes: int
    fenced: bool
    attendants: str
    """The library of our own kernels, which make the changes of `Stir` and watch over the process."""
    stirred: tuple[str, ...] = ()
    """Buffers of which elements are changed; none where nothing is timed."""
    swapped: tuple[str, ...] = ()
    """Inputs that are exchanged with their twins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BindDevice:
    """Load a kernel that was built for a device, and bind its launches to copies of arenas in the device's memory."""

    kind: Literal["bind-device"] = "bind-device"
    binary: str
    source: Source
    region: Region
    arch: str
    device: str
    nodes: tuple[str, ...]
    """Device nodes that the process may use."""
    arenas: tuple[ArenaFile, ...]
    shared: tuple[str, ...]
    """Buffers that are those of the first arena everywhere."""
    fenced: bool
    attendants: str
    """Our own kernel, which makes the changes of `Stir`."""
    stirred: tuple[str, ...] = ()
    """Buffers of which elements are changed; none where nothing is timed."""
    swapped: tuple[str, ...] = ()
    """Inputs that are exchanged with their twins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchKernel:
    """Launch the kernel on an arena."""

    kind: Literal["launch"] = "launch"
    arena: int
    repeat: int = 1
    order: Order = "threads"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeKernel:
    """Time launches that walk over all arenas; answered by `Timed`."""

    kind: Literal["time-kernel"] = "time-kernel"
    batch: int
    stirred: bool = False
    """Whether buffers are changed before each launch, as `Stir` listed it."""
    launched: bool = True
    """Whether the kernel is launched; otherwise only these changes are made."""
    shown: bool = False
    """Whether a device's copies of the arenas are made anew before, and copied back after: somebody will look."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """The time of a batch, as the process that ran it measured it."""

    kind: Literal["timed"] = "timed"
    interval: Interval
    took_ns: int = 0
    """What passed while the launches ran, in ns: by a clock that is read apart from them, or by the core's count."""
    changed: str = ""
    """What a kernel left changed in its process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """It is done."""

    kind: Literal["done"] = "done"
    changed: str = ""
    """What a kernel left changed in its process."""
    note: str = ""
    """How an arm of PyTorch is launched, where that is not as usual."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessFault:
    """The request raised an exception."""

    kind: Literal["fault"] = "fault"
    error: str
    environment: bool = False
    """Whether the machine is at fault, and not what was asked for."""


TaskRequest = Load | Attach | Draw | Spoil | Stir | Renew | Examine | MakeBaseline | TimeBaseline
KernelRequest = Bind | BindDevice | LaunchKernel | TimeKernel
Request = TaskRequest | KernelRequest
Reply = Loaded | TaskRefused | Examined | Timed | Done | ProcessFault


@dataclass(frozen=True, slots=True, kw_only=True)
class AskFrame:
    """The JSON of a frame to a process."""

    token: str
    request: Request


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFrame:
    """The JSON of a frame from a process."""

    token: str
    reply: Reply
