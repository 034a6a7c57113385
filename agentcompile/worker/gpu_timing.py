"""The arms of a timed comparison on a CUDA device: every batch is a captured graph, timed by events around its replay.

A graph walks through the rotated weights from the first on. When they are to come from memory, others are read before
it, until nothing of them is left in the cache. Before the first event the device is kept busy until everything is
queued: the host's delays are in no interval.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import torch

from agentcompile.ir.target import Target
from agentcompile.ir.timing import Interval, Samples
from agentcompile.measure.rounds import Arm
from agentcompile.reference import Interpreter
from agentcompile.runtime.device_step import DeviceStep, captured, enqueued, first_chunk, overlaps_launches
from agentcompile.runtime.driver import Module
from agentcompile.runtime.library import bind as bind_library
from agentcompile.runtime.memory import Memory
from agentcompile.worker.box import Box
from agentcompile.worker.gpu_launch import bind_all
from agentcompile.worker.inputs import Inputs
from agentcompile.worker.launch import workspaces
from agentcompile.worker.protocol import Implementation, Reference, Time, TimeSteps
from agentcompile.worker.steps import called
from agentcompile.worker.timing import timed

QUANTUM_NS = 500
"""Resolution of an event (CUDA Runtime API, cudaEventElapsedTime)."""
_STEP_QUANTUM_NS = 1_000
"""For whole steps: a sample is then some graphs long, which evens out what one is off by."""
_HOLD_CYCLES = 200_000
"""About 0.1 ms: longer than the host needs to queue an event, a graph of some launches and an event."""
_MOST_CYCLES = 20_000_000
"""About 10 ms: longer than the host needs for graphs of tens of thousands of launches."""
_CYCLES_PER_NS = 3.5
"""More than any multiprocessor's clock has been: a hold is at least so long."""


def gpu_time_arms(request: Time, target: Target, box: Box) -> Samples:
    """Time all arms of `request` in interleaved rounds in this process."""
    inputs = Inputs(request, target, "cuda")
    # Nothing here waits for a core: a slow arm needs no long samples, which a fast one beside it would have to share.
    request = replace(request, policy=replace(request.policy, max_interval_ns=request.policy.max_device_interval_ns))
    arms: list[Arm] = []
    for index, arm in enumerate(request.arms):
        box.write(index)
        if isinstance(arm, Reference):
            arms.append(_TorchArm(inputs, box, index, Interpreter(request.region.body)))
        elif arm.source.language == "library":
            arms.append(
                _TorchArm(inputs, box, index, bind_library(arm.source.call, request.region, arm.source.settings))
            )
        else:
            arms.append(_KernelArm(inputs, box, index, arm, target.arch))
    return timed(arms, request, box, QUANTUM_NS)


def gpu_time_steps(request: TimeSteps, memory: Memory, target: Target, box: Box) -> Samples:
    """Time the programs of `request` in interleaved rounds in this process, all at its position in `memory`; chunks of
    a prompt at the start of the cache."""
    programs = [arm.program for arm in request.arms]
    memory.positions.fill_(request.position)
    modules = dict[str, Module]()
    overlap = overlaps_launches(target.arch)
    arms = []
    for index, program in enumerate(programs):
        box.write(index)
        modules |= {
            source: Module(path)
            for source, path in called([program], request.binaries).items()
            if source not in modules
        }
        bind = first_chunk if program.phase == "prefill" else DeviceStep
        arms.append(_StepArm(bind(program, memory, modules, overlap=overlap), box, index, request.unroll))
    return timed(arms, request, box, _STEP_QUANTUM_NS)


class Stopwatch:
    """Times what is queued on the device, which is kept busy until all of it is: the host's delays are in no time."""

    def __init__(self) -> None:
        self._cycles = _HOLD_CYCLES

    def elapsed(self, graphs: Callable[[], None], before: Callable[[], None] | None = None) -> Interval:
        """The time of what `graphs` queues, with what `before` queues ahead of it. Both are queued again when the host
        was too slow, after a longer hold."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        while True:
            if before is not None:
                before()
            asked = time.perf_counter_ns()
            torch.cuda._sleep(self._cycles)  # type: ignore[no-untyped-call]
            begin.record()
            graphs()
            end.record()
            queued_ns = time.perf_counter_ns() - asked
            end.synchronize()
            if queued_ns < self._cycles / _CYCLES_PER_NS or self._cycles >= _MOST_CYCLES:
                return Interval(ns=max(round(begin.elapsed_time(end) * 1e6), 1))
            self._cycles = min(round(2 * queued_ns * _CYCLES_PER_NS), _MOST_CYCLES)


class _Graphs(ABC):
    """An arm whose batches are graphs, kept by batch. Every one starts at the first slot, so that few are captured;
    what the last one read is out of the cache by then, or meant to be in it."""

    def __init__(self, inputs: Inputs, box: Box, index: int) -> None:
        self._inputs, self._box, self._index = inputs, box, index
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._watch = Stopwatch()

    def interval(self, batch: int) -> Interval:
        """`batch` launches as one graph."""
        self._box.write(self._index)
        if batch not in self._graphs:
            count = self._inputs.slots.count
            body = self._body([i % count for i in range(batch)])
            self._graphs[batch] = captured(body, before=self._body([0]))
        return self._watch.elapsed(self._graphs[batch].replay, before=self._inputs.cool)

    @abstractmethod
    def _body(self, slots: list[int]) -> Callable[[], None]:
        """What launches the arm once on each of `slots`."""


class _KernelArm(_Graphs):
    """A compiled candidate."""

    def __init__(self, inputs: Inputs, box: Box, index: int, made: Implementation, arch: str) -> None:
        super().__init__(inputs, box, index)
        self._source, self._layouts = made.source, dict(made.layouts)
        self._module = Module(Path(made.binary.path))
        self._workspaces = {name: tensor.cuda() for name, tensor in workspaces(made.source).items()}
        self._overlap = overlaps_launches(arch)

    def _body(self, slots: list[int]) -> Callable[[], None]:
        buffers = [{**self._inputs.buffers(slot, self._layouts), **self._workspaces} for slot in slots]
        rotated = sorted(self._inputs.rotated)
        region = self._inputs.region
        calls = bind_all(self._source, region, self._module, buffers, rotated=rotated, overlap=self._overlap)
        launches = [enqueued(call) for call in calls]

        def body() -> None:
            for launch in launches:
                launch()

        return body


class _TorchArm(_Graphs):
    """The captured body or a library call, captured as the runtime's fallback is."""

    def __init__(
        self,
        inputs: Inputs,
        box: Box,
        index: int,
        call: Callable[[Mapping[str, torch.Tensor]], dict[str, torch.Tensor]],
    ) -> None:
        super().__init__(inputs, box, index)
        self._call = call

    def _body(self, slots: list[int]) -> Callable[[], None]:
        values, call = [self._inputs.read(slot) for slot in slots], self._call

        def body() -> None:
            for one in values:
                call(one)

        return body


class _StepArm:
    """One program, at the position that memory holds, or a prompt's chunk where it was bound. A step is timed as one of
    several in a row, as generation runs it, after one that is not timed: alone between other arms' steps the same
    kernels have been seen to take six percent less."""

    def __init__(self, step: DeviceStep, box: Box, index: int, unroll: int) -> None:
        self._box, self._index, self._unroll = box, index, unroll
        self._one, self._some = step.graph(), step.graph(unroll)
        self._watch = Stopwatch()

    def interval(self, batch: int) -> Interval:
        """The time of `batch` steps, from `unroll` times as many."""
        self._box.write(self._index)

        def steps() -> None:
            for _ in range(batch):
                self._some.replay()

        found = self._watch.elapsed(steps, before=self._one.replay)
        return replace(found, ns=max(round(found.ns / self._unroll), 1))
