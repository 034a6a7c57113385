"""The CUDA backend: kernels in CUDA C++ and Triton, steps as graphs, batches of sequences, prefill on kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentcompile.backends.backend import Backend, ReferenceRules, StepRules, TimeRules
from agentcompile.ir.target import Target

if TYPE_CHECKING:
    import torch

_CONTEXTS = 8
"""The most workers that validate at once: a context takes hundreds of megabytes, and the host is the limit."""


class _Cuda(Backend):
    kind = "cuda"
    unit = "multiprocessors"
    first = "cuda:0"
    languages = ("cuda", "triton")
    # A region that moves few bytes still costs a launch and a wait. Steps repeat to a few tenths of a percent, and the
    # gains of a region are as small.
    step = StepRules(passes=3, least_share=0.0, claim=0.001, rounds=10, whole_space=True)
    # Most of a region's seconds are acceptance: 172 of 244 s for 29 regions of a model of 1 B on an H200, 8,448 slots,
    # whose prompts' kernels are accepted at ten lengths.
    time = TimeRules(searched=0.4, confirmed=0.55, tuned=0.85, finished=0.95, region_s=8.0, start_s=0.0)
    reference = ReferenceRules(widened=1 << 27, prompt_work=4e10, walk_work=4e10, walk_launches=1024)
    context_ends = (512, 2048, 8192)  # what is best for a short context leaves most of a GPU idle at a long one
    serves_batches = True
    any_chunk = False
    queued = True
    own_memory = True
    tuned_defaults = True
    needs_driver = True
    poisonable = True

    def lacks(self, arch: tuple[str, ...], target: Target) -> str:
        if not arch or _covers(arch, target.arch):  # a template names its architectures, and one suffices
            return ""
        return f"it needs one of {', '.join(arch)}, the device is {target.arch}"

    def torch_threads(self, target: Target) -> int:
        return 1  # the host only queues work

    def validations_at_once(self, target: Target, cores: int) -> int:
        return min(cores, _CONTEXTS)

    def free_bytes(self, device: str) -> int:
        return int(_cuda().mem_get_info(device)[0])

    def blocks_at_once(self, device: str) -> int:
        return int(_cuda().get_device_properties(device).multi_processor_count)

    def zeroed(self, nbytes: int, device: str) -> torch.Tensor:
        import torch

        return torch.zeros(nbytes, dtype=torch.uint8, device=device)

    def empty(self, nbytes: int, device: str, align: int) -> torch.Tensor:
        import torch

        loose = torch.empty(nbytes + align, dtype=torch.uint8, device=device)
        return loose[-loose.data_ptr() % align :][:nbytes]

    def graph_pool(self) -> Any:
        return _cuda().graph_pool_handle()  # a pool is freed with the last of its graphs

    def event(self) -> Any:
        return _cuda().Event()

    def synchronize(self) -> None:
        _cuda().synchronize()

    def release_memory(self) -> None:
        _cuda().empty_cache()


def _cuda() -> Any:
    import torch

    return torch.cuda


def _covers(known: tuple[str, ...], arch: str) -> bool:
    """Return whether code for one of the `known` architectures runs on `arch`.

    It does when `arch` is among them. It also does when `arch` is newer than all of them and one of them is a plain
    architecture, because the PTX of a plain architecture compiles for every later one.
    """
    number = _number(arch)
    newer = all(_number(one) < number for one in known)
    return arch in known or (newer and any(one[-1].isdigit() for one in known))


def _number(arch: str) -> int:
    return int(arch.removeprefix("sm_").rstrip("af"))


CUDA: Backend = _Cuda()
