"""CUDA kernels through the driver: cubins, launches with their geometry, on whatever stream and context PyTorch uses.

`cuda.bindings` is loaded on first use. The caller keeps every buffer alive.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentcompile.bindings import checked, load
from agentcompile.ir.template import Launch

_DEFAULT_SHARED_BYTES = 48 << 10


class Module:
    """A cubin loaded into the current context. It stays loaded as long as the process."""

    def __init__(self, path: Path) -> None:
        """Load `path`; raises AgentCompileError (environment) when the driver refuses it."""
        self.path = path
        self._functions: dict[str, Any] = {}
        _primary_context()
        self._handle = _checked(_driver().cuModuleLoadData(path.read_bytes()), f"{path}: cannot be loaded")

    def entry(self, name: str, shared_bytes: int) -> Any:
        """The function `name`, allowed to take `shared_bytes` of dynamic shared memory."""
        driver = _driver()
        if name not in self._functions:
            found = driver.cuModuleGetFunction(self._handle, name.encode())
            self._functions[name] = _checked(found, f"{self.path}: has no entry {name!r}")
        function = self._functions[name]
        if shared_bytes > _DEFAULT_SHARED_BYTES:
            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            _checked(
                driver.cuFuncSetAttribute(function, attribute, shared_bytes),
                f"{self.path}: {name}: {shared_bytes} bytes of shared memory",
            )
        return function


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One bound launch: a function, its geometry, and the pointers of its argument struct in order (0 is null)."""

    function: Any
    config: Any
    keep: tuple[Any, ...]
    parameters: int
    """Address of the array of parameter addresses."""

    @staticmethod
    def of(module: Module, launch: Launch, pointers: Sequence[int], *, dependent: bool) -> Call:
        """Bind `launch`, whose geometry is numbers, to `pointers`.

        `dependent`: start while the kernel before is still running, where both take part in programmatic dependent
        launch (compute capability 9.0 and later).
        """
        driver, shared = _driver(), int(launch.shared_bytes)
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = _three(launch.grid)
        config.blockDimX, config.blockDimY, config.blockDimZ = _three(launch.block)
        config.sharedMemBytes = shared
        if dependent and launch.pdl:
            attribute = driver.CUlaunchAttribute()
            attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            attribute.value.programmaticStreamSerializationAllowed = 1
            config.attrs, config.numAttrs = [attribute], 1
        struct = (ctypes.c_void_p * max(len(pointers), 1))(*pointers)
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(struct))
        return Call(
            function=module.entry(launch.entry, shared),
            config=config,
            keep=(struct, parameters),
            parameters=ctypes.addressof(parameters),
        )

    def run(self, stream: int) -> None:
        """Enqueue on the stream of that handle; raises AgentCompileError when the launch itself is refused."""
        driver = _driver()
        self.config.hStream = stream
        _checked(driver.cuLaunchKernelEx(self.config, self.function, self.parameters, 0), "a kernel cannot be started")


def _primary_context() -> None:
    """Make the first device's primary context current in this thread, unless it has one: PyTorch uses the same."""
    driver = _driver()
    if int(_checked(driver.cuCtxGetCurrent(), "no context")) == 0:
        device = _checked(driver.cuDeviceGet(0), "there is no CUDA device")
        context = _checked(driver.cuDevicePrimaryCtxRetain(device), "the device gives no context")
        _checked(driver.cuCtxSetCurrent(context), "the device's context cannot be used")


def _three(extents: Sequence[str]) -> tuple[int, int, int]:
    x, y, z = ([int(extent) for extent in extents] + [1, 1, 1])[:3]
    return x, y, z


@functools.cache
def _driver() -> Any:
    return load(
        "driver",
        lambda driver: _checked(driver.cuInit(0), "the driver does not start"),
        what="there is no CUDA driver",
        hint="install NVIDIA's driver and the CUDA extra, or compile for the CPU: --target cpu",
    )


def _checked(result: tuple[Any, ...], what: str) -> Any:
    return checked(result, what, "agentcompile doctor says what driver and devices are there")
