"""Layouts: what is packed comes back, padding is zero, and elements lie where the kernels look for them."""

from __future__ import annotations

import pytest
import torch

from agentcompile.ops.layouts import LAYOUTS

SHAPES = [(1, 1), (16, 2), (15, 3), (17, 5), (48, 64), (100, 97), (7, 256)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_packed_matrix_comes_back(name: str, shape: tuple[int, int]) -> None:
    layout = LAYOUTS[name]
    dtype = (layout.dtypes or (torch.bfloat16,))[0]
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    flat = layout.pack(matrix)
    assert flat.dim() == 1
    assert flat.numel() == layout.numel(shape)
    assert flat.dtype == dtype
    assert torch.equal(layout.unpack(flat, shape), matrix)


@pytest.mark.parametrize("name", [name for name in LAYOUTS if name != "row-major"])
def test_padding_is_zero(name: str) -> None:
    layout = LAYOUTS[name]
    ones = torch.ones(17, 5, dtype=layout.dtypes[0])
    flat = layout.pack(ones)
    assert flat.numel() > ones.numel()
    assert flat.float().sum() == ones.numel()


def test_a_pair_of_a_row_lies_in_the_lane_of_that_row() -> None:
    matrix = torch.arange(32 * 6, dtype=torch.bfloat16).view(32, 6)
    flat = LAYOUTS["rows16-k2"].pack(matrix).view(2, 3, 16, 2)
    assert flat[1, 2, 5].tolist() == matrix[21, 4:6].tolist()


def test_a_packed_layout_refuses_what_is_no_matrix() -> None:
    layout = LAYOUTS["rows16-k2"]
    assert not layout.applies((8,), torch.bfloat16)
    assert not layout.applies((8, 8), torch.float32)
    assert layout.applies((8, 8), torch.bfloat16)
    with pytest.raises(ValueError, match="takes a matrix"):
        layout.numel((8,))


def test_a_slice_that_begins_between_two_words_is_packed_too() -> None:
    layout, whole = LAYOUTS["rows16-k2"], torch.arange(1 + 16 * 4, dtype=torch.bfloat16)
    matrix = whole[1:].view(16, 4)
    flat = torch.cat([torch.zeros(1, dtype=torch.bfloat16), layout.pack(matrix)])[1:]
    assert torch.equal(layout.unpack(flat, (16, 4)), matrix)
