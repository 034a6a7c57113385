"""The process that holds a task: it draws inputs, knows what must come out, and times PyTorch.

It never runs a written kernel. The kernel's process writes into files that this one maps, too, and knows nothing of
what is expected there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from agentcompile.backends import backend_of
from agentcompile.ops.reference import DTYPES as TORCH_DTYPES
from agentcompile.tasks.arena import ArenaView
from agentcompile.tasks.comparing import Expected, Outputs
from agentcompile.tasks.inputs import SHAPE_SCALES, moved, nudged_tree, randomised
from agentcompile.tasks.loading import LoadedModel, TaskFault
from agentcompile.tasks.precision import exact, tf32
from agentcompile.tasks.signing import Signed, sign
from agentcompile.tasks.stirring import (
    TABLE,
    Changing,
    Stirred,
    applied,
    fill,
    in_order,
    noisy,
    shuffled,
    spoilt,
    steps_of,
    stirred,
    table_numbers,
    twin,
)
from agentcompile.tasks.tally import TaskTally
from agentcompile.tasks.torch_arms import Arms, TorchArms
from agentcompile.tasks.wire import (
    Attach,
    Done,
    Draw,
    Examine,
    Examined,
    Load,
    Loaded,
    MakeBaseline,
    Pattern,
    Renew,
    Reply,
    Request,
    Signature,
    Spoil,
    Stir,
    TaskRefused,
    TimeBaseline,
)
from agentcompile.validate.arena import poison
from agentcompile.validate.rig import same_bits
from agentcompile.worker.limits import limit_memory

_MOVES = 2
"""How often the reference is computed at inputs that moved by a rounding."""


@dataclass(slots=True)
class _Held:
    """The tensors of one arena and the results that are expected in it."""

    view: ArenaView
    label: str = ""
    inputs: list[Any] = field(default_factory=list)
    parameters: list[Tensor] = field(default_factory=list)
    sources: dict[str, Tensor] = field(default_factory=dict)
    """Private copies of inputs and parameters by port."""
    expected: list[Expected] = field(default_factory=list)
    outputs: Outputs = field(default_factory=Outputs)
    changes: Tensor = field(default_factory=lambda: torch.zeros(0, 0, 2, dtype=torch.int64))
    """What was listed to be changed before each launch."""
    twins: dict[str, Tensor] = field(default_factory=dict)
    """What inputs are exchanged with before each launch."""
    batch: int = 0
    """The launches for which changes were listed, but for those that are run before."""
    drawn: _Held | None = None
    """What was known of the arena as it was drawn, where changes were made since."""


class TaskHost:
    """A loaded task, and the arenas of the kernel that is checked."""

    def __init__(self) -> None:
        self._signed: Signed | None = None
        self._arms: Arms | None = None
        self._held: list[_Held] = []
        self._attach: Attach | None = None

    def handle(self, request: Request) -> Reply:
        """Answer a request.

        Raises:
            TypeError: it is none for this process.
        """
        try:
            match request:
                case Load():
                    return self._load(request)
                case Attach():
                    self._attach = request
                    self._held = [_Held(ArenaView(file, at)) for at, file in enumerate(request.arenas)]
                case Draw():
                    self._draw(request)
                case Spoil():
                    self._spoil(request.arena, request.pattern)
                case Stir():
                    self._stir(request)
                case Renew():
                    self._renew(self._held[request.arena], undo=request.undo)
                case Examine():
                    return self._examine(self._held[request.arena])
                case MakeBaseline():
                    return Done(note=self._torch.make(request.name))
                case TimeBaseline():
                    return self._torch.timed(request.name, request.batch)
                case _:
                    raise TypeError(f"not for the process of a task: {request.kind}")
        except TaskFault as fault:
            return TaskRefused(error=fault.error, hint=fault.hint)
        return Done()

    def _load(self, request: Load) -> Loaded:
        torch.set_num_threads(request.threads)
        on_device = backend_of(request.device).own_memory
        if on_device:
            torch.cuda.set_device(request.device)
        else:
            limit_memory(request.memory_bytes)  # the driver of a device maps far more than it uses
        loaded = LoadedModel(Path(request.path), request.seed, request.device)
        if on_device:
            exact()  # whatever the file asked for
        self._signed = sign(loaded, request.seed)
        self._arms = _device_arms(loaded, request.seed) if on_device else TorchArms(loaded, request.seed)
        return self._signed.told

    @property
    def _torch(self) -> Arms:
        assert self._arms is not None
        return self._arms

    @property
    def _task(self) -> Signed:
        assert self._signed is not None
        return self._signed

    @property
    def _signature(self) -> Signature:
        assert self._attach is not None
        return self._task.told.signatures[self._attach.shape]

    def _draw(self, request: Draw) -> None:
        """Draw a case into an arena.

        Where the model fails on inputs that were scaled or nudged, which it did not at first, plain ones are drawn.

        Raises:
            TaskFault: it comes through from the task's own functions.
        """
        try:
            self._drawn(request)
        except TaskFault:
            if request.scale == 1.0 and not request.nudged:
                raise
            self._drawn(replace(request, scale=1.0, nudged=False))

    def _drawn(self, request: Draw) -> None:
        held, task = self._held[request.arena], self._task
        generator = torch.Generator().manual_seed(request.seed)
        at = None if self._attach is None or self._attach.shape == 0 else SHAPE_SCALES[task.at[self._attach.shape]]
        drawn = task.loaded.inputs(request.seed, request.scale, at)
        if request.nudged:
            held.inputs = nudged_tree(held.inputs, drawn, generator)
        else:
            held.inputs = drawn
            held.parameters = randomised(task.loaded.base, generator) if request.randomised else task.loaded.base
        held.label = request.label
        held.sources = dict(zip(self._names("input"), _tensors_of(held.inputs), strict=True))
        held.sources |= dict(zip(self._names("parameter"), held.parameters, strict=True))
        held.sources = {name: tensor.contiguous().clone() for name, tensor in held.sources.items()}
        for name, tensor in held.sources.items():
            self._buffer(held, name).copy_(tensor)
        held.expected, held.outputs = self._expected(held, generator), Outputs()

    def _expected(self, held: _Held, generator: torch.Generator) -> list[Expected]:
        task = self._task
        task.loaded.set_parameters(held.parameters)
        try:
            own = task.loaded.run(held.inputs)
            fast = self._fast(held)
            reference = task.wide(held.inputs) if task.told.wide else own
            moved = list[list[Tensor]]()
            for _ in range(_MOVES):
                with contextlib.suppress(TaskFault):  # at the end of an operator's domain there is nothing beyond
                    moved.append(self._moved(held, generator))
        finally:
            task.loaded.set_parameters(task.loaded.base)
        facts = self._signature.of("output")
        return [
            Expected(
                name=fact.name,
                dtype=fact.dtype,
                reference=reference[at].double() if own[at].is_floating_point() else reference[at],
                own=own[at],
                moved=tuple(one[at].double() if own[at].is_floating_point() else one[at] for one in moved),
                fast=fast[at] if fast else None,
            )
            for at, fact in enumerate(facts)
        ]

    def _fast(self, held: _Held) -> list[Tensor]:
        """Return PyTorch's results with TF32 on, where it is timed with it; otherwise none."""
        if not self._task.told.tf32:
            return []
        with tf32():
            return self._task.loaded.run(held.inputs)

    def _moved(self, held: _Held, generator: torch.Generator) -> list[Tensor]:
        """Return the reference at inputs and parameters that moved by float32's rounding, or by float64's."""
        loaded, wide = self._task.loaded, self._task.told.wide
        tensors = loaded.wide_tensors if wide else [tensor for _, tensor in loaded.tensors]

        def move(tensor: Tensor) -> Tensor:
            if not tensor.is_floating_point():
                return tensor
            unit = 2.0**-53 if tensor.dtype == torch.float64 else 2.0**-24
            noise = torch.randn(tensor.shape, generator=generator, dtype=torch.float64).to(tensor.device)
            there = tensor.double() * (1 + unit * noise)
            return there if wide else there.to(tensor.dtype)

        for tensor, value in zip(tensors, held.parameters, strict=True):
            tensor.detach().copy_(move(value))
        inputs = [_each(one, move) for one in held.inputs]
        return self._task.wide(inputs) if wide else loaded.run(inputs)

    def _spoil(self, arena: int, pattern: Pattern) -> None:
        held = self._held[arena]
        for name in self._names("output"):
            poison(self._buffer(held, name), pattern)
        assert self._attach is not None
        for space in self._attach.scratch:
            buffer = held.view.buffer(space.name, TORCH_DTYPES[space.dtype], (space.elements,))
            poison(buffer, "zero" if space.zeroed else pattern)

    def _stir(self, request: Stir) -> None:
        held, ports = self._held[request.arena], self._stirred
        self._renew(held, undo=True)
        generator = torch.Generator().manual_seed(request.seed)
        steps = min(steps_of(request.batch, len(self._held), request.arena), ports.most_steps)
        table = held.view.buffer(TABLE, torch.int64, (table_numbers(),))
        held.changes = fill(table, [self._changing(held, name) for name in ports.elements], steps, generator)
        held.batch = request.batch
        if ports.swapped:
            drawn = dict(zip(self._names("input"), _tensors_of(self._task.loaded.inputs(request.seed)), strict=True))
            held.twins = {name: drawn[name].contiguous().clone() for name in ports.swapped}
        for name, tensor in held.twins.items():
            held.view.buffer(twin(name), tensor.dtype, tuple(tensor.shape)).copy_(tensor)

    def _changing(self, held: _Held, name: str) -> Changing:
        assert self._attach is not None
        if name in self._names("input"):
            return shuffled(held.sources[name].cpu())
        if name in self._names("parameter"):
            flat = held.sources[name].cpu().reshape(-1)
            zeros = bool((flat == 0).all())
            return Changing(numel=flat.numel(), draw=lambda places, given: moved(flat[places], given, zeros=zeros))
        if name in self._names("output"):
            return spoilt(next(one.own for one in held.expected if one.name == name).cpu())
        space = next(one for one in self._attach.scratch if one.name == name)
        return noisy(space.dtype, space.elements)

    def _renew(self, held: _Held, *, undo: bool) -> None:
        ports, inputs, parameters = self._stirred, self._names("input"), self._names("parameter")
        changed = [name for name in (*ports.elements, *ports.swapped) if name in held.sources]
        if undo:
            if (drawn := held.drawn) is not None:
                held.inputs, held.parameters, held.sources = drawn.inputs, drawn.parameters, drawn.sources
                held.expected, held.outputs, held.drawn = drawn.expected, drawn.outputs, None
            for name in changed:
                self._buffer(held, name).copy_(held.sources[name])
            return
        held.drawn, held.sources = replace(held), dict(held.sources)
        everywhere = in_order([one.changes for one in self._held], held.batch)  # all launches share the parameters
        for at, name in enumerate(ports.elements):
            if name in held.sources:
                rows = held.changes if name in inputs else everywhere
                held.sources[name] = applied(rows, at, held.sources[name].cpu()).to(self._task.loaded.device)
        for name, tensor in held.twins.items() if len(held.changes) % 2 else ():
            held.sources[name] = tensor
        if held is not self._held[0]:
            for name in parameters:
                self._buffer(held, name).copy_(self._buffer(self._held[0], name))
        leaves, spec = pytree.tree_flatten(list(held.inputs))
        tensors = [at for at, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        for at, name in zip(tensors, inputs, strict=True):
            leaves[at] = held.sources[name].clone() if name in changed else leaves[at]
        held.inputs = pytree.tree_unflatten(leaves, spec)
        held.parameters = [held.sources[name] for name in parameters]
        generator = torch.Generator().manual_seed(len(held.changes))
        held.expected, held.outputs = self._expected(held, generator), Outputs()

    @property
    def _stirred(self) -> Stirred:
        assert self._attach is not None
        return stirred(self._signature, self._attach.scratch, whole=not self._task.told.nudges)

    def _examine(self, held: _Held) -> Examined:
        tally = TaskTally()
        assert self._attach is not None
        broken = held.view.broken()
        tally.claim("memory", not broken, f"{held.label}: something was written around {', '.join(broken)}")
        changed = [name for name, tensor in held.sources.items() if not same_bits(self._seen(held, name), tensor)]
        tally.claim("inputs", not changed, f"{held.label}: {', '.join(changed)} changed: only outputs may be written")
        for name in changed:
            self._buffer(held, name).copy_(held.sources[name])
        left = [
            space.name
            for space in self._attach.scratch
            if space.zeroed and held.view.buffer(space.name, TORCH_DTYPES[space.dtype], (space.elements,)).any()
        ]
        tally.claim("zeroed", not left, f"{held.label}: {', '.join(left)} must be zeros again after every launch")
        for expected in held.expected:
            y = self._seen(held, expected.name)
            same = held.outputs.examine(tally, y, expected, held.label)
            if self._attach.deterministic:
                told = f"{held.label}: {expected.name} differs from launch to launch on the same inputs"
                tally.claim("repeats", same, told)
        return Examined(checks=tuple(tally.checks.values()), error_ratio=tally.error_ratio)

    def _names(self, role: Any) -> list[str]:
        return [fact.name for fact in self._signature.of(role)]

    def _seen(self, held: _Held, name: str) -> Tensor:
        """Return a buffer where the model is: itself, or a copy on the device."""
        return self._buffer(held, name).to(self._task.loaded.device)

    def _buffer(self, held: _Held, name: str) -> Tensor:
        fact = next(one for one in self._signature.tensors if one.name == name)
        return held.view.buffer(name, TORCH_DTYPES[fact.dtype], fact.shape)


def _device_arms(loaded: LoadedModel, seed: int) -> Arms:
    from agentcompile.tasks.device_arms import DeviceArms

    return DeviceArms(loaded, seed)


def _tensors_of(inputs: Sequence[Any]) -> list[Tensor]:
    return [one for one in pytree.tree_leaves(list(inputs)) if isinstance(one, Tensor)]


def _each(value: Any, change: Any) -> Any:
    return pytree.tree_map(lambda one: change(one) if isinstance(one, Tensor) else one, value)
