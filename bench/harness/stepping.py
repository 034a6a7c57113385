"""A CUDA lock's decode step on the device, whole and in parts, by graph replays."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from agentcompile.checkpoint import Checkpoint
from agentcompile.evaluation.step_clock import binaries
from agentcompile.ir.program import NativeCall, Program
from agentcompile.ir.region import Region
from agentcompile.replay.open import Opened
from agentcompile.runtime.device_step import DeviceStep, overlaps_launches
from agentcompile.runtime.driver import Module
from agentcompile.runtime.memory import Memory
from agentcompile.worker.gpu_timing import Stopwatch

_UNROLL = 4
_REPLAYS = 40
POSITION = 256
"""Where in the cache a step stands, unless somebody asks for another place."""


class Bench:
    """A lock's decode program on the device, whole and in parts."""

    def __init__(self, opened: Opened) -> None:
        here, captured = opened.here, opened.model.captured
        torch.cuda.set_device(here.device)
        sources = {job.source.digest: job.source for job in opened.jobs if job.source.language != "library"}
        built = binaries(here, sources, sorted(sources))
        self._modules = {digest: Module(Path(binary.path)) for digest, binary in built.items()}
        self._alone = opened.alone
        self.batches = [program for regime, program in opened.decode if regime.batch > 1]
        """Steps of several sequences; their bytes are given as for one, whose weights they share."""
        self.full = self.serving(POSITION)
        self._overlap = overlaps_launches(here.target.arch)
        self._memory = Memory(
            [one for _, one in opened.decode],
            Checkpoint.open(captured.checkpoint).tensor,
            captured.constants,
            here.device,
        )
        self._memory.furnish()
        self._regions: Mapping[str, Region] = {job.region.id: job.region for job in opened.jobs}

    def serving(self, position: int) -> Program:
        """The program of the plan that serves a step at `position`."""
        return next((one for regime, one in self._alone if position < regime.context[1]), self._alone[-1][1])

    def bytes(self, position: int) -> int:
        """Bytes that a step at `position` must read: weights once, a row of a table, and the cache up to there."""
        total = 0
        gathered = {"embedding", "position-table", "position-tables"}
        for call in self.full.calls:
            region = self._regions.get(call.region)
            if region is None or (isinstance(call, NativeCall) and call.launch is not _first(self.full, call)):
                continue
            if region.kind not in gathered:
                total += region.cost.weight_bytes
            for port in region.ports:
                if port.role == "state":
                    context = port.shape[2]
                    assert isinstance(context, int)
                    total += 2 * port.numel // context * position
        return total

    def time(self, program: Program, position: int, overlap: bool = True) -> float:
        """Median ns of a step."""
        self._memory.positions.fill_(position)
        self._memory.tokens.fill_(1)
        step = DeviceStep(program, self._memory, self._modules, overlap=overlap and self._overlap)
        graph = step.graph(_UNROLL)
        watch = Stopwatch()
        return statistics.median(watch.elapsed(graph.replay).ns / _UNROLL for _ in range(_REPLAYS))

    def trace(self, steps: int) -> None:
        """Run steps launch by launch, each region in an NVTX range of its name: `nsys profile --trace=cuda,nvtx`."""
        names = {id: region.name for id, region in self._regions.items()}
        step = DeviceStep(self.full, self._memory, self._modules, overlap=self._overlap)
        for _ in range(steps):
            step.trace(names)
        torch.cuda.synchronize()

    def ladder(self) -> Iterator[tuple[str, Program, bool]]:
        """The same launches, as a plain graph and with what lets them overlap."""
        calls = [
            replace(call, overlaps=call.overlaps and not call.launch.early) if isinstance(call, NativeCall) else call
            for call in self.full.calls
        ]
        yield "one after another", self.full, False
        yield "overlapped", replace(self.full, calls=tuple(calls)), True
        yield "overlapped, with early reads", self.full, True

    def without(self) -> Iterator[tuple[Region, Program, int]]:
        """For every region of the plan: the program without its launches, and how many sites that are."""
        for id, region in self._regions.items():
            sites = sum(call.region == id for call in self.full.calls)
            if sites:
                left = tuple(call for call in self.full.calls if call.region != id)
                yield region, replace(self.full, calls=left), sites


def _first(program: Program, call: NativeCall) -> Any:
    """The first launch of the call's source: a region of several launches reads its weights once."""
    return next(one.launch for one in program.calls if isinstance(one, NativeCall) and one.source == call.source)
