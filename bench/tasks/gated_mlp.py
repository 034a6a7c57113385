"""The MLP of a decoder in bfloat16.

Two products of the same input, a gate, and a product back.
"""

import torch
from torch import nn
from torch.nn import functional as F

TOKENS, HIDDEN, INNER, DTYPE = 32, 512, 1024, torch.bfloat16


class Model(nn.Module):
    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate = nn.Parameter((torch.randn(inner, hidden) * hidden**-0.5).to(DTYPE))
        self.up = nn.Parameter((torch.randn(inner, hidden) * hidden**-0.5).to(DTYPE))
        self.down = nn.Parameter((torch.randn(hidden, inner) * inner**-0.5).to(DTYPE))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(F.silu(F.linear(x, self.gate)) * F.linear(x, self.up), self.down)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(TOKENS, HIDDEN, dtype=DTYPE)]


def get_init_inputs() -> list[int]:
    return [HIDDEN, INNER]
