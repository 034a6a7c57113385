"""Launching without a device: where pointers lie for a kernel of one struct, and for one of separate parameters."""

from __future__ import annotations

import ctypes
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cuda.bindings import driver as bindings

from agentcompile.ir.template import Launch
from agentcompile.runtime import driver
from agentcompile.runtime.driver import Call, Entry

POINTERS = (0x1000, 0, 0x3000)


def parameters(*layout: tuple[int, int]) -> list[bytes]:
    """What a launch would read for each parameter."""
    words, places = Entry(function=None, shared_bytes=0, parameters=layout).room(POINTERS)
    assert words is not None
    return [ctypes.string_at(place or 0, size) for place, (_, size) in zip(places, layout, strict=True)]


def packed(*values: int) -> bytes:
    return b"".join(value.to_bytes(8, "little") for value in values)


def test_a_struct_of_pointers_is_one_parameter() -> None:
    assert parameters((0, 24)) == [packed(*POINTERS)]


def test_pointers_by_themselves_are_one_parameter_each_and_what_a_compiler_adds_is_null() -> None:
    layout = [(8 * number, 8) for number in range(5)]
    assert parameters(*layout) == [packed(value) for value in (*POINTERS, 0, 0)]


@pytest.mark.parametrize("layout", [(), ((0, 1),)])
def test_a_kernel_without_arguments_can_be_launched(layout: tuple[tuple[int, int], ...]) -> None:
    words, places = Entry(function=None, shared_bytes=0, parameters=layout).room(())
    assert len(words) == len(places) == 1


@pytest.fixture
def allowed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What is asked of functions of a driver that has no device."""
    asked: list[tuple[Any, ...]] = []
    functions = {"cuFuncSetAttribute": lambda *words: asked.append(words) or (bindings.CUresult.CUDA_SUCCESS,)}
    names = {name: getattr(bindings, name) for name in dir(bindings) if not name.startswith("__")}
    monkeypatch.setattr(driver, "_driver", lambda: SimpleNamespace(**names | functions))
    return asked


def asks(launch: Launch, *, dependent: bool = False) -> dict[str, Any]:
    """The attributes of a bound launch."""
    module: Any = SimpleNamespace(
        path=Path("a.cubin"), entry=lambda *_: Entry(function=7, shared_bytes=0, parameters=((0, 8),))
    )
    config = Call.of(module, launch, (0x1000,), dependent=dependent).config
    names = bindings.CUlaunchAttributeID
    read = {
        names.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION: lambda it: (it.clusterDim.x, it.clusterDim.y, it.clusterDim.z),
        names.CU_LAUNCH_ATTRIBUTE_COOPERATIVE: lambda it: it.cooperative,
        names.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION: lambda it: (
            it.programmaticStreamSerializationAllowed
        ),
    }
    assert config.numAttrs == len(config.attrs)
    return {one.id.name.removeprefix("CU_LAUNCH_ATTRIBUTE_"): read[one.id](one.value) for one in config.attrs}


def launched(**more: Any) -> Launch:
    return Launch(entry="f", arguments=("x",), grid=("8",), block=("32",), **more)


def test_a_launch_asks_for_what_its_manifest_says(allowed: list[tuple[Any, ...]]) -> None:
    assert asks(launched(pdl=True)) == {}
    assert asks(launched(pdl=True), dependent=True) == {"PROGRAMMATIC_STREAM_SERIALIZATION": 1}
    assert asks(launched(cluster=("4",))) == {"CLUSTER_DIMENSION": (4, 1, 1)}
    both = asks(launched(cluster=("2", "4"), cooperative=True, pdl=True), dependent=True)
    assert both == {"CLUSTER_DIMENSION": (2, 4, 1), "COOPERATIVE": 1}, "all blocks at once, or an early start"
    assert not allowed


def test_a_large_cluster_is_allowed_first(allowed: list[tuple[Any, ...]]) -> None:
    assert asks(launched(cluster=("16",))) == {"CLUSTER_DIMENSION": (16, 1, 1)}
    portable = bindings.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
    assert allowed == [(7, portable, 1)]


def test_a_launch_of_our_own_need_not_name_its_pointers(allowed: list[tuple[Any, ...]]) -> None:
    entry = Entry(function=7, shared_bytes=0, parameters=((0, 24),))
    module: Any = SimpleNamespace(path=Path("a.cubin"), entry=lambda *_: entry)
    launch = Launch(entry="read", arguments=(), grid=("2",), block=("64",))
    words, _ = Call.of(module, launch, POINTERS, dependent=False).keep
    assert ctypes.string_at(ctypes.addressof(words), 24) == packed(*POINTERS)
