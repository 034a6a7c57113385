"""A CPU program bound to memory: native launches in as few calls as possible, PyTorch regions between them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import torch

from agentcompile.ir.graph import concrete
from agentcompile.ir.program import CHUNK, Buffer, NativeCall, Program
from agentcompile.ops.reference import DTYPES
from agentcompile.runtime import native
from agentcompile.runtime.arena import Arena
from agentcompile.runtime.memory import Memory
from agentcompile.runtime.openmp import dismiss_threads, one_thread
from agentcompile.runtime.packed import Packed
from agentcompile.runtime.sites import Action, dying_after, torch_site

_FEW = 1 << 21
"""Operations and bytes below which PyTorch runs a region of a chunk on one thread. A second one would save less time
than it takes to begin, and spin beside the kernels that follow: with two cores a chunk took 1.5 times as long."""


class HostStep:
    """The step of one program on the CPU; its buffers keep their addresses.

    Decode programs read and write `memory.token` and `memory.position`; a prefill program is bound once for every chunk
    length that it meets, and no chunk may be longer than `capacity` tokens. The longest reads `fed`, if that is given:
    its tokens and positions, int64 [capacity] each.
    """

    def __init__(
        self,
        program: Program,
        memory: Memory,
        executor: native.Executor,
        libraries: Mapping[str, native.Library],
        capacity: int = 1,
        fed: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> None:
        self.program, self.capacity = program, capacity
        self.spreads = not program.native
        """Whether PyTorch runs a part of the program, on threads of its own."""
        self._fed = fed
        self._memory, self._executor, self._libraries = memory, executor, libraries
        # In a decode step fallbacks unpack their weights and run in PyTorch, as they were measured.
        packed = program.phase == "prefill" and any(buffer.layout != "row-major" for buffer in program.buffers)
        self._packed = Packed(executor) if packed else None
        self._buffers = {buffer.name: buffer for buffer in program.buffers}
        self._regions = {region.id: region for region in program.regions}
        # A kernel uses all of its workspaces, which are made for chunks of this length, whatever the chunk's is.
        self._room = max(capacity, CHUNK) if program.phase == "prefill" else capacity
        self._arena = Arena(program.arena_bytes * self._room)
        self._bound: dict[int, _BoundStep] = {}
        self.clock = native.CallClock(len(program.calls))  # the clock of the program's calls, in their order

    def run(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Run on `tokens` [T] at `positions` [T], int64; return the last logits [vocab], until the next step.

        Raises:
            ValueError: the chunk is longer than the capacity.
        """
        bound = self._bind(tokens.numel())
        bound.token.copy_(tokens)
        bound.position.copy_(positions)
        for action in bound.actions:
            action()
        return bound.env[self.program.logits].view(-1)

    def again(self) -> torch.Tensor:
        """Run a decode step on memory's token and position, or a chunk on `fed`; return the logits, [vocab]."""
        bound = self._bind(self.capacity)
        for action in bound.actions:
            action()
        self.clock.steps += 1
        return bound.env[self.program.logits].view(-1)

    @property
    def logits(self) -> torch.Tensor:
        """The logits of the last decode step or full chunk, flat, one sequence after another."""
        return self._bind(self.capacity).env[self.program.logits].view(-1)

    def decoder(self, stop_ids: Sequence[int], context: int) -> native.NativeDecoder | None:
        """Return the loop that runs no Python, when every call is native; None otherwise."""
        if not self.program.native:
            return None
        bound = self._bind(1)
        token, logits = bound.token.data_ptr(), bound.env[self.program.logits]
        return native.NativeDecoder(
            self._executor,
            bound.launches,
            ids=token,
            token=token,
            position=bound.position.data_ptr(),
            stop_ids=stop_ids,
            context=context,
            logits=logits if logits.dtype in (torch.float32, torch.bfloat16) else None,
            clock=self.clock,
        )

    def time(self, repeat: int, samples: int, then: native.Call | None = None) -> list[int]:
        """Return `samples` intervals in ns of `repeat` decode steps or full chunks, with `then` after each.

        A step runs at memory's position, a chunk on what `fed` holds.
        """
        bound = self._bind(self.capacity)
        if bound.whole is not None:
            whole = native.NativeProgram(self._executor, [*bound.launches, then]) if then else bound.whole
            return whole.time(repeat, samples)
        actions = [*bound.actions, native.NativeProgram(self._executor, [then]).run] if then else bound.actions
        times = []
        for _ in range(samples):
            begin = time.perf_counter_ns()
            for _ in range(repeat):
                for action in actions:
                    action()
            times.append(time.perf_counter_ns() - begin)
        return times

    def _bind(self, tokens: int) -> _BoundStep:
        if tokens > self.capacity:
            raise ValueError(f"a chunk of {tokens} tokens, and room for {self.capacity}")
        if tokens not in self._bound:
            if len(self._bound) > 8:  # remainders of prompts come in every length; views of one arena are cheap to redo
                self._bound.clear()
            self._bound[tokens] = _BoundStep(self, tokens)
        return self._bound[tokens]


class _BoundStep:
    """A step at one number of tokens: every name resolved to a tensor, every run of launches to one call."""

    def __init__(self, step: HostStep, tokens: int) -> None:
        self._step, self._tokens = step, tokens
        program, memory = step.program, step._memory
        self.token, self.position = (torch.zeros(tokens, dtype=torch.int64) for _ in range(2))
        self._one = torch.ones(1, dtype=torch.int64)
        if program.phase == "decode":
            self.token, self.position = memory.tokens[: program.batch], memory.positions[: program.batch]
        elif step._fed is not None and tokens == step.capacity:
            self.token, self.position = step._fed
        calls = program.calls
        self._fixed = {name for call in calls if isinstance(call, NativeCall) for name in call.pointers}
        self._fixed.add(program.logits)
        placed = {buffer.name: self._tensor(buffer) for buffer in program.buffers}
        self.env = {name: tensor for name, tensor in placed.items() if tensor is not None}
        self.launches: list[native.Call] = []
        self.actions: list[Action] = []
        self.whole: native.NativeProgram | None = None
        run: list[native.Call] = []
        mixed = program.phase == "prefill" and any(isinstance(call, NativeCall) for call in calls)
        spread = False  # whether PyTorch's threads may still spin on the cores of our own
        for at, (call, dying) in enumerate(zip(calls, dying_after(program, set(self.env)), strict=True)):
            if isinstance(call, NativeCall):
                if spread:
                    self.actions.append(dismiss_threads)
                    spread = False
                pointers = [self._pointer(name, last=call.last) if name else 0 for name in call.pointers]
                run.append(native.Call.of(step._libraries[call.source], call.launch.entry, pointers))
            else:
                self._close(run, at)
                region = step._regions[call.region]
                site = torch_site(call, region, step._buffers, self.env, memory, tokens, dying=dying, kept=step._packed)
                if mixed and region.cost.flops + region.cost.bytes < _FEW:
                    site = _on_this_thread(site)
                else:
                    spread = mixed
                self.actions.append(_clocked(site, step.clock, at))
        self._close(run, len(calls))
        if spread:  # the next chunk begins with kernels, perhaps
            self.actions.append(dismiss_threads)
        if program.native:
            self.whole = native.NativeProgram(step._executor, self.launches)

    def _close(self, run: list[native.Call], end: int) -> None:
        """Make one call of the executor for the launches `run`, which precede the program's call number `end`."""
        if run:
            self.launches += run
            made = native.NativeProgram(self._step._executor, tuple(run), clock=self._step.clock, at=end - len(run))
            self.actions.append(made.run)
            run.clear()

    def _pointer(self, name: str, *, last: bool) -> int:
        """Return the address of a buffer, or of its last token's row."""
        buffer, at = self._step._buffers[name], self.env[name].data_ptr()
        if not last:
            return at
        if buffer.role == "count":
            return self._one.data_ptr()
        symbolic = any(isinstance(dim, str) for dim in buffer.shape)
        return at + (self._tokens - 1) * buffer.nbytes if symbolic and buffer.role == "activation" else at

    def _tensor(self, buffer: Buffer) -> torch.Tensor | None:
        """Return a buffer's tensor; None for an activation that only PyTorch touches and allocates itself."""
        shape = concrete(buffer.shape, self._tokens)
        if buffer.role == "token":
            return self.token.view(shape)
        if buffer.role == "position":
            return self.position.view(shape)
        if buffer.role == "count":
            return torch.full(shape, self._tokens, dtype=torch.int64)
        if buffer.role in ("weight", "constant", "state"):
            return self._step._memory.resident(buffer)
        if buffer.name not in self._fixed:
            return None
        view = self._step._arena.view(buffer.offset * self._step._room, shape, DTYPES[buffer.dtype])
        return view.zero_() if buffer.zeroed else view


def _on_this_thread(site: Action) -> Action:
    def act() -> None:
        with one_thread():
            site()

    return act


def _clocked(site: Action, clock: native.CallClock, at: int) -> Action:
    def act() -> None:
        if not clock.running:
            site()
            return
        begin = time.perf_counter_ns()
        site()
        clock.add(at, time.perf_counter_ns() - begin)

    return act
