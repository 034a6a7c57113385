from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from agentcompile.system.gpus import CUDA, NVML, Driver, Meter, Process, find_driver

Load = Callable[[str], Any]
UNKNOWN = 2**64 - 1


FUNCTIONS = {
    "nvmlInit_v2": "init",
    "nvmlShutdown": "shutdown",
    "nvmlErrorString": "error",
    "nvmlSystemGetDriverVersion": "driver_version",
    "nvmlSystemGetCudaDriverVersion_v2": "cuda_version",
    "nvmlDeviceGetCount_v2": "count",
    "nvmlDeviceGetHandleByIndex_v2": "handle",
    "nvmlDeviceGetName": "name",
    "nvmlDeviceGetCudaComputeCapability": "capability",
    "nvmlDeviceGetMemoryInfo": "memory",
    "nvmlDeviceGetClockInfo": "clock",
    "nvmlDeviceGetMaxClockInfo": "most_clock",
    "nvmlDeviceGetComputeRunningProcesses_v3": "running",
    "nvmlDeviceGetHandleByUUID": "by_uuid",
    "nvmlDeviceGetTotalEnergyConsumption": "energy",
    "cuDriverGetVersion": "version",
}
"""Functions of the two libraries, and what the classes below call them."""


class Nvml:
    """NVML with one H200 and three processes on it, of which one is this one. It writes through pointers as C does."""

    processes: tuple[tuple[int, int], ...] = ((4321, 2 << 30), (os.getpid(), 1 << 20), (99, UNKNOWN))

    def init(self) -> int:
        return 0

    def shutdown(self) -> int:
        return 0

    def error(self, status: int) -> bytes:
        return f"error {status}".encode()

    def driver_version(self, room: Any, size: Any) -> int:
        room.value = b"580.95.05"
        return 0

    def cuda_version(self, version: Any) -> int:
        version._obj.value = 13020
        return 0

    def count(self, count: Any) -> int:
        count._obj.value = 1
        return 0

    def handle(self, index: Any, handle: Any) -> int:
        handle._obj.value = 0x1000 + index.value
        return 0

    def by_uuid(self, uuid: Any, handle: Any) -> int:
        if uuid.value != b"GPU-second":
            return 2
        handle._obj.value = 0x1001
        return 0

    def energy(self, handle: Any, drawn_mj: Any) -> int:
        drawn_mj._obj.value = 7_500 + handle.value - 0x1000
        return 0

    def name(self, handle: Any, room: Any, size: Any) -> int:
        assert handle.value == 0x1000
        room.value = b"NVIDIA H200"
        return 0

    def capability(self, handle: Any, major: Any, minor: Any) -> int:
        major._obj.value, minor._obj.value = 9, 0
        return 0

    def memory(self, handle: Any, memory: Any) -> int:
        memory._obj.total, memory._obj.free = 141 << 30, 139 << 30
        return 0

    def clock(self, handle: Any, kind: Any, clock: Any) -> int:
        assert kind.value == 1, "the multiprocessors' clock"
        clock._obj.value = 345
        return 0

    def most_clock(self, handle: Any, kind: Any, clock: Any) -> int:
        clock._obj.value = 1980
        return 0

    def running(self, handle: Any, count: Any, infos: Any) -> int:
        room, count._obj.value = count._obj.value, len(self.processes)
        if room < len(self.processes):
            return 7
        for info, (pid, memory) in zip(infos, self.processes, strict=False):
            info.pid, info.memory = pid, memory
        return 0


class Cuda:
    """The driver library of a container that may compute and not manage."""

    def version(self, version: Any) -> int:
        version._obj.value = 12040
        return 0


def library(made: object, *without: str) -> Any:
    """The functions of `made` but for some. Each takes attributes (`restype`), as a function of a library does."""
    kept = {long: name for long, name in FUNCTIONS.items() if long not in without and hasattr(made, name)}
    return SimpleNamespace(**{long: partial(getattr(made, name)) for long, name in kept.items()})


def loads(**libraries: Any) -> Load:
    """Opens what is given as `nvml` and `cuda`, and nothing else."""
    named = {"nvml": NVML, "cuda": CUDA}
    there = {named[name]: made for name, made in libraries.items()}

    def load(name: str) -> Any:
        if name not in there:
            raise OSError(f"{name}: cannot open shared object file")
        return there[name]

    return load


def found(nvml: object, *without: str) -> Driver:
    driver = find_driver(loads(nvml=library(nvml, *without)))
    assert driver is not None
    return driver


def test_a_driver_tells_its_version_and_every_device() -> None:
    driver = found(Nvml())
    assert (driver.version, driver.cuda, driver.problem) == ("580.95.05", (13, 2), "")
    assert driver.gpus is not None
    (gpu,) = driver.gpus
    assert (gpu.name, gpu.capability) == ("NVIDIA H200", (9, 0))
    assert (gpu.memory_bytes, gpu.free_bytes) == (141 << 30, 139 << 30)
    assert (gpu.clock_mhz, gpu.most_clock_mhz) == (345, 1980)


def test_this_process_is_no_other_and_unknown_memory_is_none() -> None:
    (gpu,) = found(Nvml()).gpus or ()
    assert gpu.processes == (Process(pid=4321, memory_bytes=2 << 30), Process(pid=99, memory_bytes=None))


def test_a_crowd_of_processes_is_listed_whole() -> None:
    crowd = Nvml()
    crowd.processes = tuple((1_000_000_000 + at, at) for at in range(100))
    (gpu,) = found(crowd).gpus or ()
    assert gpu.processes is not None
    assert len(gpu.processes) == 100


def test_a_machine_without_a_driver_is_none() -> None:
    assert find_driver(loads()) is None


def test_without_nvml_the_driver_library_says_its_version() -> None:
    driver = find_driver(loads(cuda=library(Cuda())))
    assert driver is not None
    assert (driver.cuda, driver.gpus) == ((12, 4), None)
    assert NVML in driver.problem


def test_nvml_that_finds_no_driver_leaves_the_word_to_the_driver_library() -> None:
    class Stub(Nvml):
        def init(self) -> int:
            return 9

    assert find_driver(loads(nvml=library(Stub()))) is None
    driver = find_driver(loads(nvml=library(Stub()), cuda=library(Cuda())))
    assert driver is not None
    assert driver.problem == f"{NVML}: error 9"


class Silent(Nvml):
    """Every question about a device is refused: not supported."""

    def name(self, *arguments: Any) -> int:
        return 3

    capability = name
    memory = name
    clock = name
    most_clock = name
    running = name


def test_what_a_driver_does_not_tell_is_none() -> None:
    (gpu,) = found(Silent()).gpus or ()
    told = (gpu.name, gpu.capability, gpu.memory_bytes, gpu.free_bytes, gpu.clock_mhz, gpu.most_clock_mhz)
    assert told == ("", None, None, None, None, None)
    assert gpu.processes is None


@pytest.mark.parametrize("missing", [name for name in FUNCTIONS if name.startswith("nvml")])
def test_an_old_driver_without_a_function_raises_nothing(missing: str) -> None:
    find_driver(loads(nvml=library(Nvml(), missing)))


def test_a_device_that_cannot_be_opened_is_left_out() -> None:
    class Lost(Nvml):
        def handle(self, index: Any, handle: Any) -> int:
            return 15

    assert found(Lost()).gpus == ()


def test_the_layouts_are_those_of_the_header() -> None:
    """On x86-64: a pid is padded to the eight bytes of what follows it."""
    from agentcompile.system import gpus

    assert ctypes.sizeof(gpus._Memory) == 24
    assert ctypes.sizeof(gpus._ProcessInfo) == 24
    assert gpus._ProcessInfo.memory.offset == 8


@pytest.mark.parametrize(
    ("device", "visible", "drawn"),
    [
        ("cuda:0", None, 7.5),
        ("cuda:1", None, 7.501),
        ("cuda:0", "3,1", 7.503),
        ("cuda:1", "3,1", 7.501),
        ("cuda:0", "GPU-second", 7.501),
        ("cuda:0", "GPU-gone", None),
    ],
)
def test_energy_is_that_of_the_device_that_is_visible(device: str, visible: str | None, drawn: float | None) -> None:
    meter = Meter(device, visible, lambda name: library(Nvml()))
    assert meter.joules() == drawn


def test_nobody_counts_energy_without_nvml_or_on_an_older_device() -> None:
    def missing(name: str) -> Any:
        raise OSError(name)

    assert Meter("cuda:0", None, missing).joules() is None
    old = library(Nvml(), "nvmlDeviceGetTotalEnergyConsumption")
    assert Meter("cuda:0", None, lambda name: old).joules() is None
