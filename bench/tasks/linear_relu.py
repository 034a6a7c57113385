"""A linear layer with its bias and ReLU.

The plainest epilogue, where a library's product is hard to beat.
"""

import torch
from torch import nn
from torch.nn import functional as F

TOKENS, INPUTS, OUTPUTS = 128, 1024, 1024


class Model(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs) * inputs**-0.5)
        self.bias = nn.Parameter(0.1 * torch.randn(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(F.linear(x, self.weight, self.bias))


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(TOKENS, INPUTS)]


def get_init_inputs() -> list[int]:
    return [INPUTS, OUTPUTS]
