"""The memory that timed launches read: copies of a region's weights and states, used in rotation.

With residency `dram` there are so many copies that none is still in a cache when its turn comes again. With `cache` the
copies exceed the private caches but fit well inside the shared one, where a step of that size finds its inputs. The
bandwidth ceiling behind a roofline floor is measured at the same place.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from agentcompile.backends import backend_of
from agentcompile.ir.target import Residency, Target
from agentcompile.measure.policy import Policy

ALIGN_BYTES = 4096
"""Slots start on pages, so that every copy has the same offset in a page."""
_LINE_BYTES = 64
MOST_DEVICE_BYTES = 8 << 30
"""The most memory that a rotation on a GPU takes when launches read little of each slot."""

MOST_DEVICE_SLOTS = 1024
"""The most slots on a GPU, as many as a sample has launches; other memory is read between samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """One buffer of a slot and its content: floats are normal with std `scale` and mean `offset`, integers are 0."""

    name: str
    numel: int
    dtype: torch.dtype
    scale: float = 1.0
    offset: float = 0.0
    read: float = 1.0
    """The share of the buffer that a launch reads; of a KV cache, what a regime's longest context fills."""

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.numel * self.dtype.itemsize


def rotation_bytes(residency: Residency, target: Target, policy: Policy) -> int:
    """Return how many bytes a rotation covers at least; bandwidth ceilings are measured over the same number."""
    caches = target.cache_bytes
    last = caches[-1] if caches else 0
    if residency == "dram":
        return max(policy.dram_bytes, policy.cache_multiple * last)
    private = caches[-2] * target.threads if len(caches) > 1 else 0
    return min(max(policy.cache_multiple * private, policy.cache_bytes), last // 2)


class Slots:
    """Copies of one region's weights and states in one block of memory, with equal content at different addresses."""

    def __init__(self, needs: tuple[Need, ...], *, covers_bytes: int, seed: int, device: str = "cpu") -> None:
        """Allocate and fill so many slots that one launch on each reads `covers_bytes` in total, at least one slot.

        `MOST_DEVICE_BYTES` and `MOST_DEVICE_SLOTS` bound the slots on a GPU, `covers_bytes` those on the host.

        Raises:
            RuntimeError: memory ran out.
        """
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
        """Return the flat buffer `name` of a slot, or its first `numel` elements."""
        need = self._needs[name]
        start = slot * self.slot_bytes + self._offsets[name]
        size = (numel or need.numel) * need.dtype.itemsize
        return self._block[start : start + size].view(need.dtype)


def _fill(view: torch.Tensor, need: Need, generator: torch.Generator) -> None:
    """Fill `view` by repeating a block of normals: caches do not see content, and drawing a GB takes seconds."""
    block = torch.randn(min(need.numel, 1 << 20), generator=generator).mul_(need.scale).add_(need.offset)
    block = block.to(need.dtype).to(view.device)
    for start in range(0, need.numel, block.numel()):
        part = view[start : start + block.numel()]
        part.copy_(block[: part.numel()])


def block(nbytes: int, device: str = "cpu") -> torch.Tensor:
    """Allocate page-aligned memory as the runtime's arena does; on the host in huge pages where the system has them."""
    return backend_of(device).empty(nbytes, device, ALIGN_BYTES)
