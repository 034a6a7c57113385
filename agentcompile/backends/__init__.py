"""What differs between kinds of devices, behind one protocol: the rest of the compiler compares no kinds."""

from __future__ import annotations

from collections.abc import Mapping

from agentcompile.backends.backend import Backend, StepRules
from agentcompile.backends.cpu import Cpu
from agentcompile.backends.cuda import Cuda

BACKENDS: Mapping[str, Backend] = {"cpu": Cpu(), "cuda": Cuda()}
"""By kind of device."""


def backend_of(device: str) -> Backend:
    """The backend of a device (``cpu``, ``cuda:1``) or of a kind; KeyError for another."""
    return BACKENDS[device.partition(":")[0]]


__all__ = ["BACKENDS", "Backend", "StepRules", "backend_of"]
