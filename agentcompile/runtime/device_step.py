"""A program bound to device memory: generated kernels and PyTorch regions on one stream, captured in graphs."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from agentcompile.backends import backend_of
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.ir.graph import concrete
from agentcompile.ir.program import Buffer, NativeCall, Program
from agentcompile.ir.template import Launch, Source
from agentcompile.ops.attention import rehearsing
from agentcompile.ops.reference import DTYPES
from agentcompile.runtime.arena import Arena, aligned
from agentcompile.runtime.driver import Call, Module
from agentcompile.runtime.memory import Memory
from agentcompile.runtime.merging import merged
from agentcompile.runtime.sites import Action, Span, dying_after, torch_site
from agentcompile.runtime.token_order import put_tokens_first

UNROLL = 8
"""Steps in one graph: launching a graph costs as much as some kernels; steps after a sequence's end are wasted."""
_ADVANCE = """
struct advance_args { long long* positions; const long long* tokens; const long long* live; long long* history; };
extern "C" __global__ void advance(const __grid_constant__ advance_args a) {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents; griddepcontrol.wait;" ::: "memory");
#endif
    const int row = threadIdx.x;
    if (a.live && !a.live[row]) return;
    const long long at = a.positions[row];
    a.history[row * SLOTS + at] = a.tokens[row];
    a.positions[row] = at + 1;
}
"""
Fed = tuple[torch.Tensor, torch.Tensor]
"""The tokens and positions that a program reads."""


def advance_source(arch: str, rows: int = 1, slots: int = 0) -> Source:
    """Return the kernel that ends a step: it notes the `rows`' tokens, `slots` each, and moves the `live` ones on."""
    arguments = ("positions", "tokens", "live", "history")
    launch = Launch(entry="advance", arguments=arguments, grid=("1",), block=(str(rows),), pdl=True)
    text = f"constexpr long long SLOTS = {slots};\n{_ADVANCE}"
    return Source(language="cuda", text=text, launches=(launch,), workspaces=(), flags=(f"--gpu-architecture={arch}",))


def overlaps_launches(arch: str) -> bool:
    """Return whether an architecture has programmatic dependent launch: compute capability 9.0 and later."""
    digits = arch.removeprefix("sm_").rstrip("af")
    return digits.isdigit() and int(digits) >= 90


class DeviceStep:
    """One step of as many sequences as its program holds, in the first rows of `memory`.

    It reads their tokens and positions and writes the next tokens in place. `modules` holds every kernel that the
    program calls, by source digest; `overlap` says whether the device has programmatic dependent launch.
    """

    def __init__(
        self,
        program: Program,
        memory: Memory,
        modules: Mapping[str, Module],
        *,
        overlap: bool,
        fed: Fed | None = None,
        row: torch.Tensor | None = None,
        arena: Arena | None = None,
        span: Span | None = None,
    ) -> None:
        """Place the buffers and bind every call of the program.

        `fed` are the tokens and positions of a prefill chunk; `row`, int64 [1], is the index of the token whose logits
        are computed, where the program asks; `span` is the first and last position. A given `arena` is shared with
        programs that never run at the same time.
        """
        self.program, self._memory = program, memory
        self._fed = fed or (memory.tokens[: program.batch], memory.positions[: program.batch])
        self._row = row
        self._arena, self._shared = arena or Arena(program.arena_bytes, memory.device), arena is not None
        self._spare: dict[tuple[tuple[int, ...], torch.dtype], torch.Tensor] = {}
        buffers = {buffer.name: buffer for buffer in program.buffers}
        regions = {region.id: region for region in program.regions}
        self._fixed = {name for call in program.calls if isinstance(call, NativeCall) for name in call.pointers}
        self._fixed |= {program.logits, program.token}
        self._fixed |= {name for buffer in program.buffers if buffer.whole for name in (buffer.name, buffer.whole)}
        placed = {name: self._tensor(buffer) for name, buffer in buffers.items()}
        self.env = {name: tensor for name, tensor in placed.items() if tensor is not None}
        dead = dying_after(program, set(self.env))
        together: dict[int, Action] = {}
        if program.phase == "prefill":
            put_tokens_first(program, self.env)
            blocks = backend_of(memory.device).blocks_at_once(memory.device)
            together = merged(program, regions, self.env, dead, blocks, self._room)
        self._actions = [
            self._native(call, modules[call.source], overlap)
            if isinstance(call, NativeCall)
            else together.get(at)
            or torch_site(call, regions[call.region], buffers, self.env, memory, span=span, dying=dying, direct=True)
            for at, (call, dying) in enumerate(zip(program.calls, dead, strict=True))
        ]

    @property
    def logits(self) -> torch.Tensor:
        """The logits, [vocab], or [batch, vocab] for several sequences; the next step overwrites them."""
        found, batch = self.env[self.program.logits], self.program.batch
        return found.view(-1) if batch == 1 else found.view(batch, -1)

    def enqueue(self) -> None:
        """Enqueue one step on the current stream; the position does not change."""
        for action in self._actions:
            action()

    def trace(self, names: Mapping[str, str]) -> None:
        """Run one step as `enqueue` does, each region in an NVTX range named by `names` (by id), for profilers."""
        for call, action in zip(self.program.calls, self._actions, strict=True):
            with torch.cuda.nvtx.range(names.get(call.region, call.region)):
                action()

    def graph(self, steps: int = 1, *, then: Action = lambda: None) -> torch.cuda.CUDAGraph:
        """Capture `steps` steps with `then` after each; token and position are restored before it returns."""
        token, position = self._memory.tokens.clone(), self._memory.positions.clone()

        def body() -> None:
            self.enqueue()
            then()

        made = captured(body, times=steps)
        self._memory.tokens.copy_(token)
        self._memory.positions.copy_(position)
        return made

    def _tensor(self, buffer: Buffer) -> torch.Tensor | None:
        """Return a buffer's tensor; None for an activation that only PyTorch touches and allocates itself."""
        shape = concrete(buffer.shape)
        if buffer.role in ("token", "position"):
            return self._fed[0 if buffer.role == "token" else 1].view(shape)
        if buffer.role == "row":
            assert self._row is not None, "a program that has the logits of any token was not told of which"
            return self._row
        if buffer.role in ("weight", "constant", "state"):
            return self._memory.resident(buffer)
        if buffer.name not in self._fixed:
            return None
        dtype = DTYPES[buffer.dtype]
        if buffer.zeroed and self._shared:  # its contents outlive a run, and other programs write to a shared arena
            return torch.zeros(shape, dtype=dtype, device=self._memory.device)
        view = self._arena.view(buffer.offset, shape, dtype)
        return view.zero_() if buffer.zeroed else view

    def _room(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return a scratch tensor that all layers use in turn: behind the activations, if the arena has room there."""
        if (shape, dtype) not in self._spare:
            begin = aligned(self.program.arena_bytes)
            if begin + math.prod(shape) * dtype.itemsize <= self._arena.nbytes and not self._spare:
                self._spare[shape, dtype] = self._arena.view(begin, shape, dtype)
            else:
                self._spare[shape, dtype] = torch.empty(shape, dtype=dtype, device=self._memory.device)
        return self._spare[shape, dtype]

    def _native(self, call: NativeCall, module: Module, overlap: bool) -> Action:
        pointers = [self.env[name].data_ptr() if name else 0 for name in call.pointers]
        return enqueued(Call.of(module, call.launch, pointers, dependent=overlap and call.overlaps))


def first_chunk(program: Program, memory: Memory, modules: Mapping[str, Module], *, overlap: bool) -> DeviceStep:
    """Bind a prefill program to positions from 0, where most prompts begin, with tokens and activations of its own."""
    buffers = {buffer.name: buffer for buffer in program.buffers}
    positions = torch.arange(math.prod(concrete(buffers[program.token].shape)), device=memory.device)
    # Tokens differ as in a prompt: a product of equal rows draws less power, which gives a GPU a higher clock.
    tokens = positions % concrete(buffers[program.logits].shape)[-1]
    last = positions.numel() - 1
    return DeviceStep(
        program, memory, modules, overlap=overlap, fed=(tokens, positions), row=positions[-1:], span=(0, last)
    )


class Unrolled:
    """Graphs of one step and of `UNROLL` steps, made by `capture(steps, way)` when needed, for any number of steps."""

    def __init__(self, capture: Callable[[int, bool], torch.cuda.CUDAGraph]) -> None:
        self._capture = capture
        self._graphs: dict[tuple[int, bool], torch.cuda.CUDAGraph] = {}

    def run(self, steps: int, way: bool) -> None:
        """Queue `steps` steps captured in the way `way`."""
        for length, times in ((UNROLL, steps // UNROLL), (1, steps % UNROLL)):
            if times and (length, way) not in self._graphs:
                self._graphs[length, way] = self._capture(length, way)
            for _ in range(times):
                self._graphs[length, way].replay()


def enqueued(call: Call) -> Action:
    """Return a function that launches a bound call on PyTorch's current stream."""
    return lambda: call.run(torch.cuda.current_stream().cuda_stream)


@functools.cache
def _side_stream(device: int) -> torch.cuda.Stream:
    """Return the stream of a device's captures: one only, as PyTorch keeps a matrix workspace for every stream."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def captured(body: Action, *, times: int = 1, pool: Any = None, before: Action | None = None) -> torch.cuda.CUDAGraph:
    """Return a CUDA graph of what `body` enqueues, repeated `times` times.

    `before` runs first, uncaptured, by default the body itself, as PyTorch's set-up must not happen during capture.
    Graphs that never run at the same time, and whose results are read before another runs, may share a memory `pool`.
    """
    side = _side_stream(torch.cuda.current_device())
    side.wait_stream(torch.cuda.current_stream())
    made = torch.cuda.CUDAGraph()
    with torch.cuda.stream(side):
        with rehearsing():
            (before or body)()
        side.synchronize()
        # Not `torch.cuda.graph`: it collects garbage at every capture, which takes longer than the capture.
        made.capture_begin(pool=pool, capture_error_mode="thread_local")
        try:
            for _ in range(times):
                body()
        finally:
            made.capture_end()
    torch.cuda.current_stream().wait_stream(side)
    return made


@contextmanager
def on_device(what: str) -> Iterator[None]:
    """Turn GPU failures inside the `with` block into errors that name `what` was done; other exceptions pass through.

    Raises:
        AgentCompileError: the GPU is out of memory, or the device or its driver failed (environment).
        RuntimeError: any other error of PyTorch, passed through.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        text = f"{what}: the GPU is out of memory ({_first_line(error)})"
        hint = "close what else uses it (`agentcompile doctor` names it), or compile with a smaller --context"
        raise AgentCompileError(text, exit_code=ExitCode.ENVIRONMENT, hint=hint) from error
    except RuntimeError as error:
        if "CUDA error" not in str(error) and "CUDA driver" not in str(error):
            raise
        text = f"{what}: the GPU failed ({_first_line(error)})"
        hint = "start again: a process cannot use a device on after such an error; `agentcompile doctor` shows it"
        raise AgentCompileError(text, exit_code=ExitCode.ENVIRONMENT, hint=hint) from error


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0][:200]
