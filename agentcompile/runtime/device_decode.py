"""Generation on a CUDA device: decode steps and prompt chunks run as graphs; tokens stay on the device."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Mapping, Sequence

import torch

from agentcompile.backends import backend_of
from agentcompile.ir.program import Program
from agentcompile.ir.template import Source
from agentcompile.runtime.arena import Arena
from agentcompile.runtime.device_sampling import DeviceSampler
from agentcompile.runtime.device_step import DeviceStep, Unrolled, advance_source, captured, enqueued, on_device
from agentcompile.runtime.driver import Call, Module
from agentcompile.runtime.memory import Memory
from agentcompile.runtime.native import DecodedTokens, StopReason
from agentcompile.runtime.pieces import LENGTHS, PADDED, served
from agentcompile.runtime.regimes import Regimes
from agentcompile.runtime.sampling import Sampling, greatest


class DeviceDecode:
    """Decode steps of one program for one sequence, whose graphs are captured when they are first needed."""

    def __init__(
        self,
        step: DeviceStep,
        memory: Memory,
        advance: Module,
        sampler: tuple[Source, Module] | None,
        *,
        context: int,
        overlap: bool,
    ) -> None:
        """Bind the kernels and allocate the token history.

        `advance` holds the kernel of `advance_source`, `sampler` one of `sampler_source` for the step's logits.
        `context` is the number of cache slots. Without a sampler the host makes every draw that is not greedy.
        """
        self._step, self._memory, self.context = step, memory, context
        self.clock = None
        self._history = torch.zeros(context + 1, dtype=torch.int64, device=memory.device)
        pointers = [memory.position.data_ptr(), memory.token.data_ptr(), 0, self._history.data_ptr()]
        (launch,) = advance_source("").launches
        self._advance = enqueued(Call.of(advance, launch, pointers, dependent=overlap))
        self._logprobs = torch.zeros(context + 1, dtype=torch.float32, device=memory.device)
        self._sampler: DeviceSampler | None = None
        if sampler is not None:
            self._sampler = DeviceSampler(
                *sampler,
                logits=step.logits,
                token=memory.token,
                position=memory.position,
                logprobs=self._logprobs,
                overlap=overlap,
            )
        backend = backend_of(memory.device)
        self._tokens_here = torch.zeros(context + 1, dtype=torch.int64, pin_memory=backend.queued)
        self._logprobs_here = torch.zeros(context + 1, dtype=torch.float32, pin_memory=backend.queued)
        self._arrived = backend.event()
        self._ahead = 0  # the number of steps queued behind the last token that was returned
        self._still: torch.cuda.CUDAGraph | None = None
        self._moving = Unrolled(lambda steps, _: step.graph(steps, then=self._ended))
        self._drawing = self._noting = False

    def again(self) -> torch.Tensor:
        """Run one step on `memory.token` and `memory.position`, keep the position, return the logits [vocab]."""
        with on_device("a decode step"):
            if self._still is None:
                self._still = self._step.graph()
            self._still.replay()
        return self._step.logits

    def decoder(self, stop_ids: Sequence[int], context: int) -> DeviceLoop:
        """Return the decode loop that ends at any of `stop_ids` or after `context` slots."""
        return DeviceLoop(self, frozenset(stop_ids), min(context, self.context))

    def begin(self, sampling: Sampling, *, first: int, logprobs: bool) -> bool:
        """Set the sampling of the next tokens and drop steps queued ahead; False when a sampler is missing."""
        self._ahead = 0
        self._drawing, self._noting = not sampling.greedy or logprobs, logprobs
        if self._drawing and self._sampler is not None:
            self._sampler.set(sampling, first=first, logprobs=logprobs)
        return not self._drawing or self._sampler is not None

    def draw(self, logits: torch.Tensor, at: int, *, ahead: bool) -> tuple[list[int], list[float]] | None:
        """Choose position `at`'s token from logits [vocab] and stand behind it; None if they are unlike the step's."""
        own = self._step.logits
        if (logits.shape, logits.dtype, logits.device) != (own.shape, own.dtype, own.device):
            return None
        with on_device("the first token"):
            self._memory.position.fill_(at)
            if not self._drawing:
                self._memory.token.copy_(greatest(logits))
            elif logits.data_ptr() != own.data_ptr():
                own.copy_(logits)  # where the sampler reads
            self._ended()
            return self._told(at, 1, ahead=ahead)

    def advance(self, first: int, steps: int, *, ahead: bool) -> tuple[list[int], list[float]]:
        """Make `steps` tokens from position `first`, where memory stands, and return them with their log-probabilities.

        At least `steps` cache slots must be left. The log-probabilities are empty unless they were asked for. With
        `ahead` the next step is queued before the host waits for these, so that the device does not idle until the next
        call.
        """
        with on_device("decode steps"):
            self._moving.run(steps - self._ahead, self._drawing)
            return self._told(first, steps, ahead=ahead)

    def _told(self, first: int, count: int, *, ahead: bool) -> tuple[list[int], list[float]]:
        """Queue the next step if `ahead`, wait for the `count` tokens from position `first` on, and return them."""
        self._tokens_here[:count].copy_(self._history[first : first + count], non_blocking=True)
        if self._noting:
            self._logprobs_here[:count].copy_(self._logprobs[first : first + count], non_blocking=True)
        if self._arrived is not None:
            self._arrived.record()
        self._ahead = int(ahead)
        self._moving.run(self._ahead, self._drawing)
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._tokens_here[:count].tolist(), self._logprobs_here[:count].tolist() if self._noting else []

    def _ended(self) -> None:
        if self._drawing and self._sampler is not None:
            self._sampler.enqueue()
        self._advance()

    def rewind(self, token: int, position: int) -> None:
        """Set the position to `position` with `token` to be read next, and drop steps that were queued ahead."""
        self._ahead = 0
        self._memory.stand(token, position)


class DeviceLoop:
    """A decode loop without the host between steps; it looks for the end of the sequence after each call's steps."""

    def __init__(self, decode: DeviceDecode, stops: frozenset[int], context: int) -> None:
        self._decode, self._stops, self._context = decode, stops, context

    def begin(self, sampling: Sampling, *, first: int, logprobs: bool) -> bool:
        """Set the sampling for the next tokens; return False when the device cannot sample so."""
        return self._decode.begin(sampling, first=first, logprobs=logprobs)

    def draw(self, logits: torch.Tensor, at: int, *, more: bool) -> DecodedTokens | None:
        """Choose the token from a prompt's last logits [vocab], at `at`; None when they are not like the step's."""
        drawn = self._decode.draw(logits, at, ahead=more and at + 1 < self._context)
        return (
            None if drawn is None else DecodedTokens(tokens=tuple(drawn[0]), reason="limit", logprobs=tuple(drawn[1]))
        )

    def steps(self, count: int, *, at: int, more: bool) -> DecodedTokens:
        """Make up to `count` tokens from position `at`; a stop id is the last of them. Past the cache it makes none."""
        room = max(self._context - at, 0)
        able, tokens, noted = min(count, room), list[int](), list[float]()
        if able:
            tokens, noted = self._decode.advance(at, able, ahead=more and able < room)
        for index, token in enumerate(tokens):
            if token in self._stops:
                self._decode.rewind(token, at + index + 1)
                return DecodedTokens(
                    tokens=tuple(tokens[: index + 1]), reason="stop", logprobs=tuple(noted[: index + 1])
                )
        reason: StopReason = "context" if len(tokens) >= room else "limit"
        return DecodedTokens(tokens=tuple(tokens), reason=reason, logprobs=tuple(noted))


Bound = tuple[Program, Mapping[str, Module]]
"""A program, and the kernels that it calls, by source digest."""


_HEAD = 32
"""Elements before the tokens of a chunk, so that these begin at a multiple of 256 bytes."""


class DevicePrefill:
    """Prefill of a prompt in chunks; each pair of chunk length and first position has a CUDA graph.

    A chunk that is shorter than its graph is padded: what the padding writes to the cache lies behind every position
    that is read before it is written again. Where the program cannot return the logits of an arbitrary token, the last
    token of a padded chunk then goes through a decode step.
    """

    def __init__(
        self,
        programs: Callable[[int], Bound],
        memory: Memory,
        decode: DeviceDecode | Regimes,
        *,
        capacity: int,
        overlap: bool,
    ) -> None:
        """Allocate the input buffers; no program is made and no graph captured yet.

        `programs` returns the program for a number of tokens, at most `capacity`; it is called once for each number.
        """
        self.capacity, self._lengths = capacity, served(capacity)
        self.spreads = False
        """The host only queues work."""
        self._programs, self._memory, self._decode, self._overlap = programs, memory, decode, overlap
        self._known: dict[int, Bound] = {}
        # The row of the token that has the logits stands before the tokens, so that one copy brings both.
        self._on_device = torch.zeros(_HEAD + capacity, dtype=torch.int64, device=memory.device)
        self._row, self._token = self._on_device[:1], self._on_device[_HEAD:]
        self._position = torch.zeros(capacity, dtype=torch.int64, device=memory.device)
        self._backend = backend_of(memory.device)
        self._staged = torch.zeros(_HEAD + capacity, dtype=torch.int64, pin_memory=self._backend.queued)
        self._sent = self._backend.event()
        self._stand = range(0)  # the consecutive positions that `_position` holds at its start
        self._graphs: dict[tuple[int, int], tuple[torch.cuda.CUDAGraph, DeviceStep]] = {}
        self._arena: Arena | None = None
        self._pool = self._backend.graph_pool()

    def run(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Run on `tokens` [T] at consecutive `positions` [T], int64 on the host; return the last token's logits.

        The logits are [vocab] and are overwritten by the next chunk.

        Raises:
            ValueError: the chunk is longer than the capacity.
        """
        count, first = tokens.numel(), int(positions[0])
        if count > self.capacity:
            raise ValueError(f"a chunk of {count} tokens, and room for {self.capacity}")
        if self.capacity == 1:  # no chunks: there would be a graph for every position
            self._decode.rewind(int(tokens[0]), first)
            return self._decode.again()
        logits = torch.empty(0)
        for part in torch.split(tokens, _filled(count, [length for length in self._lengths if length >= PADDED])):
            logits, first = self._chunk(part, first), first + part.numel()
        return logits

    def _chunk(self, tokens: torch.Tensor, first: int) -> torch.Tensor:
        count = tokens.numel()
        length = next(length for length in self._lengths if count <= length)
        with on_device(f"a prompt's chunk of {length} tokens"):
            if first + length > self._decode.context:
                return self._run(tokens, first)
            self._place(tokens, first, length)
            if (first, length) not in self._graphs:
                step = self._step(first, length)
                before = functools.partial(_once, step) if length > PADDED else None
                self._graphs[first, length] = captured(step.enqueue, pool=self._pool, before=before), step
            graph, step = self._graphs[first, length]
            graph.replay()
        if length == count or any(buffer.role == "row" for buffer in step.program.buffers):
            return step.logits
        self._decode.rewind(int(tokens[-1]), first + count - 1)
        return self._decode.again()

    def _place(self, tokens: torch.Tensor, first: int, length: int) -> None:
        count = tokens.numel()
        if self._sent is not None:
            self._sent.synchronize()  # the last copy from the staging buffer may not be done
        # As plain memory: a few words would take as long through tensors as some of the chunk's kernels.
        place, size = self._staged.data_ptr(), self._staged.element_size()
        ctypes.c_int64.from_address(place).value = count - 1
        ctypes.memmove(place + _HEAD * size, tokens.data_ptr(), count * size)
        ctypes.memset(place + (_HEAD + count) * size, 0, (length - count) * size)
        self._on_device[: _HEAD + length].copy_(self._staged[: _HEAD + length], non_blocking=True)
        if self._sent is not None:
            self._sent.record()
        if first != self._stand.start or length > len(self._stand):
            torch.arange(first, first + length, out=self._position[:length])  # made on the device: no copy to wait for
            self._stand = range(first, first + length)

    def _run(self, tokens: torch.Tensor, first: int) -> torch.Tensor:
        """Run without a graph: at the end of the cache padding has no room, and such a length rarely recurs."""
        logits = torch.empty(0)
        # Only these lengths are used, since programs exist for no others.
        for part in torch.split(tokens, _filled(tokens.numel(), (1, *LENGTHS))):
            self._place(part, first, part.numel())
            step = self._step(first, part.numel())
            step.enqueue()
            logits, first = step.logits, first + part.numel()
        return logits

    def _step(self, first: int, length: int) -> DeviceStep:
        if length not in self._known:
            self._known[length] = self._programs(length)
        program, modules = self._known[length]
        if self._arena is None or self._arena.nbytes < program.arena_bytes:
            self._arena = self._larger(program.arena_bytes, length)
        return DeviceStep(
            program,
            self._memory,
            modules,
            overlap=self._overlap,
            fed=(self._token[:length], self._position[:length]),
            row=self._row,
            arena=self._arena,
            span=(first, first + length - 1),
        )

    def _larger(self, nbytes: int, length: int) -> Arena:
        """Return a new arena of at least `nbytes` for a chunk of `length` tokens, and drop the graphs on the old one.

        For a `length` below `PADDED` it is sized for up to `PADDED` tokens, as activations grow with the tokens. The
        graphs are dropped since they would keep the smaller arena allocated beside this one.
        """
        if self._arena is not None:
            self._backend.synchronize()  # a graph may still run
            self._graphs.clear()
            self._arena = None
            self._pool = self._backend.graph_pool()  # a pool ends with the last of its graphs
            self._backend.release_memory()
        usual = nbytes * min(self.capacity, PADDED) // length if length < PADDED else 0
        return Arena(max(nbytes, usual), self._memory.device)


def _once(step: DeviceStep) -> None:
    """Run a step and release the memory that PyTorch cached for it: its graph allocates as much of its own."""
    step.enqueue()
    torch.cuda.current_stream().synchronize()
    torch.cuda.empty_cache()


def _filled(count: int, lengths: Sequence[int]) -> list[int]:
    """Split `count` into as many of the ascending `lengths` as fit, longest first, and the remainder."""
    found = []
    for length in reversed(lengths):
        found += [length] * (count // length)
        count %= length
    return [*found, count] if count else found
