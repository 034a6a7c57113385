"""Attention of one new token over a cache of keys and values with grouped heads.

Bound by reading the cache, which eager code copies first.
"""

import torch
from torch import nn
from torch.nn import functional as F

BATCH, HEADS, KV_HEADS, CONTEXT, HEAD_SIZE, DTYPE = 4, 16, 4, 1023, 64, torch.bfloat16


class Model(nn.Module):
    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:
        keys = torch.cat((keys, key), dim=2)
        values = torch.cat((values, value), dim=2)
        return F.scaled_dot_product_attention(query, keys, values, enable_gqa=True)


def get_inputs() -> list[torch.Tensor]:
    query = 2 * torch.randn(BATCH, HEADS, 1, HEAD_SIZE, dtype=DTYPE)
    key, value = (torch.randn(BATCH, KV_HEADS, 1, HEAD_SIZE, dtype=DTYPE) for _ in range(2))
    keys, values = (torch.randn(BATCH, KV_HEADS, CONTEXT, HEAD_SIZE, dtype=DTYPE) for _ in range(2))
    return [query, key, value, keys, values]


def get_init_inputs() -> list[int]:
    return []
