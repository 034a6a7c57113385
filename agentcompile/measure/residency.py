"""Where timed launches find their inputs: copies of weights and states that a rotation walks through.

`dram`: so many copies that nothing is left in a cache when its turn comes again. `cache`: copies past the private
caches but well inside the shared one, which is where a step of that size finds them; the ceiling that a floor is
computed from is read in the same place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from agentcompile.backends import backend_of
from agentcompile.ir.target import Residency, Target
from agentcompile.measure.policy import Policy

ALIGN_BYTES = 4096
"""Slots start on pages: every copy has the same offset in a page."""
_LINE_BYTES = 64
MOST_DEVICE_BYTES = 8 << 30
"""What a rotation on a GPU takes at most, when launches read little of each slot."""

MOST_DEVICE_SLOTS = 1024
"""As many as a sample on a GPU has launches; between samples others are read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """One buffer of a slot, and how it is filled: `scale` times a normal for floats, zero for integers."""

    name: str
    numel: int
    dtype: torch.dtype
    scale: float = 1.0
    offset: float = 0.0
    read: float = 1.0
    """Share of it that a launch reads: of a cache, what a regime's longest context fills."""

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.numel * self.dtype.itemsize


def rotation_bytes(residency: Residency, target: Target, policy: Policy) -> int:
    """How many bytes a rotation covers at least; the ceilings that floors come from are read over as many."""
    caches = target.cache_bytes
    last = caches[-1] if caches else 0
    if residency == "dram":
        return max(policy.dram_bytes, policy.cache_multiple * last)
    private = caches[-2] * target.threads if len(caches) > 1 else 0
    return min(max(policy.cache_multiple * private, policy.cache_bytes), last // 2)


class Slots:
    """Copies of one region's weights and states in one block of memory, equal in content, distinct in address."""

    def __init__(self, needs: tuple[Need, ...], *, covers_bytes: int, seed: int, device: str = "cpu") -> None:
        """Fill as many slots as launches read `covers_bytes` of in a turn, at least one, within bounds; raises
        RuntimeError when memory is out."""
        self._needs = {need.name: need for need in needs}
        self._offsets: dict[str, int] = {}
        end = 0
        for need in needs:
            self._offsets[need.name] = end
            end += -(-need.nbytes // _LINE_BYTES) * _LINE_BYTES
        self.slot_bytes = max(-(-end // ALIGN_BYTES) * ALIGN_BYTES, ALIGN_BYTES)
        read = max(sum(round(need.nbytes * need.read) for need in needs), 1)
        most = max(covers_bytes, MOST_DEVICE_BYTES if backend_of(device).own_memory else 0)
        wanted = -(-covers_bytes // min(read, self.slot_bytes))
        if backend_of(device).own_memory:
            wanted = min(wanted, MOST_DEVICE_SLOTS)
        self.count = max(1, min(wanted, -(-most // self.slot_bytes))) if end else 1
        self._block = block(self.slot_bytes * self.count, device)
        generator = torch.Generator().manual_seed(seed)
        for need in needs:
            view = self.tensor(0, need.name)
            if need.dtype.is_floating_point:
                _fill(view, need, generator)
        table = self._block.view(self.count, self.slot_bytes)
        done = 1
        while done < self.count:
            step = min(done, self.count - done)
            table[done : done + step].copy_(table[:step])
            done += step

    def tensor(self, slot: int, name: str, numel: int = 0) -> torch.Tensor:
        """The flat buffer `name` of a slot, or its first `numel` elements."""
        need = self._needs[name]
        start = slot * self.slot_bytes + self._offsets[name]
        size = (numel or need.numel) * need.dtype.itemsize
        return self._block[start : start + size].view(need.dtype)


def _fill(view: torch.Tensor, need: Need, generator: torch.Generator) -> None:
    """Repeat a block of normals: content does not matter to caches, and drawing a GB of them takes seconds."""
    block = torch.randn(min(need.numel, 1 << 20), generator=generator).mul_(need.scale).add_(need.offset)
    block = block.to(need.dtype).to(view.device)
    for start in range(0, need.numel, block.numel()):
        part = view[start : start + block.numel()]
        part.copy_(block[: part.numel()])


def block(nbytes: int, device: str = "cpu") -> torch.Tensor:
    """Page-aligned memory, on the host on huge pages where the system grants them, as the runtime's arena is."""
    return backend_of(device).empty(nbytes, device, ALIGN_BYTES)


def tensors(slots: Slots, slot: int, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, torch.Tensor]:
    """The buffers of one slot as dense tensors of these shapes."""
    views: dict[str, torch.Tensor] = {}
    for name, shape in shapes.items():
        count = 1
        for dim in shape:
            count *= dim
        views[name] = slots.tensor(slot, name, count).view(shape)
    return views
