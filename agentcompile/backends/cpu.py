"""The host: kernels in C++, one sequence at a time, prompts in PyTorch."""

from __future__ import annotations

import contextlib
import mmap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentcompile.backends.backend import StepRules
from agentcompile.ir.target import Target

if TYPE_CHECKING:
    import torch


class Cpu:
    """See `Backend`."""

    kind = "cpu"
    unit = "threads"
    # A gain of a small region could not be told from noise.
    step = StepRules(passes=1, least_share=0.02, claim=0.005, rounds=5, whole_space=False)
    context_ends = ()  # a kernel shares the context out by itself
    serves_batches = False
    prompt_kernels = False
    queued = False
    own_memory = False
    tuned_defaults = False
    needs_driver = False
    poisonable = False

    def lacks(self, arch: tuple[str, ...], target: Target) -> str:
        """A template names every extension that it uses."""
        missing = [name for name in arch if name not in target.isa]
        return f"the machine lacks {', '.join(missing)}" if missing else ""

    def torch_threads(self, target: Target) -> int:
        """As many as kernels have: PyTorch is the baseline."""
        return target.threads

    def validations_at_once(self, target: Target, cores: int) -> int:
        """Kernels use every thread, so more at once than that would share cores."""
        return max(1, cores // max(target.threads, 1))

    def free_bytes(self, device: str) -> int:
        """Of the whole machine."""
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("/proc/meminfo names no available memory")

    def blocks_at_once(self, device: str) -> int:
        """None: threads are no blocks."""
        return 0

    def zeroed(self, nbytes: int, device: str) -> torch.Tensor:
        """On huge pages: a decode step walks all weights once, and on 4 KiB pages the page walks cost 2–4 % of the read
        bandwidth."""
        import torch

        memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with contextlib.suppress(AttributeError, OSError, ValueError):  # a kernel without huge pages still works
            memory.madvise(mmap.MADV_HUGEPAGE)
        return torch.frombuffer(memory, dtype=torch.uint8)

    def empty(self, nbytes: int, device: str, align: int) -> torch.Tensor:
        """Whole pages, huge ones where there are as many bytes as in one, as the runtime's arena has."""
        import torch

        memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE") and nbytes >= 2 << 20:
            memory.madvise(mmap.MADV_HUGEPAGE)
        return torch.frombuffer(memory, dtype=torch.uint8)

    def graph_pool(self) -> Any:
        """There are no graphs."""
        return None

    def event(self) -> Any:
        """There are no streams."""
        return None

    def synchronize(self) -> None:
        """Nothing is queued."""

    def release_memory(self) -> None:
        """Nothing is kept."""
