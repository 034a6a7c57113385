"""A plan lowered to what the runtime executes: buffers and an ordered list of calls, all of it plain data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from agentcompile.ir.graph import ITEM_BYTES, Dim, DType, Phase, concrete
from agentcompile.ir.region import Region
from agentcompile.ir.template import Launch, Params

CHUNK = 256
"""Tokens of a prefill chunk for which kernels are made and measured: long enough that its matrix products are compute
bound, short enough to stay in cache."""
BufferRole = Literal["token", "position", "row", "count", "weight", "state", "constant", "activation", "workspace"]
"""A buffer's purpose.

`row` holds the index of the token of a chunk whose logits are computed, `count` the number of tokens of the chunk.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """One dense tensor; activations and workspaces are in the arena at `offset`, the others belong to the model."""

    name: str
    role: BufferRole
    dtype: DType
    shape: tuple[Dim, ...]
    tensor: str = ""
    """Checkpoint tensor, state or constant name; empty for arena buffers."""
    layout: str = "row-major"
    offset: int = 0
    zeroed: bool = False
    whole: str = ""
    """Activation of which this buffer is some rows, from its byte `start` on; empty for a buffer of its own."""
    start: int = 0

    @property
    def nbytes(self) -> int:
        """The size in bytes, with one token for every symbolic dimension."""
        return ITEM_BYTES[self.dtype] * math.prod(concrete(self.shape))


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeCall:
    """One launch of a compiled kernel: an entry of a binary and its pointers, in the order of its argument struct."""

    kind: Literal["native"] = "native"
    region: str
    source: str
    launch: Launch
    """Launch with its geometry as numbers."""
    pointers: tuple[str, ...]
    """Buffer names; an empty one is a null pointer (an absent optional port)."""
    overlaps: bool = False
    """Whether the launch may start before its predecessors have ended, as far as its early reads are concerned."""
    last: bool = False
    """Whether it runs for the last token of a chunk alone: on the last rows of its activations, with a count of 1."""

    @property
    def uses(self) -> tuple[str, ...]:
        """The buffers that it reads or writes, null pointers among them."""
        return self.pointers


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchCall:
    """One site of a region run by PyTorch: its captured body, or a named library call with settings."""

    kind: Literal["torch"] = "torch"
    region: str
    call: str = ""
    """Name of the library call; empty for the captured body."""
    settings: Params = ()
    bindings: tuple[tuple[str, str], ...]
    """Port name to buffer name."""

    @property
    def uses(self) -> tuple[str, ...]:
        """The buffers that it reads or writes."""
        return tuple(name for _, name in self.bindings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One regime's step: the calls run in order; `token` is its input and, in decode, receives the next token."""

    phase: Phase
    buffers: tuple[Buffer, ...]
    calls: tuple[NativeCall | TorchCall, ...]
    regions: tuple[Region, ...]
    """Regions that some `TorchCall` names."""
    arena_bytes: int
    """Size with one token for every symbolic dimension; what is of one size counts by its share of `CHUNK` tokens."""
    token: str
    position: str
    logits: str

    @property
    def batch(self) -> int:
        """The number of sequences that a decode step holds; 1 for a prefill."""
        tokens = next(buffer for buffer in self.buffers if buffer.name == self.token)
        first = tokens.shape[0] if self.phase == "decode" and tokens.shape else 1
        return first if isinstance(first, int) else 1

    @property
    def native(self) -> bool:
        """Whether no call needs Python, so that whole steps run without it."""
        return all(isinstance(call, NativeCall) for call in self.calls)
