"""Generating on a CUDA device: steps in graphs that leave their tokens on the device, prompts in graphs by length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from agentcompile.ir.program import Program
from agentcompile.ir.template import Source
from agentcompile.runtime.device_errors import on_device
from agentcompile.runtime.device_sampling import DeviceSampler
from agentcompile.runtime.device_step import DeviceStep, advance_source, captured, enqueued
from agentcompile.runtime.driver import Call, Module
from agentcompile.runtime.memory import Memory
from agentcompile.runtime.native import Made, StopReason
from agentcompile.runtime.sampling import Sampling
from agentcompile.runtime.sites import Action, Span, dying_after, torch_site

UNROLL = 8
"""Steps of one graph: the launch of a graph costs what some kernels do, and an end of sequence wastes what is left."""
LENGTHS = (8, 16, 32, 64, 128, 256, 512, 1024, 2048)
"""Tokens of a prefill graph; a prompt of another length is padded to the next one."""


class DeviceDecode:
    """Decode steps of one program. Captures its graphs when they are first needed."""

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
        """`advance` holds the kernel of `advance_source`, `sampler` one of `sampler_source` for the step's logits.

        `context` is the number of cache slots. Without a sampler every draw that is not greedy is the host's.
        """
        self._step, self._memory, self.context = step, memory, context
        self._history = torch.zeros(context + 1, dtype=torch.int64, device=memory.device)
        pointers = [tensor.data_ptr() for tensor in (memory.position, memory.token, self._history)]
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
        self._still: torch.cuda.CUDAGraph | None = None
        self._moving: dict[tuple[int, bool], torch.cuda.CUDAGraph] = {}
        self._drawing = self._noting = False

    def again(self) -> torch.Tensor:
        """Run one step on what `memory.token` and `memory.position` hold; the position stays. The logits, [vocab]."""
        with on_device("a decode step"):
            if self._still is None:
                self._still = self._step.graph()
            self._still.replay()
        return self._step.logits

    def decoder(self, stop_ids: Sequence[int], context: int) -> DeviceLoop:
        """The loop that ends at any of `stop_ids`."""
        return DeviceLoop(self, frozenset(stop_ids), min(context, self.context))

    def begin(self, sampling: Sampling, *, first: int, logprobs: bool) -> bool:
        """Choose so from now on; False without a sampler that could."""
        self._drawing, self._noting = not sampling.greedy or logprobs, logprobs
        if self._drawing and self._sampler is not None:
            self._sampler.set(sampling, first=first, logprobs=logprobs)
        return not self._drawing or self._sampler is not None

    def advance(self, steps: int) -> tuple[list[int], list[float]]:
        """Make `steps` tokens from where memory stands; there must be as many slots left. Also their log-probabilities,
        when they were asked for."""
        with on_device("decode steps"):
            first = self.position
            for count in (UNROLL, 1):
                if steps >= count and (count, self._drawing) not in self._moving:
                    self._moving[count, self._drawing] = self._step.graph(count, then=self._ended)
            for _ in range(steps // UNROLL):
                self._moving[UNROLL, self._drawing].replay()
            for _ in range(steps % UNROLL):
                self._moving[1, self._drawing].replay()
            made: list[int] = self._history[first : first + steps].tolist()
            noted: list[float] = self._logprobs[first : first + steps].tolist() if self._noting else []
        return made, noted

    def _ended(self) -> None:
        """What follows a step of a running generation."""
        if self._drawing and self._sampler is not None:
            self._sampler.enqueue()
        self._advance()

    def rewind(self, token: int, position: int) -> None:
        """Stand at `position` with `token` to be read next."""
        self._memory.token.fill_(token)
        self._memory.position.fill_(position)

    @property
    def position(self) -> int:
        """Where memory stands."""
        return int(self._memory.position.item())


class DeviceLoop:
    """Decode without the host between steps; the end of a sequence is looked for after each call's steps."""

    def __init__(self, decode: DeviceDecode, stops: frozenset[int], context: int) -> None:
        self._decode, self._stops, self._context = decode, stops, context

    def begin(self, sampling: Sampling, *, first: int, logprobs: bool) -> bool:
        """Choose so from now on, on the device."""
        return self._decode.begin(sampling, first=first, logprobs=logprobs)

    def steps(self, count: int) -> Made:
        """Make up to `count` tokens; a stop id is the last of them. At a position past the cache it makes none."""
        first = self._decode.position
        room = max(self._context - first, 0)
        tokens, noted = self._decode.advance(min(count, room)) if room and count else ([], [])
        for at, token in enumerate(tokens):
            if token in self._stops:
                self._decode.rewind(token, first + at + 1)
                return Made(tokens=tuple(tokens[: at + 1]), reason="stop", logprobs=tuple(noted[: at + 1]))
        reason: StopReason = "context" if len(tokens) >= room else "limit"
        return Made(tokens=tuple(tokens), reason=reason, logprobs=tuple(noted))


class Positioned(Protocol):
    """A decode step that can be put anywhere in the cache."""

    @property
    def context(self) -> int:
        """Slots of the cache."""

    def rewind(self, token: int, position: int) -> None:
        """Stand at `position` with `token` to be read next."""

    def again(self) -> torch.Tensor:
        """Run one step there; the logits, [vocab]."""


class DevicePrefill:
    """Chunks of a prompt, each a graph for its length and place.

    A chunk that is shorter than its graph is padded: what the padding leaves in the cache lies behind every position
    that is read before it is written again. Its last token then goes through a decode step, which has the logits.
    """

    def __init__(self, program: Program, memory: Memory, decode: Positioned, *, capacity: int) -> None:
        self.program, self.capacity = program, capacity
        self._memory, self._decode = memory, decode
        self._buffers = {buffer.name: buffer for buffer in program.buffers}
        self._regions = {region.id: region for region in program.regions}
        self._token = torch.zeros(capacity, dtype=torch.int64, device=memory.device)
        self._position = torch.zeros(capacity, dtype=torch.int64, device=memory.device)
        self._graphs: dict[tuple[int, int], tuple[torch.cuda.CUDAGraph, torch.Tensor]] = {}
        self._pool = torch.cuda.graph_pool_handle() if memory.device != "cpu" else None

    def run(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Run on `tokens` [T] at consecutive `positions` [T], both int64 on the host; the last token's logits, [vocab].

        The result is overwritten by the next chunk. Raises ValueError for a chunk longer than the capacity.
        """
        count, first = tokens.numel(), int(positions[0])
        if count > self.capacity:
            raise ValueError(f"a chunk of {count} tokens, and room for {self.capacity}")
        length = min((length for length in LENGTHS if count <= length <= self.capacity), default=self.capacity)
        if first + length > self._decode.context:
            return self._run(tokens, first)
        with on_device(f"a prompt's chunk of {length} tokens"):
            self._place(tokens, first, length)
            if (first, length) not in self._graphs:
                self._graphs[first, length] = self._captured(first, length)
            graph, logits = self._graphs[first, length]
            graph.replay()
        if length == count:
            return logits
        self._decode.rewind(int(tokens[-1]), first + count - 1)
        return self._decode.again()

    def _place(self, tokens: torch.Tensor, first: int, length: int) -> None:
        padded = torch.zeros(length, dtype=torch.int64)
        padded[: tokens.numel()] = tokens
        self._token[:length].copy_(padded)
        self._position[:length].copy_(torch.arange(first, first + length))

    def _run(self, tokens: torch.Tensor, first: int) -> torch.Tensor:
        """At its own length, without a graph: at the end of the cache there is no room for padding."""
        self._place(tokens, first, tokens.numel())
        env, actions = self._bound(first, tokens.numel())
        for action in actions:
            action()
        return env[self.program.logits].view(-1)

    def _captured(self, first: int, length: int) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
        env, actions = self._bound(first, length)

        def body() -> None:
            for action in actions:
                action()

        graph = captured(body, pool=self._pool)
        return graph, env[self.program.logits].view(-1)

    def _bound(self, first: int, length: int) -> tuple[dict[str, torch.Tensor], list[Action]]:
        """Tensors by buffer name, and what runs a chunk of that length and place on them."""
        env: dict[str, torch.Tensor] = {}
        for buffer in self.program.buffers:
            if buffer.role == "token":
                env[buffer.name] = self._token[:length]
            elif buffer.role == "position":
                env[buffer.name] = self._position[:length]
            elif buffer.role in ("weight", "constant", "state"):
                env[buffer.name] = self._memory.resident(buffer)
        span: Span = (first, first + length - 1)
        actions = []
        keep = {*env, self.program.logits}
        for call, dying in zip(self.program.calls, dying_after(self.program, keep), strict=True):
            assert call.kind == "torch", "prefill has no kernels of its own yet"
            region = self._regions[call.region]
            actions.append(torch_site(call, region, self._buffers, env, self._memory, length, span=span, dying=dying))
        return env, actions
