"""Launching without a device: where pointers lie for a kernel of one struct, and for one of separate parameters."""

from __future__ import annotations

import ctypes

import pytest

from agentcompile.runtime.driver import Entry

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
