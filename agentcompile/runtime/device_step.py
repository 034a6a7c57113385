"""A decode program bound to device memory: our launches and PyTorch's regions on one stream, captured in a graph."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from agentcompile.ir.graph import concrete
from agentcompile.ir.program import Buffer, NativeCall, Program
from agentcompile.ir.template import Launch, Source
from agentcompile.runtime.arena import TORCH_DTYPES, Arena
from agentcompile.runtime.driver import Call, Module
from agentcompile.runtime.memory import Memory
from agentcompile.runtime.sites import Action, torch_site


class DeviceStep:
    """One decode step. It reads `memory.token` and `memory.position`, writes the next token, and moves the position on.

    `sources` and `modules` hold every kernel that the program calls, by source digest; `dependent` says whether the
    device has programmatic dependent launch.
    """

    def __init__(
        self,
        program: Program,
        memory: Memory,
        sources: Mapping[str, Source],
        modules: Mapping[str, Module],
        *,
        dependent: bool,
    ) -> None:
        self.program, self._memory = program, memory
        self._arena = Arena(program.arena_bytes, memory.device)
        buffers = {buffer.name: buffer for buffer in program.buffers}
        regions = {region.id: region for region in program.regions}
        self.env = {name: self._tensor(buffer) for name, buffer in buffers.items()}
        launches = {(digest, launch.entry): launch for digest, source in sources.items() for launch in source.launches}
        self._actions = [
            self._native(call, launches[call.source, call.entry], modules[call.source], dependent)
            if isinstance(call, NativeCall)
            else torch_site(call, regions[call.region], buffers, self.env, memory)
            for call in program.calls
        ]

    @property
    def logits(self) -> torch.Tensor:
        """[vocab]; overwritten by the next step."""
        return self.env[self.program.logits].view(-1)

    def enqueue(self) -> None:
        """Put one step on the current stream."""
        for action in self._actions:
            action()
        self._memory.position.add_(1)

    def graph(self, steps: int = 1) -> torch.cuda.CUDAGraph:
        """Capture `steps` steps, one after another. Token, position and states are as they were when it returns."""
        token, position = self._memory.token.clone(), self._memory.position.clone()
        side: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self.enqueue()  # PyTorch's own lazy set-up may not happen in a capture
        torch.cuda.current_stream().wait_stream(side)
        self._memory.token.copy_(token)
        self._memory.position.copy_(position)
        made = torch.cuda.CUDAGraph()
        with torch.cuda.graph(made):
            for _ in range(steps):
                self.enqueue()
        return made

    def _tensor(self, buffer: Buffer) -> torch.Tensor:
        shape = concrete(buffer.shape)
        if buffer.role == "token":
            return self._memory.token.view(shape)
        if buffer.role == "position":
            return self._memory.position.view(shape)
        if buffer.role in ("weight", "constant", "state"):
            return self._memory.resident(buffer)
        view = self._arena.view(buffer.offset, shape, TORCH_DTYPES[buffer.dtype])
        return view.zero_() if buffer.zeroed else view

    def _native(self, call: NativeCall, launch: Launch, module: Module, dependent: bool) -> Action:
        pointers = [self.env[name].data_ptr() if name else 0 for name in call.pointers]
        bound = Call.of(module, launch, pointers, dependent=dependent)
        return lambda: bound.run(torch.cuda.current_stream().cuda_stream)
