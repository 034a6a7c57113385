"""The arms of a timed comparison: kernels through the executor, PyTorch through Python, as the runtime calls both."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from agentcompile.ir.target import Target
from agentcompile.ir.timing import Interval, Samples
from agentcompile.measure.clock import interval, quantum_ns, settle
from agentcompile.measure.rounds import Arm, run_rounds
from agentcompile.reference import Interpreter
from agentcompile.runtime.library import bind as bind_library
from agentcompile.runtime.native import Call, Executor, Library, Program
from agentcompile.worker.box import NOTHING, Box
from agentcompile.worker.inputs import Inputs
from agentcompile.worker.launch import bind, workspaces
from agentcompile.worker.protocol import Implementation, Reference, Time, TimeSteps

_WARM = 4
"""A quarter of a batch runs before each interval: threads awake, code and activations cached."""


def time_arms(request: Time, executor: Executor, target: Target, box: Box) -> Samples:
    """Time all arms of `request` in interleaved rounds in this process."""
    inputs = Inputs(request, target)
    arms: list[Arm] = []
    for index, arm in enumerate(request.arms):
        box.write(index)
        if isinstance(arm, Reference):
            arms.append(_TorchArm(inputs, box, index, Interpreter(request.region.body)))
        elif arm.source.language == "library":
            call = bind_library(arm.source.call, request.region, arm.source.settings)
            arms.append(_TorchArm(inputs, box, index, call))
        else:
            arms.append(_KernelArm(inputs, box, index, arm, executor))
    return timed(arms, request, box, quantum_ns())


def timed(arms: Sequence[Arm], request: Time | TimeSteps, box: Box, quantum: int) -> Samples:
    """Interleaved rounds of `arms` as `request` wants them; `quantum` is the timer's smallest step in ns."""
    end = time.monotonic() + (request.seconds or math.inf)
    samples = run_rounds(
        arms,
        rounds=request.rounds,
        policy=request.policy,
        claim=request.claim,
        seed=request.seed,
        quantum_ns=quantum,
        left=lambda: end - time.monotonic(),
    )
    box.write(NOTHING)
    return samples


class _KernelArm:
    """A compiled candidate. Launches of a batch walk through the slots; bound launches are kept by slot."""

    def __init__(self, inputs: Inputs, box: Box, index: int, made: Implementation, executor: Executor) -> None:
        self._inputs, self._box, self._index, self._executor = inputs, box, index, executor
        self._source, self._layouts = made.source, dict(made.layouts)
        self._library = Library(Path(made.binary.path))
        self._workspaces = workspaces(made.source)
        self._calls: dict[int, list[Call]] = {}

    def interval(self, batch: int) -> Interval:
        """`batch` launches, measured beside them in C++."""
        self._box.write(self._index)
        settle()
        warm = max(1, batch // _WARM)
        warm_up, program = self._program(warm), self._program(batch)
        warm_up.run()
        return interval(lambda: program.time(1, 1)[0])

    def _program(self, batch: int) -> Program:
        first, count = self._inputs.take(batch), self._inputs.slots.count
        return Program(self._executor, [c for i in range(batch) for c in self._bound((first + i) % count)])

    def _bound(self, slot: int) -> list[Call]:
        if slot not in self._calls:
            buffers = {**self._inputs.buffers(slot, self._layouts), **self._workspaces}
            self._calls[slot] = bind(self._source, self._library, buffers)
        return self._calls[slot]


class _TorchArm:
    """The captured body or a library call, called from Python as the runtime's fallback calls it."""

    def __init__(
        self,
        inputs: Inputs,
        box: Box,
        index: int,
        call: Callable[[Mapping[str, torch.Tensor]], dict[str, torch.Tensor]],
    ) -> None:
        self._inputs, self._box, self._index, self._call = inputs, box, index, call
        self._read: dict[int, dict[str, torch.Tensor]] = {}

    def interval(self, batch: int) -> Interval:
        """`batch` calls, measured in Python."""
        self._box.write(self._index)
        settle()
        warm_up, inputs = self._prepared(max(1, batch // _WARM)), self._prepared(batch)
        self._run(warm_up)
        return interval(lambda: self._run(inputs))

    def _run(self, inputs: list[dict[str, torch.Tensor]]) -> int:
        call = self._call
        begin = time.perf_counter_ns()
        for values in inputs:
            call(values)
        return time.perf_counter_ns() - begin

    def _prepared(self, batch: int) -> list[dict[str, torch.Tensor]]:
        first, count = self._inputs.take(batch), self._inputs.slots.count
        return [self._slot((first + i) % count) for i in range(batch)]

    def _slot(self, slot: int) -> dict[str, torch.Tensor]:
        if slot not in self._read:
            self._read[slot] = self._inputs.read(slot)
        return self._read[slot]
