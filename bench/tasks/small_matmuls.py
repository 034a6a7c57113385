"""Thousands of products of matrices of 16 × 16.

Too small for a library's tiles, so that launching and loading weigh most.
"""

import torch
from torch import nn

BATCH, SIZE = 4096, 16


class Model(nn.Module):
    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return torch.bmm(left, right)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(BATCH, SIZE, SIZE), torch.randn(BATCH, SIZE, SIZE)]


def get_init_inputs() -> list[int]:
    return []
