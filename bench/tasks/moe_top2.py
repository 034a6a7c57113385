"""A mixture of 8 gated experts of which each token takes its best 2.

Eager code runs all of them, a kernel may run a quarter.
"""

import torch
from torch import nn
from torch.nn import functional as F

TOKENS, HIDDEN, INNER, EXPERTS, TAKEN = 64, 256, 512, 8, 2


class Model(nn.Module):
    def __init__(self, hidden: int, inner: int, experts: int) -> None:
        super().__init__()
        self.router = nn.Parameter(torch.randn(experts, hidden) * hidden**-0.5)
        self.gate = nn.Parameter(torch.randn(experts, hidden, inner) * hidden**-0.5)
        self.up = nn.Parameter(torch.randn(experts, hidden, inner) * hidden**-0.5)
        self.down = nn.Parameter(torch.randn(experts, inner, hidden) * inner**-0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        best, chosen = torch.topk(F.linear(x, self.router), TAKEN, dim=-1)
        shares = x.new_zeros(len(x), EXPERTS).scatter(1, chosen, torch.softmax(best, dim=-1))  # tokens × experts
        hidden = F.silu(x @ self.gate) * (x @ self.up)  # experts × tokens × inner
        return torch.einsum("te,eth->th", shares, hidden @ self.down)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(TOKENS, HIDDEN)]


def get_init_inputs() -> list[int]:
    return [HIDDEN, INNER, EXPERTS]
