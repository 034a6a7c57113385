"""Timing of a CUDA lock's decode step on the device, whole and in parts, by graph replays."""

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
from agentcompile.replay.open import OpenedLock
from agentcompile.runtime.device_step import DeviceStep, overlaps_launches
from agentcompile.runtime.driver import Module
from agentcompile.runtime.memory import Memory
from agentcompile.worker.gpu_timing import DeviceTimer

_UNROLL = 4
_REPLAYS = 40
POSITION = 256
"""The default position in the KV cache at which a step is timed."""


class Bench:
    """A lock's decode programs on the device, ready to be timed whole and in parts."""

    def __init__(self, opened: OpenedLock) -> None:
        here, captured = opened.here, opened.model.captured
        torch.cuda.set_device(here.device)
        sources = {job.source.digest: job.source for job in opened.jobs if job.source.language != "library"}
        built = binaries(here, sources, sorted(sources))
        self._modules = {digest: Module(Path(binary.path)) for digest, binary in built.items()}
        self._alone = opened.alone
        self.batches = [program for regime, program in opened.decode if regime.batch > 1]
        """Programs for several sequences; their bytes are counted as for one, since sequences share the weights."""
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
        """Return the program of the plan that serves a step at `position`."""
        return next((one for regime, one in self._alone if position < regime.context[1]), self._alone[-1][1])

    def bytes(self, position: int) -> int:
        """Return the bytes that a step at `position` must read: weights once and the KV cache up to there.

        Embedding and position tables are left out, since a step reads a row of each.
        """
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
        """Return the median time of a step of `program` at `position` in ns."""
        self._memory.positions.fill_(position)
        self._memory.tokens.fill_(1)
        step = DeviceStep(program, self._memory, self._modules, overlap=overlap and self._overlap)
        graph = step.graph(_UNROLL)
        watch = DeviceTimer()
        return statistics.median(watch.elapsed(graph.replay).ns / _UNROLL for _ in range(_REPLAYS))

    def trace(self, steps: int) -> None:
        """Run steps launch by launch for `nsys profile --trace=cuda,nvtx`, each region in its NVTX range."""
        names = {id: region.name for id, region in self._regions.items()}
        step = DeviceStep(self.full, self._memory, self._modules, overlap=self._overlap)
        for _ in range(steps):
            step.trace(names)
        torch.cuda.synchronize()

    def ladder(self) -> Iterator[tuple[str, Program, bool]]:
        """Yield name, program and overlap of the same launches in a plain graph, overlapped, and with early reads."""
        calls = [
            replace(call, overlaps=call.overlaps and not call.launch.early) if isinstance(call, NativeCall) else call
            for call in self.full.calls
        ]
        yield "one after another", self.full, False
        yield "overlapped", replace(self.full, calls=tuple(calls)), True
        yield "overlapped, with early reads", self.full, True

    def without(self) -> Iterator[tuple[Region, Program, int]]:
        """Yield every region of the plan with the program without its launches and the number of its sites."""
        for id, region in self._regions.items():
            sites = sum(call.region == id for call in self.full.calls)
            if sites:
                left = tuple(call for call in self.full.calls if call.region != id)
                yield region, replace(self.full, calls=left), sites


def _first(program: Program, call: NativeCall) -> Any:
    """Return the first launch of the call's source: a region of several launches counts its weights only there."""
    return next(one.launch for one in program.calls if isinstance(one, NativeCall) and one.source == call.source)
