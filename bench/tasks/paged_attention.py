"""Attention of one token a sequence over keys and values in scattered blocks and of ragged lengths.

Eager code gathers up to the longest, a kernel follows the block table.
"""

import torch
from torch import nn

SEQUENCES, HEADS, KV_HEADS, HEAD_SIZE = 8, 16, 4, 64
BLOCKS, BLOCK, PAGES = 256, 16, 32
"""Blocks in all, tokens of a block, and blocks that a sequence may have."""


class Model(nn.Module):
    def forward(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, table: torch.Tensor, lengths: torch.Tensor
    ) -> torch.Tensor:
        grouped = query.view(len(query), KV_HEADS, -1, HEAD_SIZE)  # sequences × groups × heads of a group × head size
        own_keys, own_values = keys[table].flatten(1, 2), values[table].flatten(1, 2)  # sequences × tokens × groups × …
        scores = torch.einsum("sghd,stgd->sght", grouped, own_keys) * HEAD_SIZE**-0.5
        beyond = torch.arange(own_keys.shape[1], device=lengths.device) >= lengths[:, None]
        weights = torch.softmax(scores.masked_fill(beyond[:, None, None], -torch.inf), dim=-1)
        return torch.einsum("sght,stgd->sghd", weights, own_values).flatten(1, 2)


def get_inputs() -> list[torch.Tensor]:
    query = 2 * torch.randn(SEQUENCES, HEADS, HEAD_SIZE)
    keys, values = (torch.randn(BLOCKS, BLOCK, KV_HEADS, HEAD_SIZE) for _ in range(2))
    table = torch.randperm(BLOCKS)[: SEQUENCES * PAGES].view(SEQUENCES, PAGES)
    lengths = torch.randint(1, PAGES * BLOCK + 1, (SEQUENCES,))
    return [query, keys, values, table, lengths]


def get_init_inputs() -> list[int]:
    return []
