"""A whole model run on seeded sequences, as `runtime.model` runs it, with every wanted logits row written to a file.

The caller compares them: the process that runs generated code has no say in whether it is right.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import torch

from agentcompile.checkpoint import Checkpoint
from agentcompile.ir.program import Program
from agentcompile.ir.target import Target
from agentcompile.ir.whole import Group
from agentcompile.runtime.generator import Decode, Prefill
from agentcompile.runtime.memory import Memory
from agentcompile.runtime.model import CompiledModel
from agentcompile.runtime.native import Executor, Library
from agentcompile.runtime.regimes import Regimes
from agentcompile.runtime.step import HostStep
from agentcompile.worker.box import Box
from agentcompile.worker.protocol import Fed, FeedModel
from agentcompile.worker.steps import called, constants

if TYPE_CHECKING:
    from agentcompile.runtime.device_step import DeviceStep

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundModel:
    """A model in memory; `together` maps a number of rows to a function of one step in them: logits [rows, vocab]."""

    model: CompiledModel
    memory: Memory
    together: Mapping[int, Callable[[], torch.Tensor]]


class Pulse:
    """A signal to the waiting parent after each part of the work: a slow machine is not taken for one that hangs."""

    def __init__(self, box: Box, settle: Callable[[], None] = lambda: None) -> None:
        """Start the clock; `settle` waits for what is enqueued, on a device that runs asynchronously."""
        self._box, self._settle, self._last = box, settle, time.monotonic()
        self.longest_s = 0.0

    def beat(self) -> None:
        """Note that a part of the work is done."""
        self._settle()
        now = time.monotonic()
        self.longest_s, self._last = max(self.longest_s, now - self._last), now
        self._box.tick()

    def after(self, call: Callable[P, R]) -> Callable[P, R]:
        """Return `call` with a beat after each call."""

        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            made = call(*args, **kwargs)
            self.beat()
            return made

        return run


class _Decode:
    def __init__(self, step: Decode, pulse: Pulse) -> None:
        self.again = pulse.after(step.again)
        self.clock, self.decoder = step.clock, step.decoder


class _Prefill:
    def __init__(self, chunks: Prefill, pulse: Pulse) -> None:
        self.capacity, self.spreads, self.run = chunks.capacity, chunks.spreads, pulse.after(chunks.run)


def feed(request: FeedModel, loaded: BoundModel, box: Box, pulse: Pulse) -> Fed:
    """Run every walk of `request` and write its logits rows to the file that the request names."""
    rows = 0
    with Path(request.out).open("wb") as file:
        for index, group in enumerate(request.groups):
            box.write(index)
            if len(group) > 1:
                made = _side_by_side(loaded, group)
            else:
                made = [loaded.model.logits(walk.ids, walk.scored, prompt=walk.prompt) for walk in group]
            for found in made:
                file.write(found.cpu().contiguous().numpy().tobytes())
                rows += found.shape[0]
    return Fed(rows=rows, longest_s=pulse.longest_s)


def _side_by_side(loaded: BoundModel, group: Group) -> list[torch.Tensor]:
    """Prefill each prompt in the first row, copy its cache to its own row, then run steps of all rows at once."""
    memory, step = loaded.memory, loaded.together[len(group)]
    found: list[list[torch.Tensor]] = [[] for _ in group]
    for row in reversed(range(len(group))):  # the first row's last, since every prompt passes through it
        walk = group[row]
        logits = loaded.model.prefill(walk.ids[: walk.prompt])
        if walk.prompt - 1 in walk.scored:
            found[row].append(logits)
        for state in memory.states() if row else []:
            state[row, :, : walk.prompt].copy_(state[0, :, : walk.prompt])
    for number in range(group[0].steps):
        for row, walk in enumerate(group):
            memory.tokens[row], memory.positions[row] = walk.ids[walk.prompt + number], walk.prompt + number
        logits = step()
        for row, walk in enumerate(group):
            if walk.prompt + number in walk.scored:
                found[row].append(logits[row].float().clone())
    return [torch.stack(rows) for rows in found]


def host_model(request: FeedModel, executor: Executor, pulse: Pulse) -> BoundModel:
    """Bind the programs of `request` to the host's memory, whose KV cache is filled with random numbers."""
    programs = _programs(request)
    read = pulse.after(Checkpoint.open(request.checkpoint).tensor)
    memory = Memory(programs, read, constants(request.constants))
    memory.furnish()
    libraries = {source: Library(path) for source, path in called(programs, request.binaries).items()}
    steps: list[tuple[int, Decode]] = [
        (end, HostStep(program, memory, executor, libraries)) for end, program in request.decode
    ]
    (_, chunk), *_ = request.prefill
    prefill = HostStep(chunk, memory, executor, libraries, capacity=request.capacity)
    return BoundModel(model=_model(request, steps, prefill, memory, pulse), memory=memory, together={})


def device_model(request: FeedModel, target: Target, pulse: Pulse) -> BoundModel:
    """Bind the programs of `request` to the device's memory; the kernel that ends a step is among its binaries."""
    from agentcompile.runtime.device_decode import DeviceDecode, DevicePrefill
    from agentcompile.runtime.device_step import DeviceStep, advance_source, on_device, overlaps_launches
    from agentcompile.runtime.driver import Module

    programs, overlap, context = _programs(request), overlaps_launches(target.arch), request.info.context
    with on_device(f"loading {request.info.name}"):
        read = pulse.after(Checkpoint.open(request.checkpoint).tensor)
        memory = Memory(programs, read, constants(request.constants), "cuda")
        memory.furnish()
        modules = {source: Module(path) for source, path in called(programs, request.binaries).items()}
        advance = Module(Path(dict(request.binaries)[advance_source(target.arch).digest]))
        steps: list[tuple[int, DeviceDecode]] = []
        together: dict[int, Callable[[], torch.Tensor]] = {}
        for end, program in request.decode:
            step = DeviceStep(program, memory, modules, overlap=overlap)
            if program.batch == 1:
                steps.append((end, DeviceDecode(step, memory, advance, None, context=context, overlap=overlap)))
            else:
                together[program.batch] = pulse.after(_replayed(step))
        decode = steps[0][1] if len(steps) == 1 else Regimes(steps, memory)
        chunks = dict(request.prefill)
        prefill = DevicePrefill(
            lambda tokens: (chunks[tokens], modules), memory, decode, capacity=request.capacity, overlap=overlap
        )
    return BoundModel(model=_model(request, steps, prefill, memory, pulse), memory=memory, together=together)


def _replayed(step: DeviceStep) -> Callable[[], torch.Tensor]:
    """Return a function that runs one step of several sequences as a graph, captured on its first call."""
    graphs: list[torch.cuda.CUDAGraph] = []

    def run() -> torch.Tensor:
        if not graphs:
            graphs.append(step.graph())
        graphs[0].replay()
        return step.logits

    return run


def _model(
    request: FeedModel, steps: Sequence[tuple[int, Decode]], prefill: Prefill, memory: Memory, pulse: Pulse
) -> CompiledModel:
    decode = _Decode(steps[0][1] if len(steps) == 1 else Regimes(steps, memory), pulse)
    chunks, checkpoint = _Prefill(prefill, pulse), Path(request.checkpoint)
    return CompiledModel(
        request.info,
        decode,
        chunks,
        memory,
        tokenizer=None,
        checkpoint=checkpoint,
        steps_up_to=request.steps_up_to,
    )


def _programs(request: FeedModel) -> list[Program]:
    return [program for _, program in (*request.decode, *request.prefill)]
