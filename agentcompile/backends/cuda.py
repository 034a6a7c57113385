"""CUDA devices: kernels in CUDA C++ and Triton, steps as graphs, several sequences, prompts on kernels too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentcompile.backends.backend import StepRules
from agentcompile.ir.target import Target

if TYPE_CHECKING:
    import torch

_CONTEXTS = 8
"""Workers that validate at once: each holds a context of hundreds of megabytes, and the suite is bound by the host."""


class Cuda:
    """See `Backend`."""

    kind = "cuda"
    unit = "multiprocessors"
    # What moves few bytes still takes a launch and a wait. Steps repeat to a few tenths of a percent, and a region's
    # gains are as small.
    step = StepRules(passes=3, least_share=0.0, claim=0.001, rounds=10, whole_space=True)
    context_ends = (512, 2048, 8192)  # what is best for a short context leaves most of a GPU idle at a long one
    serves_batches = True
    prompt_kernels = True
    queued = True
    own_memory = True
    tuned_defaults = True
    needs_driver = True
    poisonable = True

    def lacks(self, arch: tuple[str, ...], target: Target) -> str:
        """A template names the architectures that it was made for, of which one is enough."""
        if not arch or _covers(arch, target.arch):
            return ""
        return f"it needs one of {', '.join(arch)}, the device is {target.arch}"

    def torch_threads(self, target: Target) -> int:
        """The host only queues."""
        return 1

    def validations_at_once(self, target: Target, cores: int) -> int:
        """Bound by memory and by the host."""
        return min(cores, _CONTEXTS)

    def free_bytes(self, device: str) -> int:
        """Of the device."""
        import torch

        return int(torch.cuda.mem_get_info(device)[0])

    def blocks_at_once(self, device: str) -> int:
        """One a multiprocessor."""
        import torch

        return int(torch.cuda.get_device_properties(device).multi_processor_count)

    def zeroed(self, nbytes: int, device: str) -> torch.Tensor:
        """Of the device."""
        import torch

        return torch.zeros(nbytes, dtype=torch.uint8, device=device)

    def empty(self, nbytes: int, device: str, align: int) -> torch.Tensor:
        """Of the device, cut to the alignment."""
        import torch

        loose = torch.empty(nbytes + align, dtype=torch.uint8, device=device)
        return loose[-loose.data_ptr() % align :][:nbytes]

    def graph_pool(self) -> Any:
        """A new one: a pool ends with the last of its graphs."""
        import torch

        return torch.cuda.graph_pool_handle()

    def event(self) -> Any:
        """One without a time."""
        import torch

        return torch.cuda.Event()  # type: ignore[no-untyped-call]

    def synchronize(self) -> None:
        """Of the current device."""
        import torch

        torch.cuda.synchronize()

    def release_memory(self) -> None:
        """All that no tensor holds."""
        import torch

        torch.cuda.empty_cache()


def _covers(known: tuple[str, ...], arch: str) -> bool:
    """Whether code for one of the `known` architectures serves `arch`: its own, or any plain one where the device is
    newer than all that the manifest knows (PTX of a plain architecture compiles for every later one)."""
    number = _number(arch)
    newer = all(_number(one) < number for one in known)
    return arch in known or (newer and any(one[-1].isdigit() for one in known))


def _number(arch: str) -> int:
    return int(arch.removeprefix("sm_").rstrip("af"))
