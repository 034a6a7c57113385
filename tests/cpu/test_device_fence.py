"""The driver's part in a fence, on a driver that only notes what it is asked for."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from agentcompile.errors import AgentCompileError
from agentcompile.validate import device_fence

GRANULE = 2 << 20
BASE = 1 << 40


class Driver:
    """Grants everything but `refused`."""

    def __init__(self, refused: str = "") -> None:
        self.refused, self.calls = refused, list[tuple[Any, ...]]()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("CU"):
            return _Anything() if name in ("CUmemAllocationProp", "CUmemAccessDesc") else SimpleNamespace(**_ENUMS)
        gives = {
            "cuMemGetAllocationGranularity": (GRANULE,),
            "cuMemAddressReserve": (BASE,),
            "cuMemCreate": ("memory",),
        }

        def call(*arguments: Any) -> tuple[Any, ...]:
            self.calls.append((name, *arguments))
            return (2,) if name == self.refused else (0, *gives.get(name, ()))

        return call

    def named(self, name: str) -> list[tuple[Any, ...]]:
        return [arguments for called, *arguments in self.calls if called == name]  # type: ignore[misc]


class _Anything:
    def __call__(self) -> Any:
        return SimpleNamespace(location=SimpleNamespace(type=None, id=None), type=None, flags=None)


_ENUMS = {
    name: name
    for name in (
        "CU_MEM_ALLOCATION_TYPE_PINNED",
        "CU_MEM_LOCATION_TYPE_DEVICE",
        "CU_MEM_ALLOC_GRANULARITY_MINIMUM",
        "CU_MEM_ACCESS_FLAGS_PROT_READWRITE",
    )
}


def given(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_fence, "load", lambda *_, **__: driver)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch, "as_tensor", lambda found, device: found)


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize(("nbytes", "granules"), [(1, 1), (GRANULE, 1), (GRANULE + 1, 2), (5 * GRANULE - 64, 5)])
def test_bytes_end_or_begin_where_the_mapping_does_and_the_granules_beside_it_are_never_mapped(
    nbytes: int, granules: int, before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver()
    given(driver, monkeypatch)
    found: Any = device_fence.fenced(nbytes, before=before)
    address, read_only = found.__cuda_array_interface__["data"]
    first = BASE + GRANULE
    end = address + granules * GRANULE if before else address + nbytes
    assert (end, read_only) == (first + granules * GRANULE, False)
    assert driver.named("cuMemAddressReserve")[0][0] == (granules + 2) * GRANULE
    assert driver.named("cuMemMap")[0][:2] == [first, granules * GRANULE]
    assert driver.named("cuMemSetAccess")[0][:2] == [first, granules * GRANULE]
    assert not driver.named("cuMemUnmap")
    del found
    gc.collect()
    assert driver.named("cuMemUnmap") == [[first, granules * GRANULE]]
    assert driver.named("cuMemRelease") == [["memory"]]
    assert driver.named("cuMemAddressFree") == [[BASE, (granules + 2) * GRANULE]]


@pytest.mark.parametrize("refused", ["cuMemAddressReserve", "cuMemCreate", "cuMemMap", "cuMemSetAccess"])
def test_a_driver_that_refuses_is_told_and_nothing_stays_reserved(
    refused: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(refused)
    given(driver, monkeypatch)
    with pytest.raises(AgentCompileError, match="maps no memory"):
        device_fence.fenced(100)
    assert len(driver.named("cuMemAddressFree")) == (refused != "cuMemAddressReserve")
    assert len(driver.named("cuMemRelease")) == (refused in ("cuMemMap", "cuMemSetAccess"))
