"""Layer normalisation of rows with a gain and a bias.

A reduction and its use, which a kernel joins by keeping the row in registers.
"""

import torch
from torch import nn
from torch.nn import functional as F

TOKENS, HIDDEN, EPSILON = 1024, 1024, 1e-5


class Model(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(1 + 0.1 * torch.randn(hidden))
        self.bias = nn.Parameter(0.1 * torch.randn(hidden))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, EPSILON)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(TOKENS, HIDDEN)]


def get_init_inputs() -> list[int]:
    return [HIDDEN]
