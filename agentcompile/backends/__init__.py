"""The backends: one protocol for all that differs between device kinds, so no other package branches on the kind."""

from __future__ import annotations

from collections.abc import Mapping

from agentcompile.backends.backend import Backend, ReferenceRules, StepRules, TimeRules
from agentcompile.backends.cpu import CPU
from agentcompile.backends.cuda import CUDA

BACKENDS: Mapping[str, Backend] = {"cpu": CPU, "cuda": CUDA}
"""Every backend by device kind, ``cpu`` or ``cuda``."""


def backend_of(device: str) -> Backend:
    """Return the backend of `device`, a device name (``cpu``, ``cuda:1``) or a device kind.

    Raises:
        KeyError: no backend exists for that kind.
    """
    return BACKENDS[device.partition(":")[0]]


__all__ = ["BACKENDS", "Backend", "ReferenceRules", "StepRules", "TimeRules", "backend_of"]
