"""A model's memory: weights in their resident layout, constants, the KV cache, and the step's tokens and positions.

Each sequence has a row: of the KV cache, of the tokens and of the positions. Programs of one sequence use the first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from agentcompile.ir.program import Buffer, Program
from agentcompile.ops.layouts import LAYOUTS
from agentcompile.ops.reference import DTYPES
from agentcompile.runtime.arena import Arena, aligned

_FURNISHED = 1 << 20  # how many numbers are drawn for a state; they are repeated to fill it
Read = Callable[[str], torch.Tensor]
"""A function that reads a checkpoint tensor by name, row-major, in the checkpoint's dtype."""


class Memory:
    """Everything that outlives a step; one instance serves every program that is lowered from one model.

    A weight that programs want in several layouts is held once in each: that happens only while candidates are compared
    in the step, because a plan uses one layout.
    """

    def __init__(
        self, programs: Sequence[Program], read: Read, constants: Mapping[str, torch.Tensor], device: str = "cpu"
    ) -> None:
        """Load and pack the weights and constants that `programs` name, and allocate their state."""
        buffers: dict[tuple[str, str, str], Buffer] = {}
        for program in sorted(programs, key=lambda one: one.phase == "decode"):
            for buffer in program.buffers:
                known = buffers.setdefault(_key(buffer), buffer)
                if buffer.role == "state" and _numel(buffer) > _numel(known):
                    buffers[_key(buffer)] = buffer
        wanted = {key: buffer for key, buffer in buffers.items() if buffer.role in ("weight", "constant", "state")}
        self._arena = Arena(sum(aligned(_numel(one) * DTYPES[one.dtype].itemsize) for one in wanted.values()), device)
        self._tensors: dict[tuple[str, str, str], torch.Tensor] = {}
        self._shapes: dict[tuple[str, str, str], tuple[int, ...]] = {}
        sources: dict[str, torch.Tensor] = {}
        # In the order of use in a prefill, so that weights that read one activation are neighbours: see `merging`.
        uses = {key[:2]: at for at, key in reversed([*enumerate(wanted)])}
        for key in sorted(wanted, key=lambda key: (key[0], uses[key[:2]], key)):
            buffer = wanted[key]
            shape = _static(buffer)
            tensor = self._arena.take((_numel(buffer),), DTYPES[buffer.dtype])
            if buffer.role != "state":
                from_model = buffer.role == "weight"
                source = sources.get(key[1]) if from_model else constants[buffer.tensor]
                if source is None:
                    sources = {key[1]: read(buffer.tensor)}  # layouts of one tensor are neighbours: keep just one
                    source = sources[key[1]]
                source = source.to(DTYPES[buffer.dtype])
                tensor.copy_(LAYOUTS[buffer.layout].pack(source.contiguous()).flatten())
            self._tensors[key] = tensor if buffer.layout != "row-major" else tensor.view(shape)
            self._shapes[key] = shape
        self.device = device
        self.rows = max([1, *(program.batch for program in programs)])
        self.tokens = torch.zeros(self.rows, dtype=torch.int64, device=device)
        self.positions = torch.zeros(self.rows, dtype=torch.int64, device=device)
        self.token, self.position = self.tokens[:1], self.positions[:1]  # the token and the position of the first row
        self.stood = 0  # the position where `stand` last put the first row, known without asking the device

    @property
    def nbytes(self) -> int:
        """The bytes held by weights, constants and state."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self._tensors.values())

    def holds(self, programs: Sequence[Program]) -> bool:
        """Return whether every weight, constant and state that `programs` name is here, and enough rows."""
        named = [buffer for program in programs for buffer in program.buffers]
        held = [buffer for buffer in named if buffer.role in ("weight", "constant", "state")]
        return all(program.batch <= self.rows for program in programs) and all(
            _key(buffer) in self._tensors for buffer in held
        )

    def resident(self, buffer: Buffer) -> torch.Tensor:
        """Return the buffer as it lies in memory: shaped when row-major, flat when packed; a state's own rows."""
        tensor = self._tensors[_key(buffer)]
        return tensor[: _static(buffer)[0]] if buffer.role == "state" else tensor

    def dense(self, buffer: Buffer) -> torch.Tensor:
        """Return the buffer row-major; a packed one is unpacked into a fresh tensor, to be dropped after use."""
        tensor = self.resident(buffer)
        if buffer.layout == "row-major":
            return tensor
        return LAYOUTS[buffer.layout].unpack(tensor, self._shapes[_key(buffer)])

    def stand(self, token: int, position: int) -> None:
        """Set the first row's position to `position`, with `token` to be read next."""
        self.token.fill_(token)
        self.position.fill_(position)
        self.stood = position

    def states(self) -> list[torch.Tensor]:
        """Return the tensors of the KV cache, each [rows, kv_heads, context, head_dim]."""
        return [tensor for key, tensor in self._tensors.items() if key[0] == "state"]

    def furnish(self, seed: int = 0) -> None:
        """Fill the KV cache with normal numbers for timing: over zeros no maximum rises, and less power is drawn."""
        for number, state in enumerate(self.states()):
            flat = state.view(-1)
            size = min(flat.numel(), _FURNISHED)
            generator = torch.Generator(self.device).manual_seed(seed + number)
            some = torch.randn(size, generator=generator, device=self.device).to(flat.dtype)
            whole = flat.numel() // size * size
            flat[:whole].view(-1, size).copy_(some)
            flat[whole:].copy_(some[: flat.numel() - whole])

    def repeat(self, slots: int) -> None:
        """Repeat the first `slots` of every state up to its end."""
        for state in self.states():
            some = state[:, :, :slots].clone()
            for begin in range(slots, state.shape[2], slots):
                rest = state[:, :, begin : begin + slots]
                rest.copy_(some[:, :, : rest.shape[2]])


def _key(buffer: Buffer) -> tuple[str, str, str]:
    return buffer.role, buffer.tensor, buffer.layout


def _static(buffer: Buffer) -> tuple[int, ...]:
    shape = tuple(dim for dim in buffer.shape if isinstance(dim, int))
    assert len(shape) == len(buffer.shape), buffer
    return shape


def _numel(buffer: Buffer) -> int:
    return LAYOUTS[buffer.layout].numel(_static(buffer))
