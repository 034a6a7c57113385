"""A pre-norm block of causal multi-head attention with its projections and residual sum.

Products that a library does well, with much to fuse between them.
"""

import torch
from torch import nn
from torch.nn import functional as F

BATCH, TOKENS, HIDDEN, HEADS = 2, 64, 512, 8


class Model(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.norm_weight = nn.Parameter(1 + 0.1 * torch.randn(hidden))
        self.norm_bias = nn.Parameter(0.1 * torch.randn(hidden))
        self.inward = nn.Parameter(torch.randn(3 * hidden, hidden) * hidden**-0.5)
        self.outward = nn.Parameter(torch.randn(hidden, hidden) * hidden**-0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = F.layer_norm(x, self.norm_weight.shape, self.norm_weight, self.norm_bias)
        heads = F.linear(normed, self.inward).view(*x.shape[:2], 3, HEADS, -1)  # batch × tokens × 3 × heads × head size
        query, key, value = heads.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return x + F.linear(mixed.transpose(1, 2).flatten(2), self.outward)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(BATCH, TOKENS, HIDDEN)]


def get_init_inputs() -> list[int]:
    return [HIDDEN]
