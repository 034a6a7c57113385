"""Rotary positions put onto the queries of all heads.

Pairs of elements turn by a tabled angle, in one pass instead of five.
"""

import torch
from torch import nn

BATCH, HEADS, TOKENS, HEAD_SIZE, BASE = 2, 16, 512, 64, 10000.0


class Model(nn.Module):
    cosine: torch.Tensor
    sine: torch.Tensor

    def __init__(self, tokens: int, head_size: int) -> None:
        super().__init__()
        rates = BASE ** (-torch.arange(0, head_size, 2) / head_size)
        angles = torch.outer(torch.arange(tokens), rates)  # tokens × half a head
        self.register_buffer("cosine", angles.cos())
        self.register_buffer("sine", angles.sin())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, dim=-1)
        cosine, sine = self.cosine[: x.shape[-2]], self.sine[: x.shape[-2]]
        return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(BATCH, HEADS, TOKENS, HEAD_SIZE)]


def get_init_inputs() -> list[int]:
    return [TOKENS, HEAD_SIZE]
