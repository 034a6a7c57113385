"""Device memory that ends, or begins, at an unmapped address: a kernel that reads or writes past it faults.

The driver maps whole granules (2 MiB on today's devices) into a reserved range that is one granule longer on both
sides.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor

from agentcompile.system.bindings import checked, load

_HINT = "agentcompile doctor says what driver and devices are there"


class _Mapping:
    """Bytes that PyTorch takes through `__cuda_array_interface__`, unmapped when the last tensor on them is gone."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
            "strides": None,
        }


def fenced(nbytes: int, *, before: bool = False) -> Tensor:
    """Return undefined bytes [nbytes] on the current device that end, or begin (`before`), with their mapping.

    Raises:
        AgentCompileError: the driver cannot map them (environment).
    """
    driver = load("driver", lambda one: checked(one.cuInit(0), "the driver does not start", _HINT), what="", hint=_HINT)
    wanted = driver.CUmemAllocationProp()
    wanted.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    wanted.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    wanted.location.id = torch.cuda.current_device()
    least = driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
    granule = int(_done(driver.cuMemGetAllocationGranularity(wanted, least)))
    size = (nbytes + granule - 1) // granule * granule
    reserved = int(_done(driver.cuMemAddressReserve(size + 2 * granule, 0, 0, 0)))
    base = reserved + granule
    try:
        memory = _done(driver.cuMemCreate(size, wanted, 0))
    except BaseException:
        driver.cuMemAddressFree(reserved, size + 2 * granule)
        raise
    found = _Mapping(base if before else base + size - nbytes, nbytes)
    try:
        _done(driver.cuMemMap(base, size, 0, memory, 0))
        access = driver.CUmemAccessDesc()
        access.location = wanted.location
        access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        _done(driver.cuMemSetAccess(base, size, [access], 1))
    except BaseException:
        _unmap(driver, base, size, granule, memory)
        raise
    weakref.finalize(found, _unmap, driver, base, size, granule, memory)
    return torch.as_tensor(found, device="cuda")


def _unmap(driver: Any, base: int, size: int, granule: int, memory: Any) -> None:
    """Unmap and free everything; after a fault the driver refuses, and the process ends anyway."""
    driver.cuCtxSynchronize()
    driver.cuMemUnmap(base, size)
    driver.cuMemRelease(memory)
    driver.cuMemAddressFree(base - granule, size + 2 * granule)


def _done(result: tuple[Any, ...]) -> Any:
    return checked(result, "the driver maps no memory for a fence", _HINT)
