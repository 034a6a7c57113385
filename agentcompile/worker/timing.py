"""The arms of a timed comparison on the CPU: kernels run by the executor, PyTorch from Python, as in the runtime."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import torch

from agentcompile.ir.target import Target
from agentcompile.ir.timing import Interval, Samples
from agentcompile.ir.trial import Check
from agentcompile.measure.clock import Others, core_ns, interval, quantum_ns, settle
from agentcompile.measure.rounds import Arm, run_rounds
from agentcompile.ops.reference import Interpreter
from agentcompile.runtime.library import bind as bind_library
from agentcompile.runtime.native import Call, Executor, Library, NativeProgram
from agentcompile.worker.activations import WINDOWS, HeldLaunch
from agentcompile.worker.box import NOTHING, Box
from agentcompile.worker.inputs import Inputs
from agentcompile.worker.launch import chunk_tokens, workspaces
from agentcompile.worker.outputs import Witness
from agentcompile.worker.protocol import Implementation, Reference, Time, TimePrompts, Timer, TimeSteps, WrongOutput
from agentcompile.worker.state import ProcessWatch, WatchedArm, require

Request = TypeVar("Request", Time, TimeSteps, TimePrompts)
"""A request that is answered by samples."""
_LEAST_S = 1e-3  # a limit of 0 would mean any number of seconds
_WARM = 4
"""The fraction of a batch, one in `_WARM`, run before each interval: threads awake, code and activations cached."""
_CLOCK_NS, _LONGEST = 25_000_000, 256
"""The clock is checked in a sample of about this length, and of so many batches at most."""
_SLOW, _OWN_NS, _TRIES = 1.5, 12_000_000, 3
"""What that sample took of a core is at most this multiple of what the clock shows, and a tick; the least counts."""


def time_arms(request: Time, executor: Executor, target: Target, box: Box, watch: ProcessWatch) -> Samples:
    """Time all arms of `request` in interleaved rounds in this process.

    Raises:
        WrongOutput: an arm's outputs are wrong, or after it the process differs from what `watch` saw.
    """
    inputs = Inputs(request, target)
    arms: list[_KernelArm | _TorchArm] = []
    for index, arm in enumerate(request.arms):
        box.write(index)
        if isinstance(arm, Reference):
            arms.append(_TorchArm(inputs, box, index, Interpreter(request.region.body), checked=False))
        elif arm.source.language == "library":
            call = bind_library(arm.source.call, request.region, arm.source.settings)
            arms.append(_TorchArm(inputs, box, index, call, checked=True))
        else:
            arms.append(_KernelArm(inputs, box, index, arm, executor))
            require(watch, index)
    native = [isinstance(one, _KernelArm) for one in arms]
    watched = [WatchedArm(one, watch, at, checked=own) for at, (one, own) in enumerate(zip(arms, native, strict=True))]
    samples = timed(watched, request, box, quantum_ns(), Others())
    for index, kernel in enumerate(arms):
        box.write(index)
        if isinstance(kernel, _KernelArm):
            kernel.finish(samples.batch)
            if request.claim >= request.policy.claim:  # a search only chooses what is timed again
                kernel.check_clock(samples.batch)
    box.write(NOTHING)
    return samples


def limited(request: Request, begin: float) -> Request:
    """Return a request with what is left of its limit since `begin`: loading takes seconds where others run."""
    if not request.seconds:
        return request
    return replace(request, seconds=max(request.seconds - (time.monotonic() - begin), _LEAST_S))


def timed(arms: Sequence[Arm], request: Timer, box: Box, quantum: int, others: Others | None = None) -> Samples:
    """Run rounds of `arms` as `request` asks; `quantum` is the timer's step in ns, `others` measures processes."""
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
    return replace(samples, others=round(others.share(), 3)) if others is not None else samples


class _KernelArm:
    """A compiled candidate; the launches of a batch walk through the slots, the windows and the outputs."""

    def __init__(self, inputs: Inputs, box: Box, index: int, made: Implementation, executor: Executor) -> None:
        self._inputs, self._box, self._index, self._executor = inputs, box, index, executor
        library = Library(Path(made.binary.path))
        self._workspaces = workspaces(made.source) | chunk_tokens(inputs.region)
        self._launches = [
            (library.entry(launch.entry), [self._place(name) for name in launch.arguments])
            for launch in made.source.launches
        ]
        self._witness, self._last, self._usual_ns = Witness(inputs, dict(made.layouts), index), False, 0

    def interval(self, batch: int) -> Interval:
        self._box.write(self._index)
        warm = max(1, batch // _WARM)
        self._inputs.windows.redraw(batch + warm)
        warm_up, _, _ = self._program(warm, batch)
        program, first, seen = self._program(batch, 0)
        settle()
        warm_up.run()
        found = interval(lambda: program.time(1, 1)[0])
        if self._last or self._witness.due:
            self._witness.examine(seen, first, batch)
        return found

    def finish(self, batch: int) -> None:
        """Time one more sample, which is always compared."""
        self._last = True
        self._usual_ns = self.interval(batch).ns

    def check_clock(self, batch: int) -> None:
        """Time a long sample beside the system's own count of what it took of a core.

        Raises:
            WrongOutput: the clock showed far less time than passed.
        """
        program, _, _ = self._program(batch, 0)
        repeat = max(1, min(math.ceil(_CLOCK_NS / max(self._usual_ns, 1)), _LONGEST))
        worst = math.inf
        for _ in range(_TRIES):
            before = sum(core_ns())
            ns = program.time(repeat, 1)[0]
            spent_ns = sum(core_ns()) - before
            worst = min(worst, spent_ns / (_SLOW * ns + _OWN_NS))
            if worst <= 1.0:
                return
        text = f"the launches took {spent_ns} ns of a core where the clock showed {ns} ns"
        raise WrongOutput(self._index, Check(name="clock", ok=False, measured=worst, allowed=1.0, detail=text))

    def _program(self, batch: int, window: int) -> tuple[NativeProgram, int, tuple[HeldLaunch, ...]]:
        """Return the launches from `window` on, the slot of the first, and those whose outputs are not overwritten."""
        first, count = self._inputs.take(batch), self._inputs.slots.count
        outputs, seen = self._inputs.outputs.assign(batch)
        calls = [
            Call(address=address, pointers=tuple([a + slot * b + shown * c + output * d for a, b, c, d in places]))
            for i, output in enumerate(outputs)
            for slot, shown in [((first + i) % count, (window + i) % WINDOWS)]
            for address, places in self._launches
        ]
        return NativeProgram(self._executor, calls), first, seen

    def _place(self, name: str) -> tuple[int, int, int, int]:
        if name in self._workspaces:
            return self._workspaces[name].data_ptr(), 0, 0, 0
        return self._inputs.place(name) if name else (0, 0, 0, 0)


class _TorchArm:
    """The captured body or a library call, called from Python as the runtime's fallback calls it."""

    def __init__(
        self,
        inputs: Inputs,
        box: Box,
        index: int,
        call: Callable[[Mapping[str, torch.Tensor]], dict[str, torch.Tensor]],
        *,
        checked: bool,
    ) -> None:
        self._inputs, self._box, self._index, self._call = inputs, box, index, call
        self._read: dict[int, dict[str, torch.Tensor]] = {}
        self._witness = Witness(inputs, {}, index) if checked else None
        self._made: dict[str, torch.Tensor] = {}

    def interval(self, batch: int) -> Interval:
        self._box.write(self._index)
        warm = max(1, batch // _WARM)
        self._inputs.windows.redraw(batch + warm)
        (warm_up, _), (inputs, first) = self._prepared(warm, batch), self._prepared(batch, 0)
        settle()
        self._run(warm_up)
        found = interval(lambda: self._run(inputs))
        if self._witness is not None and self._witness.due:
            slot, window = (first + batch - 1) % self._inputs.slots.count, (batch - 1) % WINDOWS
            self._witness.compare(self._made, window, slot, f"call {batch} of {batch} in a timed sample", last=True)
        return found

    def _run(self, inputs: list[dict[str, torch.Tensor]]) -> int:
        call = self._call
        begin = time.perf_counter_ns()
        for values in inputs:
            made = call(values)
        taken = time.perf_counter_ns() - begin
        self._made = made
        return taken

    def _prepared(self, batch: int, window: int) -> tuple[list[dict[str, torch.Tensor]], int]:
        first, count = self._inputs.take(batch), self._inputs.slots.count
        windows = self._inputs.windows
        return [{**self._slot((first + i) % count), **windows.at((window + i) % WINDOWS)} for i in range(batch)], first

    def _slot(self, slot: int) -> dict[str, torch.Tensor]:
        if slot not in self._read:
            self._read[slot] = self._inputs.read(slot)
        return self._read[slot]
