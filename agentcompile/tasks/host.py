"""The process that holds a task: it draws inputs, knows what must come out, and times PyTorch.

It never runs a written kernel. The kernel's process writes into files that this one maps, too, and knows nothing of
what is expected there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from agentcompile.backends import backend_of
from agentcompile.ops.reference import DTYPES as TORCH_DTYPES
from agentcompile.tasks.arena import ArenaView
from agentcompile.tasks.comparing import Expected, Outputs
from agentcompile.tasks.inputs import SHAPE_SCALES, nudged, randomised
from agentcompile.tasks.loading import LoadedModel, TaskFault
from agentcompile.tasks.precision import exact, tf32
from agentcompile.tasks.signing import Signed, sign
from agentcompile.tasks.stirring import MOST, TABLE, applied, fill, rows_of, table_numbers
from agentcompile.tasks.tally import Tally
from agentcompile.tasks.torch_arms import Arms, TorchArms
from agentcompile.tasks.wire import (
    Attach,
    Baseline,
    Done,
    Draw,
    Examine,
    Examined,
    Load,
    Loaded,
    Pattern,
    Refused,
    Renew,
    Reply,
    Request,
    Signature,
    Spoil,
    Stir,
    TimeBaseline,
)
from agentcompile.validate.arena import poison
from agentcompile.validate.rig import same_bits
from agentcompile.worker.limits import limit_memory

_MOVES = 2
"""How often the reference is computed at inputs that moved by a rounding."""


@dataclass(slots=True)
class _Held:
    """What one arena holds."""

    view: ArenaView
    label: str = ""
    inputs: list[Any] = field(default_factory=list)
    parameters: list[Tensor] = field(default_factory=list)
    sources: dict[str, Tensor] = field(default_factory=dict)
    """Private copies of inputs and parameters by port."""
    expected: list[Expected] = field(default_factory=list)
    outputs: Outputs = field(default_factory=Outputs)
    changes: tuple[str, Tensor] = ("", torch.zeros(0, 2, dtype=torch.int64))
    """An input, and the changes of it that were listed."""


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
                case Baseline():
                    return Done(note=self._torch.make(request.name))
                case TimeBaseline():
                    return self._torch.timed(request.name, request.batch)
                case _:
                    raise TypeError(f"not for the process of a task: {request.kind}")
        except TaskFault as fault:
            return Refused(error=fault.error, hint=fault.hint)
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
        """Draw a case into an arena; `TaskFault` comes through from the task's own functions."""
        held, task = self._held[request.arena], self._task
        generator = torch.Generator().manual_seed(request.seed)
        if request.nudged:
            held.inputs = [_each(one, lambda tensor: nudged(tensor, generator)) for one in held.inputs]
        else:
            at = None if self._attach is None or self._attach.shape == 0 else SHAPE_SCALES[task.at[self._attach.shape]]
            held.inputs = task.loaded.inputs(request.seed, request.scale, at)
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
            own = task.loaded.run(_copies(held.inputs))
            fast = self._fast(held)
            reference = task.wide(held.inputs) if task.told.wide else own
            moved = [self._moved(held, generator) for _ in range(_MOVES)]
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
            return self._task.loaded.run(_copies(held.inputs))

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
        held = self._held[request.arena]
        table = held.view.buffer(TABLE, torch.int64, (table_numbers(),))
        source, generator = held.sources[request.port].cpu(), torch.Generator().manual_seed(request.seed)
        fill(table, source, min(request.steps, MOST), generator)
        held.changes = request.port, rows_of(table, min(request.steps, MOST))

    def _renew(self, held: _Held, *, undo: bool) -> None:
        port, rows = held.changes
        if undo:
            self._buffer(held, port).copy_(held.sources[port])
            return
        changed = applied(rows, held.sources[port].cpu()).to(self._task.loaded.device)
        leaves, spec = pytree.tree_flatten(list(held.inputs))
        tensors = [at for at, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        leaves[tensors[self._names("input").index(port)]] = changed.clone()
        held.inputs = pytree.tree_unflatten(leaves, spec)
        held.sources[port] = changed
        held.expected, held.outputs = self._expected(held, torch.Generator().manual_seed(len(rows))), Outputs()

    def _examine(self, held: _Held) -> Examined:
        tally = Tally()
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


def _copies(inputs: Sequence[Any]) -> list[Any]:
    return [_each(one, torch.clone) for one in inputs]
