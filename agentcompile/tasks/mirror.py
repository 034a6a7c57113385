"""Copies of an arena's blocks in a device's memory, each with its redzones, and nothing mapped on the other side of it.

The arena stays in the host's memory, where the process that examines results maps it. A kernel for a device sees the
copies alone: what is expected of it is in no memory that it can reach.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

import torch
from torch import Tensor

from agentcompile.tasks.wire import ArenaFile
from agentcompile.validate.device_fence import fenced


class Mirror:
    """The copies of one arena on the current device."""

    def __init__(self, file: ArenaFile, addresses: Mapping[str, int]) -> None:
        """Take memory for every block of `file`, whose buffers are mapped at `addresses`.

        Raises:
            AgentCompileError: the device has no such memory (environment).
        """
        self._pairs = list[tuple[Tensor, Tensor]]()
        self.buffers: dict[str, Tensor] = {}
        """The bytes of every buffer on the device, by name."""
        for block in file.blocks:
            place = (ctypes.c_uint8 * block.size).from_address(addresses[block.name] - block.start)
            host, copy = torch.frombuffer(place, dtype=torch.uint8), fenced(block.size, before=block.start == 0)
            self._pairs.append((host, copy))
            self.buffers[block.name] = copy[block.start : block.start + block.nbytes]

    def load(self) -> None:
        """Copy everything to the device."""
        for host, copy in self._pairs:
            copy.copy_(host)

    def store(self) -> None:
        """Copy everything back."""
        for host, copy in self._pairs:
            host.copy_(copy)
