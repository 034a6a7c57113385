"""The CPU backend: kernels in C++, one sequence at a time, prefill in chunks of any length."""

from __future__ import annotations

import contextlib
import mmap
from pathlib import Path
from typing import TYPE_CHECKING

from agentcompile.backends.backend import Backend, ReferenceRules, StepRules, TimeRules
from agentcompile.ir.target import Target

if TYPE_CHECKING:
    import torch


class _Cpu(Backend):
    kind = "cpu"
    unit = "threads"
    first = "cpu"
    languages = ("cpp",)
    # The gain of a small region cannot be told from noise.
    step = StepRules(passes=1, least_share=0.02, claim=0.005, rounds=5, whole_space=False)
    time = TimeRules(searched=0.5, confirmed=0.75, tuned=0.9, finished=0.95, region_s=2.0, start_s=4.0)
    # 2 MiB of widened weights stay in a core's cache, five times as fast as DRAM.
    reference = ReferenceRules(widened=1 << 18, prompt_work=8e8, walk_work=7e8, walk_launches=768)
    context_ends = ()  # a kernel splits the context by itself
    serves_batches = False
    any_chunk = True
    queued = False
    own_memory = False
    tuned_defaults = False
    needs_driver = False
    poisonable = False

    def lacks(self, arch: tuple[str, ...], target: Target) -> str:
        missing = [name for name in arch if name not in target.isa]  # a template names every extension that it uses
        return f"the machine lacks {', '.join(missing)}" if missing else ""

    def torch_threads(self, target: Target) -> int:
        return target.threads  # as many as kernels have, because PyTorch is the baseline

    def validations_at_once(self, target: Target, cores: int) -> int:
        # A kernel uses every thread, but half of a validation is its reference, which uses one.
        return max(1, cores // max(target.threads, 1)) + 1

    def free_bytes(self, device: str) -> int:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("/proc/meminfo names no available memory")

    def blocks_at_once(self, device: str) -> int:
        return 0

    def zeroed(self, nbytes: int, device: str) -> torch.Tensor:
        # A decode step reads all weights once, and with 4 KiB pages the page walks cost 2–4 % of the read bandwidth.
        return _pages(nbytes, huge=True)

    def empty(self, nbytes: int, device: str, align: int) -> torch.Tensor:
        return _pages(nbytes, huge=nbytes >= 2 << 20)


def _pages(nbytes: int, *, huge: bool) -> torch.Tensor:
    import torch

    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(AttributeError, OSError, ValueError):  # a kernel without huge pages still works
        if huge:
            memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)


CPU: Backend = _Cpu()
