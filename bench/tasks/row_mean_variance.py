"""Mean and variance of every row.

Two sums that one pass can take, if it loses no digits where the mean is far from zero.
"""

import torch
from torch import nn

ROWS, COLUMNS = 1024, 2048


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        variance, mean = torch.var_mean(x, dim=-1, correction=0)
        return torch.stack((mean, variance), dim=-1)  # rows × 2


def get_inputs() -> list[torch.Tensor]:
    scale, offset = 0.5 + torch.rand(ROWS, 1), 4 * torch.randn(ROWS, 1)
    return [torch.randn(ROWS, COLUMNS) * scale + offset]


def get_init_inputs() -> list[int]:
    return []
