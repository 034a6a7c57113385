"""The arms of a timed comparison on a CUDA device: every batch is a captured graph, timed by events around its replay.

A graph walks through the rotated weights from the first on. When they are to come from DRAM, other memory is read
before it until nothing of them is left in the cache. Before the first event the device is kept busy until everything is
queued, so that no interval contains delays of the host.

Contexts of other processes and ours take turns on a GPU, of about two milliseconds each. No interface tells a process
how long its kernels waited for it, so it is measured: a row of equal kernels that only count cycles takes longer than
as many of them alone when others' turns lie in between.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from agentcompile.ir.target import Target
from agentcompile.ir.timing import Interval, Samples
from agentcompile.measure.policy import POLICY, Policy
from agentcompile.measure.rounds import Arm
from agentcompile.ops.reference import Interpreter
from agentcompile.runtime.device_step import DeviceStep, captured, enqueued, first_chunk, overlaps_launches
from agentcompile.runtime.driver import Module
from agentcompile.runtime.library import bind as bind_library
from agentcompile.runtime.memory import Memory
from agentcompile.worker.activations import WINDOWS, HeldLaunch
from agentcompile.worker.box import NOTHING, Box
from agentcompile.worker.gpu_launch import bind_all
from agentcompile.worker.inputs import Inputs
from agentcompile.worker.launch import workspaces
from agentcompile.worker.logits import Probe, live
from agentcompile.worker.outputs import Witness
from agentcompile.worker.protocol import Implementation, Reference, Time, TimeSteps
from agentcompile.worker.steps import called
from agentcompile.worker.timing import timed

QUANTUM_NS = 500
"""The resolution of an event (CUDA Runtime API, cudaEventElapsedTime)."""
_STEP_QUANTUM_NS = 1_000
"""The time quantum for whole steps: a sample is then several graphs long, which averages out the error of one."""
_HOLD_CYCLES = 200_000
"""The first hold, about 0.1 ms: longer than the host needs to queue an event, a graph of some launches and an event."""
_MOST_CYCLES = 20_000_000
"""The longest hold, about 10 ms: longer than the host needs for graphs of tens of thousands of launches."""
_CYCLES_PER_NS = 3.5
"""The clock rate that a hold is computed with, above any multiprocessor's, so that no hold is shorter than meant."""
TURN_NS = 2_000_000
"""How long a context runs while others wait: the default of the driver's time slices."""
_CYCLES = 400_000  # the cycles of one kernel: about 0.25 ms, so that one alone fits into a turn
_ALONE, _ROW = 4, 24
"""How many kernels are timed alone (the shortest counts), and how many in a row (which last three turns)."""


def gpu_time_arms(request: Time, target: Target, box: Box) -> Samples:
    """Time all arms of `request` in interleaved rounds in this process."""
    inputs, turns = Inputs(request, target, "cuda"), Turns()
    # Device times contain no wait for a core, so a slow arm needs no long samples that a fast one must match.
    own = replace(request.policy, max_interval_ns=request.policy.max_device_interval_ns)
    request = replace(request, policy=taking_turns(request.policy) if turns.shared else own)
    arms: list[Arm] = []
    for index, arm in enumerate(request.arms):
        box.write(index)
        if isinstance(arm, Reference):
            arms.append(_DeviceTorchArm(inputs, box, index, Interpreter(request.region.body)))
        elif arm.source.language == "library":
            call = bind_library(arm.source.call, request.region, arm.source.settings)
            arms.append(_DeviceTorchArm(inputs, box, index, call))
        else:
            arms.append(_DeviceKernelArm(inputs, box, index, arm, target.arch))
    return replace(timed(arms, request, box, QUANTUM_NS), turn_ns=turns.turn_ns())


def gpu_time_steps(request: TimeSteps, memory: Memory, target: Target, box: Box) -> Samples:
    """Time programs in interleaved rounds: decode steps at the request's position, chunks at the start of the cache."""
    programs = request.programs
    modules = dict[str, Module]()
    overlap = overlaps_launches(target.arch)
    steps = []
    for index, program in enumerate(programs):
        box.write(index)
        paths = called([program], request.binaries)
        modules |= {source: Module(path) for source, path in paths.items() if source not in modules}
        bind = first_chunk if program.phase == "prefill" else DeviceStep
        steps.append(bind(program, memory, modules, overlap=overlap))
    arms = [_DeviceStepArm(step, box, index, request.unroll) for index, step in enumerate(steps)]
    fed_tokens = memory.tokens[: programs[0].batch]  # a prefill chunk does not read them
    runs = [arm.once for arm in arms]
    vocab = steps[0].logits.shape[-1]
    live(memory, programs, runs, vocab=vocab, seed=request.seed)
    memory.positions.fill_(request.position)
    probe = Probe(fed_tokens, programs, runs, vocab=vocab, seed=request.seed)
    probe.check("before")
    turns = Turns()
    samples = timed([_Fresh(arm, fed_tokens, probe) for arm in arms], request, box, _STEP_QUANTUM_NS)
    probe.check("after")
    box.write(NOTHING)
    return replace(samples, turn_ns=turns.turn_ns())


class DeviceTimer:
    """A timer of work queued on the device, which is kept busy until all is queued: host delays are not timed."""

    def __init__(self) -> None:
        self._cycles = _HOLD_CYCLES

    def elapsed(self, graphs: Callable[[], None], before: Callable[[], None] | None = None) -> Interval:
        """Return the time of what `graphs` queues behind `before`; both run again, held longer, for a slow host."""
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
            wanted = min(round(2 * queued_ns * _CYCLES_PER_NS), _MOST_CYCLES)
            if queued_ns < self._cycles / _CYCLES_PER_NS or self._cycles >= _MOST_CYCLES:
                # After one delay of the host, holds shrink again: on a shared GPU a long one would fill every turn.
                self._cycles = max(_HOLD_CYCLES, wanted, self._cycles // 2)
                return Interval(ns=max(round(begin.elapsed_time(end) * 1e6), 1))
            self._cycles = wanted


class _Graphs(ABC):
    """An arm whose batches are graphs, kept by batch size.

    Every graph starts at the first slot, so that few are captured; what the last one read is out of the cache by then,
    or meant to be in it. Activations are drawn anew before every replay.
    """

    def __init__(self, inputs: Inputs, box: Box, index: int) -> None:
        self._inputs, self._box, self._index = inputs, box, index
        self._samples: dict[int, tuple[torch.cuda.CUDAGraph, tuple[HeldLaunch, ...]]] = {}
        """Batches as graphs, with the launches whose outputs are not overwritten."""
        self._watch = DeviceTimer()

    def interval(self, batch: int) -> Interval:
        self._box.write(self._index)
        if batch not in self._samples:
            outputs, seen = self._inputs.outputs.assign(batch)
            body = self._body(outputs)
            self._samples[batch] = captured(body, before=self._body(outputs[:1])), seen
        graph, seen = self._samples[batch]
        self._inputs.windows.redraw(batch)
        torch.cuda.synchronize()  # on a shared GPU the sample then begins with a new turn
        found = self._watch.elapsed(graph.replay, before=self._inputs.cool)
        self._examine(seen, batch)
        return found

    @abstractmethod
    def _body(self, outputs: list[int]) -> Callable[[], None]:
        """Return what launches the arm once for each of `outputs`, on the slots and windows from the first on."""

    @abstractmethod
    def _examine(self, seen: Sequence[HeldLaunch], batch: int) -> None:
        """Check the outputs that the sample left."""

    def _turn(self, batch: int) -> list[tuple[int, int]]:
        return [(i % self._inputs.slots.count, i % WINDOWS) for i in range(batch)]


class _DeviceKernelArm(_Graphs):
    """A compiled candidate as an arm."""

    def __init__(self, inputs: Inputs, box: Box, index: int, made: Implementation, arch: str) -> None:
        super().__init__(inputs, box, index)
        self._source, self._layouts = made.source, dict(made.layouts)
        self._module = Module(Path(made.binary.path))
        self._workspaces = {name: tensor.cuda() for name, tensor in workspaces(made.source).items()}
        self._overlap = overlaps_launches(arch)
        self._witness = Witness(inputs, self._layouts, index)

    def _body(self, outputs: list[int]) -> Callable[[], None]:
        turn = zip(self._turn(len(outputs)), outputs, strict=True)
        buffers = [
            {**self._inputs.buffers(slot, self._layouts, window, output), **self._workspaces}
            for (slot, window), output in turn
        ]
        inputs = self._inputs
        rotated = sorted(inputs.rotated)
        calls = bind_all(self._source, inputs.region, self._module, buffers, rotated=rotated, overlap=self._overlap)
        launches = [enqueued(call) for call in calls]

        def body() -> None:
            for launch in launches:
                launch()

        return body

    def _examine(self, seen: Sequence[HeldLaunch], batch: int) -> None:
        if self._witness.due:
            self._witness.examine(seen, 0, batch)


class _DeviceTorchArm(_Graphs):
    """The captured body or a library call as an arm, captured in a graph as the runtime's fallback is."""

    def __init__(
        self,
        inputs: Inputs,
        box: Box,
        index: int,
        call: Callable[[Mapping[str, torch.Tensor]], dict[str, torch.Tensor]],
    ) -> None:
        super().__init__(inputs, box, index)
        self._call = call

    def _body(self, outputs: list[int]) -> Callable[[], None]:
        inputs, call = self._inputs, self._call
        values = [{**inputs.read(slot), **inputs.windows.at(window)} for slot, window in self._turn(len(outputs))]

        def body() -> None:
            for one in values:
                call(one)

        return body

    def _examine(self, seen: Sequence[HeldLaunch], batch: int) -> None:
        """Check nothing: PyTorch is the reference."""


class _DeviceStepArm:
    """One program, at the position that memory holds, or a prefill chunk where it was bound.

    A step is timed as one of several in a row, as generation runs it, after one that is not timed: alone between other
    arms' steps the same kernels were measured to take six percent less.
    """

    def __init__(self, step: DeviceStep, box: Box, index: int, unroll: int) -> None:
        self._box, self._index, self._unroll = box, index, unroll
        self._step, self._one, self._some = step, step.graph(), step.graph(unroll)
        self._watch = DeviceTimer()

    def once(self) -> torch.Tensor:
        self._box.write(self._index)
        self._one.replay()
        return self._step.logits

    def interval(self, batch: int) -> Interval:
        self._box.write(self._index)

        def steps() -> None:
            for _ in range(batch):
                self._some.replay()

        found = self._watch.elapsed(steps, before=self._one.replay)
        return replace(found, ns=max(round(found.ns / self._unroll), 1))


class _Fresh:
    """A step's arm; each of its samples begins with tokens that no step has read."""

    def __init__(self, arm: _DeviceStepArm, tokens: torch.Tensor, probe: Probe) -> None:
        self._arm, self._tokens, self._probe = arm, tokens, probe

    def interval(self, batch: int) -> Interval:
        self._tokens.copy_(self._probe.fresh())
        return self._arm.interval(batch)


def taking_turns(policy: Policy) -> Policy:
    """Return the policy for a shared GPU: a sample, even doubled, fits into a turn; one with others' is retaken."""
    return replace(policy, max_interval_ns=TURN_NS // 3, retaken_ns=policy.max_interval_ns)


class Turns:
    """The use of the current GPU by other processes, measured when this is made and when it is asked."""

    def __init__(self) -> None:
        self._seen = _share()

    @property
    def shared(self) -> bool:
        """Whether others were seen to use the GPU."""
        return self._seen > POLICY.others_share

    def turn_ns(self) -> int:
        """Measure again and return how long, in ns, the GPU is ours at a time; 0 where no other process uses it."""
        self._seen = max(self._seen, _share())
        return TURN_NS if self.shared else 0


def _share() -> float:
    alone_ms = min(_spun_ms(1) for _ in range(_ALONE))
    return max(1.0 - _ROW * alone_ms / _spun_ms(_ROW), 0.0)


def _spun_ms(kernels: int) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    begin.record()
    for _ in range(kernels):
        torch.cuda._sleep(_CYCLES)  # type: ignore[no-untyped-call]
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end))
