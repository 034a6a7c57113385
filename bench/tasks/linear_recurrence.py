"""A gated running average along time, the core of linear recurrent models.

Eager code takes a step a launch, though a scan needs one launch.
"""

import torch
from torch import nn

BATCH, TOKENS, CHANNELS = 4, 128, 512


class Model(nn.Module):
    def forward(self, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        kept = torch.sigmoid(gate)
        state, states = torch.zeros_like(x[:, 0]), []
        for step in range(x.shape[1]):
            state = kept[:, step] * state + (1 - kept[:, step]) * x[:, step]
            states.append(state)
        return torch.stack(states, dim=1)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(BATCH, TOKENS, CHANNELS), torch.randn(BATCH, TOKENS, CHANNELS)]


def get_init_inputs() -> list[int]:
    return []
