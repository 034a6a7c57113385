"""Whole steps as arms: programs bound to the real weights, timed beside one another.

Decode steps run at one position, prefill chunks from the start of the cache.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from agentcompile.checkpoint import Checkpoint
from agentcompile.ir.graph import concrete
from agentcompile.ir.program import CHUNK, NativeCall, Program
from agentcompile.ir.timing import Interval, Samples
from agentcompile.measure.clock import Others, interval, quantum_ns, settle
from agentcompile.measure.rounds import FAR
from agentcompile.runtime.memory import Memory
from agentcompile.runtime.native import Executor, Library
from agentcompile.runtime.step import HostStep
from agentcompile.worker.box import NOTHING, Box
from agentcompile.worker.logits import Probe, live, reference_of
from agentcompile.worker.probes import Probes
from agentcompile.worker.protocol import TimeSteps
from agentcompile.worker.state import ProcessWatch, WatchedArm, require
from agentcompile.worker.timing import limited, timed

_ROWS = 1024  # how many steps of a sample read tokens of their own


def time_steps(request: TimeSteps, executor: Executor, box: Box, probes: Probes) -> Samples:
    """Time the programs of `request` in interleaved rounds in this process: steps at its position, chunks at 0.

    Raises:
        WrongOutput: an arm's logits are not the reference's, or it leaves the process changed.
    """
    begin, programs = time.monotonic(), request.programs
    memory = Memory(programs, Checkpoint.open(request.checkpoint).tensor, constants(request.constants))
    memory.furnish()
    memory.positions.fill_(request.position)
    watch = ProcessWatch(probes)
    libraries = dict[str, Library]()
    for index, program in enumerate(programs):
        box.write(index)  # loading a library runs its constructors
        for source, path in called([program], request.binaries).items():
            if source not in libraries:
                libraries[source] = Library(path)
                require(watch, index)
    fed = _fed(programs[0], memory)
    chunk = None if programs[0].phase == "decode" else fed
    steps = [HostStep(one, memory, executor, libraries, fed[0].numel() if chunk else 1, chunk) for one in programs]
    vocab = concrete(next(b.shape for b in programs[0].buffers if b.name == programs[0].logits))[-1]

    def once(index: int) -> torch.Tensor:
        box.write(index)
        memory.positions.fill_(request.position)
        return steps[index].again()

    runs = [functools.partial(once, index) for index in range(len(steps))]
    box.write(reference_of(programs))
    live(memory, programs, [step.again for step in steps], vocab=vocab, seed=request.seed)
    fed_tokens = fed[0]
    probe = Probe(fed_tokens, programs, runs, vocab=vocab, seed=request.seed)
    probe.check("before")
    watch.rebase()
    arms, end = [], begin + (request.seconds or math.inf)
    for index, step in enumerate(steps):
        kernels = any(isinstance(call, NativeCall) for call in step.program.calls)
        arm = _StepArm(step, memory, request, box, index, probe, probes, fed_tokens, end)
        arms.append(WatchedArm(arm, watch, index, checked=kernels))
    samples = timed(arms, limited(request, begin), box, quantum_ns(), Others())
    probe.check("after")
    box.write(NOTHING)
    return samples


def _fed(program: Program, memory: Memory) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what the programs read: memory's tokens and positions, or those of the longest chunk."""
    if program.phase == "decode":
        return memory.tokens[: program.batch], memory.positions[: program.batch]
    count = min([CHUNK, *(state.shape[2] for state in memory.states())])
    return torch.zeros(count, dtype=torch.int64), torch.arange(count)


class _StepArm:
    """One program as an arm.

    The position is restored before every interval: all arms attend over the same context. Every step of an interval
    reads another token, drawn for it, so that no step repeats the work of one before it.
    """

    def __init__(
        self,
        step: HostStep,
        memory: Memory,
        request: TimeSteps,
        box: Box,
        index: int,
        probe: Probe,
        probes: Probes,
        tokens: torch.Tensor,
        end: float,
    ) -> None:
        """Time is up at `end`, in seconds of the monotonic clock."""
        self._end, self._long_ns, self._last_ns = end, request.policy.max_interval_ns, probe.known_ns(index)
        self._step, self._memory, self._position, self._box, self._index = step, memory, request.position, box, index
        self._probe = probe
        self._tokens = tokens
        self._table = torch.zeros(_ROWS, self._tokens.numel(), dtype=torch.int64)
        self._at = torch.tensor([0, self._tokens.numel(), _ROWS])
        self._stir = probes.call("stir", [tokens, self._table, self._at])

    def interval(self, batch: int) -> Interval:
        """Time `batch` steps; one more runs before them, so that caches hold what this arm leaves.

        A long step leaves nothing in the caches that its own beginning finds: it goes without when time is up, and a
        very long one always.
        """
        self._box.write(self._index)
        most_ns = FAR * self._long_ns if time.monotonic() <= self._end else self._long_ns
        warm = int(self._last_ns <= most_ns)
        compared = self._draw(warm + batch)
        settle()
        self._memory.positions.fill_(self._position)
        if warm:
            self._step.time(1, 1, self._stir)
        found = interval(lambda: self._step.time(batch, 1, self._stir)[0])
        self._last_ns = found.ns // batch
        if compared >= 0:
            self._probe.compare(self._index, compared, self._step.logits, f"step {batch} of {batch} in a timed sample")
        return found

    def _draw(self, count: int) -> int:
        """Draw the tokens of so many steps; return the row of the probe that the last one reads, or -1."""
        for row in range(min(count, _ROWS)):
            self._table[row] = self._probe.fresh()
        at = self._probe.take(self._index)
        if at >= 0:
            self._table[(count - 1) % _ROWS] = self._probe.row(at)
        self._at[0] = 0
        self._tokens.copy_(self._table[0])
        return at


def constants(path: str) -> dict[str, torch.Tensor]:
    """Return the tables that capture made, by name."""
    from safetensors.torch import load_file

    return dict(load_file(path))


def called(programs: Sequence[Program], binaries: Sequence[tuple[str, str]]) -> dict[str, Path]:
    """Return the path of the binary of every source that the programs call."""
    paths = dict(binaries)
    sources = {call.source for program in programs for call in program.calls if isinstance(call, NativeCall)}
    return {source: Path(paths[source]) for source in sorted(sources)}
