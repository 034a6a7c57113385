"""What all arms of a run share beside the machine itself: versions, threads, clocks."""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from agentcompile.gpus import find_driver
from agentcompile.machine import Machine

_PACKAGES = ("agentcompile", "torch", "transformers", "triton", "vllm", "llama-cpp-python")
_GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")


def environment(machine: Machine, threads: int) -> dict[str, str]:
    """Facts by name; what is not there is left out."""
    found = {"python": sys.version.split()[0], "threads": str(threads)}
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    with suppress(OSError):
        found["governor"] = _GOVERNOR.read_text(encoding="ascii").strip()
    if machine.device != "cpu" and (driver := find_driver()) is not None:
        found["driver"] = driver.version
    return found
