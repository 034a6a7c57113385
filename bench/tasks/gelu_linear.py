"""A linear layer whose input goes through GELU first.

The activation can be taken while the tile of the product is loaded.
"""

import torch
from torch import nn
from torch.nn import functional as F

TOKENS, INNER, HIDDEN = 128, 2048, 512


class Model(nn.Module):
    def __init__(self, inner: int, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(hidden, inner) * inner**-0.5)
        self.bias = nn.Parameter(0.1 * torch.randn(hidden))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(F.gelu(x, approximate="tanh"), self.weight, self.bias)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(TOKENS, INNER)]


def get_init_inputs() -> list[int]:
    return [INNER, HIDDEN]
