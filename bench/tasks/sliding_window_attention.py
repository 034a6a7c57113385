"""Attention of every token to the 64 before it and itself.

Eager code computes the whole square of scores, of which a band is enough.
"""

import torch
from torch import nn

HEADS, TOKENS, HEAD_SIZE, WINDOW = 8, 384, 64, 64


class Model(nn.Module):
    outside: torch.Tensor

    def __init__(self, tokens: int, window: int) -> None:
        super().__init__()
        back = torch.arange(tokens)[:, None] - torch.arange(tokens)
        self.register_buffer("outside", (back < 0) | (back > window))

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        scores, tokens = query @ key.transpose(-1, -2) * HEAD_SIZE**-0.5, key.shape[-2]
        return torch.softmax(scores.masked_fill(self.outside[:tokens, :tokens], -torch.inf), dim=-1) @ value


def get_inputs() -> list[torch.Tensor]:
    return [2 * torch.randn(1, HEADS, TOKENS, HEAD_SIZE) for _ in range(3)]


def get_init_inputs() -> list[int]:
    return [TOKENS, WINDOW]
