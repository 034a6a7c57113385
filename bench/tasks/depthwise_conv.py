"""A causal convolution of four taps in every channel and SiLU, as before the scan of a state-space model.

Bound by memory, so that padding must not be a copy.
"""

import torch
from torch import nn
from torch.nn import functional as F

BATCH, CHANNELS, TOKENS, TAPS = 2, 512, 512, 4


class Model(nn.Module):
    def __init__(self, channels: int, taps: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(channels, 1, taps) * taps**-0.5)
        self.bias = nn.Parameter(0.1 * torch.randn(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        padded = F.pad(x, (self.weight.shape[-1] - 1, 0))
        return F.silu(F.conv1d(padded, self.weight, self.bias, groups=len(self.weight)))


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(BATCH, CHANNELS, TOKENS)]


def get_init_inputs() -> list[int]:
    return [CHANNELS, TAPS]
