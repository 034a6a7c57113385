"""Whole prompts as arms: run in chunks of some length or in decode steps, over the real weights and side by side.

Each arm runs a prompt just as generation does, from the start of the cache. Every interval draws a prompt anew, so that
nothing is repeated.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import torch

from agentcompile.checkpoint import Checkpoint
from agentcompile.ir.program import Program
from agentcompile.ir.timing import Interval, Samples
from agentcompile.ir.trial import Check
from agentcompile.measure.clock import Others, interval, quantum_ns, settle
from agentcompile.runtime.generator import SequenceGenerator
from agentcompile.runtime.memory import Memory
from agentcompile.runtime.native import Executor, Library
from agentcompile.runtime.step import HostStep
from agentcompile.worker.box import NOTHING, Box
from agentcompile.worker.logits import ALLOWED, CHECK, apart
from agentcompile.worker.probes import Probes
from agentcompile.worker.protocol import Feeding, TimePrompts, WrongOutput
from agentcompile.worker.state import ProcessWatch, WatchedArm, require
from agentcompile.worker.steps import called, constants
from agentcompile.worker.timing import limited, timed

_WARM = 16  # tokens of a prompt that run before an interval, so that threads are awake and code is cached


def time_prompts(request: TimePrompts, executor: Executor, box: Box, probes: Probes) -> Samples:
    """Time the arms of `request` in interleaved rounds in this process.

    Raises:
        WrongOutput: an arm's logits are not those of the first arm with as many tokens, or it leaves the process
            changed.
    """
    begin = time.monotonic()
    programs = [request.decode, *(program for _, program in request.prefill)]
    memory = Memory(programs, Checkpoint.open(request.checkpoint).tensor, constants(request.constants))
    memory.furnish()
    watch = ProcessWatch(probes)
    libraries = _loaded(request, watch, box)
    arms = _arms(request, memory, executor, libraries, box)
    _compare(arms, request.seed)
    watch.rebase()
    watched = [WatchedArm(arm, watch, at, checked=bool(libraries)) for at, arm in enumerate(arms)]
    samples = timed(watched, limited(request, begin), box, quantum_ns(), Others())
    _compare(arms, request.seed + len(arms))
    box.write(NOTHING)
    return samples


def _loaded(request: TimePrompts, watch: ProcessWatch, box: Box) -> dict[str, Library]:
    """Load the kernels that the arms call; an arm whose kernel does harm by being loaded is the one that did it."""
    libraries: dict[str, Library] = {}
    steps = next((at for at, feeding in enumerate(request.arms) if not feeding.chunk), 0)
    chunks = [(at, _chunk_program(request, feeding)) for at, feeding in enumerate(request.arms)]
    for at, program in (*chunks, (steps, request.decode)):  # which every arm is bound to
        box.write(at)  # loading a library runs its constructors
        for source, path in called([program], request.binaries).items():
            if source not in libraries:
                libraries[source] = Library(path)
                require(watch, at)
    return libraries


def _chunk_program(request: TimePrompts, feeding: Feeding) -> Program:
    """Return the program that runs the chunks of an arm."""
    length = feeding.chunk or request.prefill[0][0]
    return next(program for longest, program in request.prefill if length <= longest)


def _compare(arms: Sequence[_PromptArm], seed: int) -> None:
    """Compare what the arms make of one prompt of each length with what the first of as many tokens makes of it.

    Raises:
        WrongOutput: an arm's logits are others.
    """
    expected: dict[int, torch.Tensor] = {}
    for arm in arms:
        found = arm.run(arm.drawn(seed)).float().clone()
        arm.compare(found, expected.setdefault(arm.feeding.tokens, found))


def _arms(
    request: TimePrompts, memory: Memory, executor: Executor, libraries: Mapping[str, Library], box: Box
) -> list[_PromptArm]:
    decode = HostStep(request.decode, memory, executor, libraries)
    steps: dict[int, HostStep] = {}
    found = []
    for at, feeding in enumerate(request.arms):
        length = feeding.chunk or request.prefill[0][0]
        if length not in steps:
            steps[length] = HostStep(_chunk_program(request, feeding), memory, executor, libraries, capacity=length)
        chunks, stepped = steps[length], 0 if feeding.chunk else feeding.tokens
        generator = SequenceGenerator(request.info, decode, chunks, memory, None, steps_up_to=stepped)
        found.append(_PromptArm(generator, feeding, request.info.vocab, request.seed + at, box, at))
    return found


class _PromptArm:
    """A prompt in one way."""

    def __init__(
        self, generator: SequenceGenerator, feeding: Feeding, vocab: int, seed: int, box: Box, index: int
    ) -> None:
        self.feeding = feeding
        self._generator, self._vocab, self._box, self._index = generator, vocab, box, index
        self._draw = torch.Generator().manual_seed(seed)

    def run(self, ids: list[int]) -> torch.Tensor:
        """Run a prompt; return the logits of its last token, [vocab], until the next one runs."""
        self._box.write(self._index)
        return self._generator.prefill(ids)

    def drawn(self, seed: int | None = None) -> list[int]:
        """Draw a prompt over the whole vocabulary; for a `seed`, arms of as many tokens draw the same."""
        draw = self._draw if seed is None else torch.Generator().manual_seed(seed)
        found: list[int] = torch.randint(self._vocab, (self.feeding.tokens,), generator=draw).tolist()
        return found

    def interval(self, batch: int) -> Interval:
        """Time `batch` prompts, each drawn anew."""
        prompts = [self.drawn() for _ in range(batch)]
        settle()
        self.run(self.drawn()[:_WARM])

        def run() -> int:
            begin = time.perf_counter_ns()
            for ids in prompts:
                self._generator.prefill(ids)
            return time.perf_counter_ns() - begin

        return interval(run)

    def compare(self, found: torch.Tensor, expected: torch.Tensor) -> None:
        """Compare logits with those of another arm that ran the same prompt.

        Raises:
            WrongOutput: they are further apart than `ALLOWED`, or not finite where the others are.
        """
        share = apart(found, expected)
        if not share <= ALLOWED:
            text = f"logits are {share:.3g} of their size away from those of another way to run the prompt"
            raise WrongOutput(self._index, Check(name=CHECK, ok=False, measured=share, allowed=ALLOWED, detail=text))
