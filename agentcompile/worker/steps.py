"""Whole decode steps as arms: programs bound to the real weights, timed beside one another at one position."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from agentcompile.checkpoint import Checkpoint
from agentcompile.ir.program import NativeCall, Program
from agentcompile.ir.timing import Interval, Samples
from agentcompile.measure.clock import interval, quantum_ns, settle
from agentcompile.runtime.memory import Memory
from agentcompile.runtime.native import Executor, Library
from agentcompile.runtime.step import Step
from agentcompile.worker.box import Box
from agentcompile.worker.protocol import TimeSteps
from agentcompile.worker.timing import timed


def time_steps(request: TimeSteps, executor: Executor, box: Box) -> Samples:
    """Time the programs of `request` in interleaved rounds in this process, all at its position."""
    programs = [arm.program for arm in request.arms]
    memory = Memory(programs, Checkpoint.open(request.checkpoint).tensor, constants(request.constants))
    memory.furnish()
    memory.positions.fill_(request.position)
    libraries, arms = dict[str, Library](), list[_StepArm]()
    for index, program in enumerate(programs):
        box.write(index)  # loading a library runs its constructors
        libraries |= {
            source: Library(path)
            for source, path in called([program], request.binaries).items()
            if source not in libraries
        }
        arms.append(_StepArm(Step(program, memory, executor, libraries), memory, request.position, box, index))
    return timed(arms, request, box, quantum_ns())


class _StepArm:
    """One program. The position is put back before every interval: all arms attend over the same context."""

    def __init__(self, step: Step, memory: Memory, position: int, box: Box, index: int) -> None:
        self._step, self._memory, self._position, self._box, self._index = step, memory, position, box, index

    def interval(self, batch: int) -> Interval:
        """`batch` steps; one more runs before them, so that caches hold what this arm leaves."""
        self._box.write(self._index)
        settle()
        self._memory.positions.fill_(self._position)
        self._memory.tokens.zero_()
        self._step.time(1, 1)
        return interval(lambda: self._step.time(batch, 1)[0])


def constants(path: str) -> dict[str, torch.Tensor]:
    """The tables that capture made, by name."""
    from safetensors.torch import load_file

    return dict(load_file(path))


def called(programs: Sequence[Program], binaries: Sequence[tuple[str, str]]) -> dict[str, Path]:
    """Path of the binary of every source that the programs call."""
    paths = dict(binaries)
    sources = {call.source for program in programs for call in program.calls if isinstance(call, NativeCall)}
    return {source: Path(paths[source]) for source in sorted(sources)}
