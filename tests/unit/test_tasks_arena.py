"""Buffers that two processes map: where they lie, and what around them is noticed."""

from __future__ import annotations

import ctypes
import itertools
import mmap

import pytest
import torch

from agentcompile.tasks.arena import ArenaOwner, ArenaView, Side, blocks_of, mapped

SIZES = {"in0": 100, "out0": 4096, "flag": 1}


@pytest.mark.parametrize("side", ["after", "before"])
def test_every_buffer_is_aligned_and_flush_against_one_end_of_its_pages(side: Side) -> None:
    for block in blocks_of(SIZES, side):
        assert block.start % 64 == 0
        assert block.size % mmap.PAGESIZE == 0
        if side == "before":
            assert block.start == 0
        else:
            assert 0 <= block.size - block.start - block.nbytes < 64


def test_blocks_do_not_overlap() -> None:
    blocks = blocks_of(SIZES, "after")
    assert all(one.offset + one.size <= two.offset for one, two in itertools.pairwise(blocks))


@pytest.mark.parametrize("side", ["after", "before"])
def test_what_is_written_at_an_address_is_seen_in_the_view(side: Side) -> None:
    owner = ArenaOwner(SIZES, side)
    try:
        view = ArenaView(owner.file, seed=0)
        addresses = mapped(owner.file)
        x = view.buffer("in0", torch.float32, (5, 5))
        x.copy_(torch.arange(25.0).view(5, 5))
        assert ctypes.c_float.from_address(addresses["in0"] + 4 * 7).value == 7.0
        ctypes.c_float.from_address(addresses["out0"]).value = 3.5
        assert view.buffer("out0", torch.float32, (1024,))[0] == 3.5
        assert view.broken() == []
    finally:
        owner.close()


@pytest.mark.parametrize(("side", "at"), [("after", -1), ("before", 100), ("before", 4095)])
def test_a_byte_written_around_a_buffer_is_noticed_once(side: Side, at: int) -> None:
    owner = ArenaOwner(SIZES, side)
    try:
        view = ArenaView(owner.file, seed=0)
        byte = ctypes.c_uint8.from_address(mapped(owner.file)["in0"] + at)
        byte.value ^= 1
        assert view.broken() == ["in0"]
        assert view.broken() == [], "it was mended"
    finally:
        owner.close()


def test_redzones_hold_nan_in_every_type() -> None:
    owner = ArenaOwner({"x": 64}, "after")
    try:
        ArenaView(owner.file, seed=0)
        begin = mapped(owner.file)["x"]
        raw = bytes(ctypes.c_uint8.from_address(begin - 64 + at).value for at in range(64))
        for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
            assert bool(torch.frombuffer(bytearray(raw), dtype=dtype).isnan().all())
    finally:
        owner.close()
