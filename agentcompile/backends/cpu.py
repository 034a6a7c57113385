"""The CPU backend: kernels in C++, one sequence at a time, prefill in PyTorch."""

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
    """The CPU backend; `Backend` describes the members."""

    kind = "cpu"
    unit = "threads"
    # The gain of a small region cannot be told from noise.
    step = StepRules(passes=1, least_share=0.02, claim=0.005, rounds=5, whole_space=False)
    context_ends = ()  # a kernel splits the context by itself
    serves_batches = False
    prompt_kernels = False
    queued = False
    own_memory = False
    tuned_defaults = False
    needs_driver = False
    poisonable = False

    def lacks(self, arch: tuple[str, ...], target: Target) -> str:
        """Return in words which extensions of `arch` the machine lacks; a template names every one that it uses."""
        missing = [name for name in arch if name not in target.isa]
        return f"the machine lacks {', '.join(missing)}" if missing else ""

    def torch_threads(self, target: Target) -> int:
        """Return as many threads as kernels have, because PyTorch is the baseline."""
        return target.threads

    def validations_at_once(self, target: Target, cores: int) -> int:
        """Return how many workers fit on `cores`: a kernel uses every thread, so more workers would share cores."""
        return max(1, cores // max(target.threads, 1))

    def free_bytes(self, device: str) -> int:
        """Return the available memory of the whole machine in bytes.

        Raises:
            AssertionError: ``/proc/meminfo`` names no available memory.
        """
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("/proc/meminfo names no available memory")

    def blocks_at_once(self, device: str) -> int:
        """Return 0: a CPU has threads, but no thread blocks."""
        return 0

    def zeroed(self, nbytes: int, device: str) -> torch.Tensor:
        """Return zeros on huge pages where the kernel has them.

        A decode step reads all weights once, and with 4 KiB pages the page walks cost 2–4 % of the read bandwidth.
        """
        import torch

        memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with contextlib.suppress(AttributeError, OSError, ValueError):  # a kernel without huge pages still works
            memory.madvise(mmap.MADV_HUGEPAGE)
        return torch.frombuffer(memory, dtype=torch.uint8)

    def empty(self, nbytes: int, device: str, align: int) -> torch.Tensor:
        """Return whole pages, as in the runtime's arena: huge pages when `nbytes` is at least the size of one."""
        import torch

        memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with contextlib.suppress(AttributeError, OSError, ValueError):  # a kernel without huge pages still works
            if nbytes >= 2 << 20:
                memory.madvise(mmap.MADV_HUGEPAGE)
        return torch.frombuffer(memory, dtype=torch.uint8)

    def graph_pool(self) -> Any:
        """Return None: a CPU has no graphs."""
        return None

    def event(self) -> Any:
        """Return None: a CPU has no streams."""
        return None

    def synchronize(self) -> None:
        """Do nothing: no work is queued."""

    def release_memory(self) -> None:
        """Do nothing: PyTorch caches no memory of a CPU."""
