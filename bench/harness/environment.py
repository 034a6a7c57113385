"""The environment that all arms of a run share besides the machine itself: versions, threads, clocks."""

from __future__ import annotations

import platform
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from agentcompile.evaluation.machine import Machine
from agentcompile.ir.digest import SHORT, digest
from agentcompile.options import visible_devices
from agentcompile.system.gpus import Meter, find_driver

_PACKAGES = ("agentcompile", "torch", "transformers", "triton", "vllm", "llama-cpp-python")
_GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
_BOOT = Path("/proc/sys/kernel/random/boot_id")


def host(device: str) -> str:
    """Return a short digest of this machine and GPU; another machine of the kind, or a reboot, gives another one."""
    told = {"name": platform.node(), "boot": "", "gpu": ""}
    with suppress(OSError):
        told["boot"] = _BOOT.read_text(encoding="ascii").strip()
    if device != "cpu":
        told["gpu"] = Meter(device, visible_devices()).identity()
    return digest("bench-host/1", dict(told))[:SHORT]


def environment(machine: Machine, threads: int) -> dict[str, str]:
    """Return versions and settings by name; those that are not there are left out."""
    found = {"python": sys.version.split()[0], "threads": str(threads)}
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    with suppress(OSError):
        found["governor"] = _GOVERNOR.read_text(encoding="ascii").strip()
    if machine.device != "cpu" and (driver := find_driver()) is not None:
        found["driver"] = driver.version
    return found
