"""A gated activation, the projection back and the residual sum.

Both ends of the product can be fused with it.
"""

import torch
from torch import nn
from torch.nn import functional as F

TOKENS, HIDDEN, INNER = 64, 1024, 2048


class Model(nn.Module):
    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(hidden, inner) * inner**-0.5)

    def forward(self, gate_up: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return residual + F.linear(F.silu(gate) * up, self.weight)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(TOKENS, 2 * INNER), torch.randn(TOKENS, HIDDEN)]


def get_init_inputs() -> list[int]:
    return [HIDDEN, INNER]
