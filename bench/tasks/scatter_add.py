"""Features gathered along the edges of a graph and summed at their targets.

The sums collide, in an order that a parallel kernel may choose.
"""

import torch
from torch import nn

NODES, EDGES, FEATURES = 4096, 16384, 64


class Model(nn.Module):
    def forward(self, features: torch.Tensor, sources: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        sums = torch.zeros_like(features)
        return sums.index_add(0, targets, features[sources])


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(NODES, FEATURES), torch.randint(NODES, (EDGES,)), torch.randint(NODES, (EDGES,))]


def get_init_inputs() -> list[int]:
    return []
