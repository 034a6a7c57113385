"""Group normalisation of feature maps.

The mean is over several channels, so that reduction and gain go by different indices.
"""

import torch
from torch import nn
from torch.nn import functional as F

BATCH, CHANNELS, HEIGHT, WIDTH, GROUPS = 4, 128, 48, 48, 32


class Model(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(1 + 0.1 * torch.randn(channels))
        self.bias = nn.Parameter(0.1 * torch.randn(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.group_norm(x, GROUPS, self.weight, self.bias)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(BATCH, CHANNELS, HEIGHT, WIDTH)]


def get_init_inputs() -> list[int]:
    return [CHANNELS]
