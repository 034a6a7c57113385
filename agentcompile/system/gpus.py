"""NVIDIA GPUs as the driver reports them: its version, devices, their memory, clocks, and who else uses them.

The result is a `Driver`, or None without a driver. Nothing here raises or makes a CUDA context; what the driver does
not report is None. The source is NVML (``libnvidia-ml.so.1``); where a container has no NVML, the CUDA version comes
from the driver library itself. Only the standard library is used.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

NVML, CUDA = "libnvidia-ml.so.1", "libcuda.so.1"
Load = Callable[[str], Any]
"""A function that opens a shared library by name and raises OSError when there is none."""

_TEXT_BYTES = 96
_CLOCK_SM = 1  # NVML_CLOCK_SM
_TOO_SMALL = 7  # NVML_ERROR_INSUFFICIENT_SIZE
_UNKNOWN_BYTES = 2**64 - 1  # NVML_VALUE_NOT_AVAILABLE
_MOST_PROCESSES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """Another process with a context on a GPU; in a container its `pid` may be the host's."""

    pid: int
    memory_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One device; `index` is its place in the driver's order, which need not be CUDA's order."""

    index: int
    name: str
    capability: tuple[int, int] | None = None
    memory_bytes: int | None = None
    free_bytes: int | None = None
    clock_mhz: int | None = None
    """Current clock of the multiprocessors; low while the device is idle."""
    most_clock_mhz: int | None = None
    processes: tuple[Process, ...] | None = None
    """Other processes with a context on the device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """A driver that answered, with the devices that it shows to this machine."""

    version: str = ""
    """The driver's version, like ``580.95.05``; empty without NVML."""
    cuda: tuple[int, int] | None = None
    """The newest CUDA version that the driver runs."""
    gpus: tuple[Gpu, ...] | None = None
    """The devices; None when NVML could not be asked."""
    problem: str = ""
    """Why NVML did not answer; empty when it did."""


class _Memory(ctypes.Structure):
    """NVML's `nvmlMemory_t`."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class _ProcessInfo(ctypes.Structure):
    """NVML's `nvmlProcessInfo_t`, its second version and later."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("memory", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


def find_driver(load: Load = ctypes.CDLL) -> Driver | None:
    """Return what the driver of this machine reports, or None when there is none; `load` opens its libraries."""
    try:
        nvml = _Nvml(load(NVML))
    except OSError as error:
        return _without_nvml(load, str(error))
    if problem := nvml.start():
        return _without_nvml(load, problem)
    try:
        return Driver(version=nvml.text("nvmlSystemGetDriverVersion"), cuda=nvml.cuda(), gpus=nvml.gpus())
    finally:
        nvml.call("nvmlShutdown")


class Meter:
    """A GPU's identity and the energy that it has drawn since its driver was loaded, from NVML (Volta and later)."""

    def __init__(self, device: str, visible: str | None, load: Load = ctypes.CDLL) -> None:
        """Open `device` (``cuda:N``); `visible` is the value of CUDA_VISIBLE_DEVICES, or None when it is not set."""
        self._handle: ctypes.c_void_p | None = None
        try:
            self._nvml = _Nvml(load(NVML))
        except OSError:
            return
        if not self._nvml.start():
            self._handle = self._nvml.handle(*_device_of(device, visible))

    def identity(self) -> str:
        """Return the device's UUID from NVML; empty where NVML does not report it."""
        return "" if self._handle is None else self._nvml.text("nvmlDeviceGetUUID", self._handle)

    def joules(self) -> float | None:
        """Return the energy in J that the device has drawn until now; None where NVML does not count it."""
        drawn_mj = ctypes.c_ulonglong(0)
        if self._handle is None:
            return None
        asked = self._nvml.call("nvmlDeviceGetTotalEnergyConsumption", self._handle, ctypes.byref(drawn_mj))
        return drawn_mj.value / 1e3 if asked == 0 else None


def _device_of(device: str, visible: str | None) -> tuple[int, str]:
    """Return a device's number in the driver's order and "", or -1 and its UUID when `visible` names UUIDs."""
    at = int(device.partition(":")[2] or 0)
    named = [word.strip() for word in visible.split(",")] if visible else []
    word = named[at] if at < len(named) else str(at)
    return (int(word), "") if word.isdigit() else (-1, word)


def _without_nvml(load: Load, problem: str) -> Driver | None:
    """Return what the driver library alone reports; None without one.

    Containers that may compute but not manage devices have only this library.
    """
    version = ctypes.c_int(0)
    try:
        status = load(CUDA).cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return None
    return Driver(cuda=_version(version.value), problem=problem) if status == 0 and version.value else None


def _version(number: int) -> tuple[int, int]:
    """Return the major and minor version of CUDA's number: 13020 is (13, 2)."""
    return number // 1000, number % 1000 // 10


class _Nvml:
    """The NVML library, whose functions return a status and write through pointers."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def start(self) -> str:
        """Initialise NVML and return what went wrong, or an empty string."""
        status = self.call("nvmlInit_v2")
        return "" if status == 0 else f"{NVML}: {self._error(status)}"

    def call(self, name: str, *arguments: Any) -> int | None:
        """Call a function and return its status, 0 for success; None when this driver does not have the function."""
        try:
            return int(getattr(self._library, name)(*arguments))
        except AttributeError:
            return None

    def _error(self, status: int | None) -> str:
        try:
            say = self._library.nvmlErrorString
        except AttributeError:
            return f"status {status}"
        say.restype = ctypes.c_char_p
        said = say(-1 if status is None else status)
        return said.decode(errors="replace") if said else f"status {status}"

    def text(self, name: str, *arguments: Any) -> str:
        """Return the text that a function writes; empty when it fails."""
        room = ctypes.create_string_buffer(_TEXT_BYTES)
        done = self.call(name, *arguments, room, ctypes.c_uint(_TEXT_BYTES)) == 0
        return room.value.decode(errors="replace") if done else ""

    def number(self, name: str, *arguments: Any) -> int | None:
        """Return the unsigned integer that a function writes; None when it fails."""
        value = ctypes.c_uint(0)
        return value.value if self.call(name, *arguments, ctypes.byref(value)) == 0 else None

    def handle(self, index: int, uuid: str) -> ctypes.c_void_p | None:
        """Return the handle of the device with `uuid`, or with number `index` when `uuid` is empty; None on failure."""
        found = ctypes.c_void_p()
        if uuid:
            status = self.call("nvmlDeviceGetHandleByUUID", ctypes.c_char_p(uuid.encode()), ctypes.byref(found))
        else:
            status = self.call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(found))
        return found if status == 0 else None

    def cuda(self) -> tuple[int, int] | None:
        """Return the newest CUDA version that the driver runs; None when it does not say."""
        number = self.number("nvmlSystemGetCudaDriverVersion_v2")
        return _version(number) if number else None

    def gpus(self) -> tuple[Gpu, ...] | None:
        """Return every device that can be opened; None when the driver does not say how many there are."""
        count = self.number("nvmlDeviceGetCount_v2")
        if count is None:
            return None
        found = []
        for index in range(count):
            if (handle := self.handle(index, "")) is not None:
                found.append(self._gpu(index, handle))
        return tuple(found)

    def _gpu(self, index: int, handle: ctypes.c_void_p) -> Gpu:
        major, minor = ctypes.c_int(0), ctypes.c_int(0)
        told = self.call("nvmlDeviceGetCudaComputeCapability", handle, ctypes.byref(major), ctypes.byref(minor)) == 0
        memory = _Memory()
        sized = self.call("nvmlDeviceGetMemoryInfo", handle, ctypes.byref(memory)) == 0
        return Gpu(
            index=index,
            name=self.text("nvmlDeviceGetName", handle),
            capability=(major.value, minor.value) if told else None,
            memory_bytes=memory.total if sized else None,
            free_bytes=memory.free if sized else None,
            clock_mhz=self.number("nvmlDeviceGetClockInfo", handle, ctypes.c_uint(_CLOCK_SM)),
            most_clock_mhz=self.number("nvmlDeviceGetMaxClockInfo", handle, ctypes.c_uint(_CLOCK_SM)),
            processes=self._processes(handle),
        )

    def _processes(self, handle: ctypes.c_void_p) -> tuple[Process, ...] | None:
        room = 32
        while room <= _MOST_PROCESSES:
            infos, count = (_ProcessInfo * room)(), ctypes.c_uint(room)
            status = self.call("nvmlDeviceGetComputeRunningProcesses_v3", handle, ctypes.byref(count), infos)
            if status == 0:
                return tuple(_process(info) for info in infos[: count.value] if info.pid != os.getpid())
            if status != _TOO_SMALL:
                return None
            room *= 2  # more processes may start meanwhile, so the returned count is not used
        return None


def _process(info: _ProcessInfo) -> Process:
    return Process(pid=info.pid, memory_bytes=None if info.memory == _UNKNOWN_BYTES else info.memory)
