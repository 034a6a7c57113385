"""CUDA kernels through the driver API: cubins and bound launches, on whatever stream and context PyTorch uses.

A kernel's parameters are pointers, one beside another: a struct of them, or each by itself; the cubin says which.
Tensor maps follow the pointers of a struct.
`cuda.bindings` is loaded on first use. The caller keeps every buffer alive.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentcompile.ir.template import Launch, TensorMap
from agentcompile.system.bindings import checked, load
from agentcompile.system.cubins import ANY, unpack

_DEFAULT_SHARED_BYTES = 48 << 10
_PORTABLE_CLUSTER = 8
"""The largest cluster, in blocks, that every device with clusters runs; larger ones must be allowed per kernel."""
_MAP_ALIGNMENT = 8  # words of 8 bytes
_BOX_COLUMNS = 64
"""Elements of 16 bits in the 128 bytes of a row of a box."""
_ALL_SHARED = 100  # the preferred shared memory in percent of what L1 cache and shared memory have together


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A kernel function of a loaded module, with its parameter layout."""

    function: Any
    shared_bytes: int
    """Dynamic shared memory in bytes that the kernel itself needs, beside what a launch asks for."""
    parameters: tuple[tuple[int, int], ...]
    """The offset and size in bytes of every parameter."""

    def room(self, words_of: Sequence[int]) -> tuple[ctypes.Array[ctypes.c_void_p], ctypes.Array[ctypes.c_void_p]]:
        """Lay out words of 8 bytes as the parameters lie, zeros behind them; also return each parameter's address."""
        # A struct that is aligned to more than the parameters' place begins behind a gap, which is no part of it.
        first = min((offset for offset, _ in self.parameters), default=0)
        nbytes = max((offset + size for offset, size in self.parameters), default=0) - first
        words = (ctypes.c_void_p * max(-(-nbytes // 8), len(words_of), 1))(*words_of)
        places = [ctypes.addressof(words) + offset - first for offset, _ in self.parameters]
        return words, (ctypes.c_void_p * max(len(places), 1))(*places)


class Module:
    """A cubin, or a file of several, loaded into the current context; it stays loaded as long as the process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._entries: dict[str, Entry] = {}
        _primary_context()
        self._loaded = {
            image.entry: (_checked(_driver().cuModuleLoadData(image.code), f"{path}: cannot be loaded"), image)
            for image in unpack(path.read_bytes())
        }

    def entry(self, name: str, shared_bytes: int) -> Entry:
        """Return the function `name`, allowed to use `shared_bytes` of dynamic shared memory beside its own."""
        driver = _driver()
        if name not in self._entries:
            handle, image = self._loaded.get(name) or self._loaded[ANY]
            found = driver.cuModuleGetFunction(handle, name.encode())
            function = _checked(found, f"{self.path}: has no entry {name!r}")
            # To change its split between L1 cache and shared memory a multiprocessor must first run empty: all kernels
            # ask for the same split, so that each may begin while the one before it still runs.
            carveout = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
            asked = driver.cuFuncSetAttribute(function, carveout, _ALL_SHARED)
            _checked(asked, f"{self.path}: {name}: shared memory cannot be preferred")
            _allow_clusters(function, f"{self.path}: {name}")
            parameters = tuple(_parameters(function))
            self._entries[name] = Entry(function=function, shared_bytes=image.shared_bytes, parameters=parameters)
        entry = self._entries[name]
        nbytes = entry.shared_bytes + shared_bytes
        if nbytes > _DEFAULT_SHARED_BYTES:
            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            allowed = driver.cuFuncSetAttribute(entry.function, attribute, nbytes)
            _checked(allowed, f"{self.path}: {name}: {nbytes} bytes of shared memory")
        return entry


def _allow_clusters(function: Any, name: str) -> None:
    """Allow a function the cluster size that its code requires, when it is over the portable one."""
    driver, attributes = _driver(), _driver().CUfunction_attribute
    extents = [
        getattr(attributes, f"CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_{side}") for side in ("WIDTH", "HEIGHT", "DEPTH")
    ]
    wide = [
        _checked(driver.cuFuncGetAttribute(extent, function), f"{name}: the driver does not say what clusters it has")
        for extent in extents
    ]
    if math.prod(max(int(extent), 1) for extent in wide) > _PORTABLE_CLUSTER:
        _allow_larger_clusters(function, name)


def _allow_larger_clusters(function: Any, name: str) -> None:
    driver = _driver()
    attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
    _checked(
        driver.cuFuncSetAttribute(function, attribute, 1), f"{name}: the device takes no clusters of so many blocks"
    )


def _parameters(function: Any) -> Iterator[tuple[int, int]]:
    """Yield offset and size of each parameter, until the driver calls the next number invalid."""
    driver = _driver()
    for number in itertools.count():
        found = driver.cuFuncGetParamInfo(function, number)
        if found[0] == driver.CUresult.CUDA_ERROR_INVALID_VALUE:
            return
        offset, size = _checked(found, "the driver does not say what a kernel takes")
        yield int(offset), int(size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One bound launch: a function, its geometry, and its pointers in the order of its arguments (0 is null)."""

    function: Any
    config: Any
    keep: tuple[Any, ...]
    parameters: int
    """The address of the array of parameter addresses."""

    @staticmethod
    def of(module: Module, launch: Launch, pointers: Sequence[int], *, dependent: bool) -> Call:
        """Bind `launch` to `pointers`; `dependent`: it may start while the one before runs (capability 9.0 and up)."""
        driver, entry = _driver(), module.entry(launch.entry, int(launch.shared_bytes))
        if math.prod(_three(launch.cluster)) > _PORTABLE_CLUSTER:
            _allow_larger_clusters(entry.function, f"{module.path}: {launch.entry}")
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = _three(launch.grid)
        config.blockDimX, config.blockDimY, config.blockDimZ = _three(launch.block)
        config.sharedMemBytes = entry.shared_bytes + int(launch.shared_bytes)
        attributes = list(_attributes(launch, dependent=dependent))
        if attributes:
            config.attrs, config.numAttrs = attributes, len(attributes)
        words, places = entry.room([*pointers, *_maps(launch, pointers)])
        return Call(function=entry.function, config=config, keep=(words, places), parameters=ctypes.addressof(places))

    def run(self, stream: int) -> None:
        """Enqueue on the stream with that handle.

        Raises:
            AgentCompileError: the launch itself is refused.
        """
        driver = _driver()
        self.config.hStream = stream
        _checked(driver.cuLaunchKernelEx(self.config, self.function, self.parameters, 0), "a kernel cannot be started")


def _maps(launch: Launch, pointers: Sequence[int]) -> Iterator[int]:
    """Yield the words of a launch's tensor maps and, before them, what aligns them behind the pointers."""
    if not launch.maps:  # then its pointers need no names
        return
    yield from (0 for _ in range(-len(pointers) % _MAP_ALIGNMENT))
    at = dict(zip(launch.arguments, pointers, strict=True))
    for one in launch.maps:
        yield from _encoded(one, at[one.of])


def _encoded(one: TensorMap, pointer: int) -> Iterator[int]:
    """Yield the words of the driver's own form of a tensor map."""
    driver = _driver()
    made = driver.cuTensorMapEncodeTiled(
        driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_UINT16,
        2,
        pointer,
        [driver.cuuint64_t(one.columns), driver.cuuint64_t(one.rows)],
        [driver.cuuint64_t(2 * one.columns)],
        [driver.cuuint32_t(_BOX_COLUMNS), driver.cuuint32_t(int(one.box))],
        [driver.cuuint32_t(1), driver.cuuint32_t(1)],
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    what = f"{one.of}: no tensor map of {one.rows} x {one.columns} elements in boxes of {one.box} rows"
    yield from map(int, _checked(made, what).opaque)


def _attributes(launch: Launch, *, dependent: bool) -> Iterator[Any]:
    """Yield what a launch asks for beside its geometry: clusters, all blocks at once, and an early start."""
    driver = _driver()
    names = driver.CUlaunchAttributeID
    if launch.cluster:
        cluster = driver.CUlaunchAttribute()
        cluster.id = names.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        extents = cluster.value.clusterDim
        extents.x, extents.y, extents.z = _three(launch.cluster)
        yield cluster
    if launch.cooperative:
        cooperative = driver.CUlaunchAttribute()
        cooperative.id = names.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
        cooperative.value.cooperative = 1
        yield cooperative
    if dependent and launch.pdl and not launch.cooperative:
        early = driver.CUlaunchAttribute()
        early.id = names.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        early.value.programmaticStreamSerializationAllowed = 1
        yield early


def _primary_context() -> None:
    """Make the first device's primary context, as PyTorch uses it, current in this thread unless it has one."""
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
