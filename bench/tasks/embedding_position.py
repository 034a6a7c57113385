"""Rows of a word table plus rows of a position table.

A gather whose only cost is memory that is read in no order.
"""

import torch
from torch import nn
from torch.nn import functional as F

BATCH, TOKENS, VOCABULARY, HIDDEN = 4, 512, 8192, 512


class Model(nn.Module):
    def __init__(self, vocabulary: int, tokens: int, hidden: int) -> None:
        super().__init__()
        self.words = nn.Parameter(torch.randn(vocabulary, hidden))
        self.positions = nn.Parameter(torch.randn(tokens, hidden))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return F.embedding(tokens, self.words) + self.positions[: tokens.shape[1]]


def get_inputs() -> list[torch.Tensor]:
    return [torch.randint(VOCABULARY, (BATCH, TOKENS))]


def get_init_inputs() -> list[int]:
    return [VOCABULARY, TOKENS, HIDDEN]
