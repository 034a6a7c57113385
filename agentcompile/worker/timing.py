"""The arms of a timed comparison: kernels through the executor, PyTorch through Python, as the runtime calls both."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from agentcompile.ir.graph import concrete
from agentcompile.ir.region import Port, Region
from agentcompile.ir.target import Target
from agentcompile.layouts import LAYOUTS
from agentcompile.measure.clock import interval, quantum_ns, settle
from agentcompile.measure.residency import Need, Slots, rotation_bytes
from agentcompile.measure.rounds import Arm, run_rounds
from agentcompile.measure.samples import Interval, Samples
from agentcompile.reference import Interpreter
from agentcompile.runtime.library import bind as bind_library
from agentcompile.runtime.native import Call, Executor, Library, Program
from agentcompile.worker.box import NOTHING, Box
from agentcompile.worker.launch import bind, workspaces
from agentcompile.worker.protocol import Implementation, Reference, Time

_TORCH = {
    "bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "fp64": torch.float64,
    "int64": torch.int64, "int32": torch.int32, "bool": torch.bool,
}  # fmt: skip
_WARM = 4
"""A quarter of a batch runs before each interval: threads awake, code and activations cached."""


def time_arms(request: Time, executor: Executor, target: Target, box: Box) -> Samples:
    """Time all arms of `request` in interleaved rounds in this process."""
    bench = _Bench(request, target)
    arms: list[Arm] = []
    for index, arm in enumerate(request.arms):
        box.write(index)
        if isinstance(arm, Reference):
            arms.append(_TorchArm(bench, box, index, Interpreter(request.region.body)))
        elif arm.source.language == "library":
            call = bind_library(arm.source.call, request.region, arm.source.settings)
            arms.append(_TorchArm(bench, box, index, call))
        else:
            arms.append(_KernelArm(bench, box, index, arm, executor))
    samples = run_rounds(
        arms,
        rounds=request.rounds,
        policy=request.policy,
        claim=request.claim,
        seed=request.seed,
        quantum_ns=quantum_ns(),
    )
    box.write(NOTHING)
    return samples


class _Bench:
    """The buffers that all arms share: rotated weights and states, and one copy of activations and outputs."""

    def __init__(self, request: Time, target: Target) -> None:
        self.region = request.region
        self._ports = {port.name: port for port in request.region.ports}
        rotated = [port for port in request.region.ports if port.role in ("weight", "state")]
        needs = tuple(_need(port, request) for port in rotated)
        self.rotated = {port.name for port in rotated}
        covers = rotation_bytes(request.residency, target, request.policy)
        self.slots = Slots(needs, covers_bytes=covers, seed=request.seed)
        generator = torch.Generator().manual_seed(request.seed + 1)
        self.fixed = {
            port.name: _activation(port, request.region, generator)
            for port in request.region.ports
            if port.name not in self.rotated
        }
        self._next = 0

    def take(self, batch: int) -> int:
        """Reserve the next `batch` slots for one interval, whichever arm it belongs to; returns the first."""
        first = self._next
        self._next = (first + batch) % self.slots.count
        return first

    def buffers(self, slot: int, layouts: Mapping[str, str]) -> dict[str, torch.Tensor]:
        """Every port's tensor with the weights of `slot`: flat when a layout packs it, shaped when row-major."""
        views = dict(self.fixed)
        for name in self.rotated:
            port = self._ports[name]
            layout, shape = LAYOUTS[layouts.get(port.family, "row-major")], concrete(port.shape)
            flat = self.slots.tensor(slot, name, layout.numel(shape))
            views[name] = flat.view(shape) if layouts.get(port.family, "row-major") == "row-major" else flat
        return views


class _KernelArm:
    """A compiled candidate. Launches of a batch walk through the slots; bound launches are kept by slot."""

    def __init__(self, bench: _Bench, box: Box, index: int, made: Implementation, executor: Executor) -> None:
        self._bench, self._box, self._index, self._executor = bench, box, index, executor
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
        first, count = self._bench.take(batch), self._bench.slots.count
        return Program(self._executor, [c for i in range(batch) for c in self._bound((first + i) % count)])

    def _bound(self, slot: int) -> list[Call]:
        if slot not in self._calls:
            buffers = {**self._bench.buffers(slot, self._layouts), **self._workspaces}
            self._calls[slot] = bind(self._source, self._library, buffers)
        return self._calls[slot]


class _TorchArm:
    """The captured body or a library call, called from Python as the runtime's fallback calls it."""

    def __init__(
        self,
        bench: _Bench,
        box: Box,
        index: int,
        call: Callable[[Mapping[str, torch.Tensor]], dict[str, torch.Tensor]],
    ) -> None:
        self._bench, self._box, self._index, self._call = bench, box, index, call
        self._inputs: dict[int, dict[str, torch.Tensor]] = {}

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
        first, count = self._bench.take(batch), self._bench.slots.count
        return [self._slot((first + i) % count) for i in range(batch)]

    def _slot(self, slot: int) -> dict[str, torch.Tensor]:
        if slot not in self._inputs:
            views = self._bench.buffers(slot, {})
            self._inputs[slot] = {p.name: views[p.name] for p in self._bench.region.ports if p.role != "output"}
        return self._inputs[slot]


def _need(port: Port, request: Time) -> Need:
    """Room for the largest layout that an arm wants; a matrix like an initialised one, a vector near one."""
    layouts = {"row-major"}
    for arm in request.arms:
        if isinstance(arm, Implementation):
            layouts.add(dict(arm.layouts).get(port.family, "row-major"))
    shape = concrete(port.shape)
    numel = max(LAYOUTS[name].numel(shape) for name in layouts)
    vector = sum(dim > 1 for dim in shape) < 2
    scale, offset = (0.1, 1.0) if vector and port.role == "weight" else (0.05, 0.0)
    return Need(name=port.name, numel=numel, dtype=_TORCH[port.dtype], scale=scale, offset=offset)


def _activation(port: Port, region: Region, generator: torch.Generator) -> torch.Tensor:
    """Inputs as a step has them: normal values, the last position of the regime's context, ids inside the table."""
    shape, dtype = concrete(port.shape), _TORCH[port.dtype]
    if port.role == "output":
        return torch.zeros(shape, dtype=dtype)
    if not dtype.is_floating_point:
        if port.family == "positions":
            return torch.full(shape, region.regime.context[1] - 1, dtype=dtype)
        rows = dict(region.dims).get("vocab") or _fewest_rows(region)
        return torch.randint(0, rows, shape, generator=generator, dtype=dtype)
    return torch.randn(shape, generator=generator).to(dtype)


def _fewest_rows(region: Region) -> int:
    return min((concrete(port.shape)[0] for port in region.ports if port.role == "weight" and port.shape), default=1)
