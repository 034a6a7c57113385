"""`agentcompile bench steps`: where a CUDA lock's decode step spends its time, beside what reading its bytes takes.

In: a lock. Out: the step by context, what overlapping launches and early reads buy, what each region adds to the step,
and the read ceiling measured in the same process, as a table and as one JSON file. All times are of graph replays.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from agentcompile.checkpoint import Checkpoint
from agentcompile.cli.render import columns
from agentcompile.errors import AgentCompileError
from agentcompile.evaluation.machine import evaluator_of
from agentcompile.evaluation.step_clock import binaries
from agentcompile.ir.codec import encode
from agentcompile.ir.program import NativeCall, Program
from agentcompile.ir.region import Region
from agentcompile.options import Options, resolve
from agentcompile.replay.open import Opened, open_lock
from agentcompile.runs.tables import Table
from agentcompile.runtime.device_step import DeviceStep, overlaps_launches
from agentcompile.runtime.driver import Module
from agentcompile.runtime.memory import Memory
from agentcompile.worker.gpu_timing import Stopwatch

from .figures.record import revision

_UNROLL = 4
_REPLAYS = 40
_POSITION = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One timed step: median over replays, and the bytes that it must read."""

    name: str
    ns: float
    bytes: int


def run(arguments: Sequence[str]) -> int:
    """Time a lock's decode step and write what was found as JSON."""
    parser = argparse.ArgumentParser(prog="agentcompile bench steps", description=__doc__)
    parser.add_argument("lock", type=Path)
    parser.add_argument("--model", default="", help="the checkpoint, when the lock does not find it")
    parser.add_argument("--positions", default="16,128,256,1024,2000", help="where in the cache, separated by commas")
    parser.add_argument("--out", type=Path, required=True, help="the JSON file")
    parser.add_argument("--trace", type=int, default=0, help="steps to run at the end without a graph, in NVTX ranges")
    asked = parser.parse_args(arguments)
    options = resolve({"model": asked.model} if asked.model else {}).options
    begun, opened = revision(), open_lock(asked.lock, options)
    if opened.here.device == "cpu":
        raise AgentCompileError(f"{asked.lock}: is a lock for a CPU", hint="compile with --target cuda:0 first")
    read = _ceiling(opened, options)
    bench = Bench(opened)
    positions = [int(text) for text in asked.positions.split(",")]
    by_position = [Row(name=str(at), ns=bench.time(bench.serving(at), at), bytes=bench.bytes(at)) for at in positions]
    at = min(_POSITION, opened.lock.model.context - 1)
    ladder = [
        Row(name=name, ns=bench.time(program, at, overlap), bytes=bench.bytes(at))
        for name, program, overlap in bench.ladder()
    ]
    whole = bench.time(bench.full, at)
    regions = [
        Row(name=region.name, ns=max(whole - bench.time(without, at), 0.0) / sites, bytes=region.cost.bytes)
        for region, without, sites in bench.without()
    ]
    by_batch = [
        Row(name=str(program.batch), ns=bench.time(program, at), bytes=bench.bytes(at)) for program in bench.batches
    ]
    found = {
        "format": 1,
        "command": f"agentcompile bench steps {asked.lock.name} --positions {asked.positions}",
        **begun,
        "machine": encode(opened.here.target),
        "model": opened.lock.model.name,
        "read_bytes_per_s": read,
        "weight_bytes": bench.bytes(0),
        "by_position": _rows(by_position, read),
        "by_batch": _rows(by_batch, read),
        "ladder": _rows(ladder, read),
        "regions": _rows(regions, read),
    }
    asked.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    bench.trace(asked.trace)
    for title, rows in (
        ("position", by_position),
        ("sequences", by_batch),
        ("launches", ladder),
        ("region, a site", regions),
    ):
        print("\n".join(_table(title, rows, read)), end="\n\n")
    return 0


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
        self.full = self.serving(_POSITION)
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


def _ceiling(opened: Opened, options: Options) -> float:
    with evaluator_of(opened.here, options.seed) as judge:
        return judge.ceiling().dram_bytes_per_s


def _rows(rows: Sequence[Row], read: float) -> list[dict[str, Any]]:
    return [
        {"name": row.name, "ns": round(row.ns), "bytes": row.bytes, "times_floor": row.ns / (1e9 * row.bytes / read)}
        for row in rows
    ]


def _table(title: str, rows: Sequence[Row], read: float) -> list[str]:
    cells = [
        (row.name, f"{row.ns / 1e3:.2f}", f"{row.bytes / 1e6:.1f}", f"{row.bytes / max(row.ns, 1):.0f}",
         f"{row.ns / (1e9 * row.bytes / read):.3f}")
        for row in rows
    ]  # fmt: skip
    heads = (title, "µs", "MB", "GB/s", "× of reading")
    return columns(Table(heads=heads, rows=cells, right=(1, 2, 3, 4)))
