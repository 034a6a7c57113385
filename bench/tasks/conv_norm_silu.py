"""A 3 × 3 convolution, batch normalisation by stored statistics and SiLU.

The norm folds into the weights and the rest into the epilogue.
"""

import torch
from torch import nn
from torch.nn import functional as F

BATCH, INPUTS, OUTPUTS, SIZE = 2, 32, 64, 56


class Model(nn.Module):
    mean: torch.Tensor
    variance: torch.Tensor

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(outputs, inputs, 3, 3) * (9 * inputs) ** -0.5)
        self.weight = nn.Parameter(1 + 0.1 * torch.randn(outputs))
        self.bias = nn.Parameter(0.1 * torch.randn(outputs))
        self.register_buffer("mean", 0.1 * torch.randn(outputs))
        self.register_buffer("variance", 0.5 + torch.rand(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        maps = F.conv2d(x, self.kernel, padding=1)
        return F.silu(F.batch_norm(maps, self.mean, self.variance, self.weight, self.bias))


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(BATCH, INPUTS, SIZE, SIZE)]


def get_init_inputs() -> list[int]:
    return [INPUTS, OUTPUTS]
