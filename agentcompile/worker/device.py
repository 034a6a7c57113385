"""A CUDA candidate on host buffers: copied to the device redzones and all, launched on, and copied back.

So the correctness suite is one for every device: what a kernel writes beside its buffers comes back with them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from agentcompile.ir.template import Source
from agentcompile.runtime.driver import Call, Module

_ALIGN = 256
"""Of every buffer's first byte on the device, as its allocator aligns a tensor."""


def device_runner(source: Source, cubin: Path, arch: str) -> Callable[[Mapping[str, torch.Tensor]], None]:
    """What launches a candidate once on copies of the host buffers it is given, and waits.

    Raises AgentCompileError (environment) when the driver refuses the binary or a launch; RuntimeError from PyTorch
    when a kernel failed while it ran, after which the context is of no more use.
    """
    module = Module(cubin)

    def run(buffers: Mapping[str, torch.Tensor]) -> None:
        copies = {name: _Copy(tensor) for name, tensor in buffers.items()}
        calls = [
            Call.of(
                module,
                launch,
                [copies[name].pointer if name else 0 for name in launch.arguments],
                dependent=_dependent(arch),
            )
            for launch in source.launches
        ]
        stream = torch.cuda.current_stream().cuda_stream
        for call in calls:
            call.run(stream)
        torch.cuda.synchronize()
        for copy in copies.values():
            copy.back()

    return run


def _dependent(arch: str) -> bool:
    """Whether an architecture has programmatic dependent launch."""
    digits = arch.removeprefix("sm_").rstrip("af")
    return digits.isdigit() and int(digits) >= 90


class _Copy:
    """The whole memory around a host tensor, on the device, with the tensor's first byte aligned."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._host = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
        offset = tensor.data_ptr() - self._host.data_ptr()
        room = torch.empty(self._host.numel() + _ALIGN, dtype=torch.uint8, device="cuda")
        shift = -(room.data_ptr() + offset) % _ALIGN
        self._device = room[shift : shift + self._host.numel()]
        self._device.copy_(self._host)
        self.pointer = self._device.data_ptr() + offset

    def back(self) -> None:
        self._host.copy_(self._device)
