"""A whole decoder layer with grouped heads, rotary positions and a gated MLP.

A dozen operators, where choosing what to fuse counts most.
"""

import torch
from torch import nn
from torch.nn import functional as F

TOKENS, HIDDEN, INNER, HEADS, KV_HEADS, HEAD_SIZE = 64, 512, 1024, 8, 2, 64
BASE, EPSILON = 10000.0, 1e-6


class Model(nn.Module):
    cosine: torch.Tensor
    sine: torch.Tensor

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        shape = (HEADS + 2 * KV_HEADS) * HEAD_SIZE
        self.before_attention = nn.Parameter(1 + 0.1 * torch.randn(hidden))
        self.inward = nn.Parameter(torch.randn(shape, hidden) * hidden**-0.5)
        self.outward = nn.Parameter(torch.randn(hidden, HEADS * HEAD_SIZE) * hidden**-0.5)
        self.before_mlp = nn.Parameter(1 + 0.1 * torch.randn(hidden))
        self.gate_up = nn.Parameter(torch.randn(2 * inner, hidden) * hidden**-0.5)
        self.down = nn.Parameter(torch.randn(hidden, inner) * inner**-0.5)
        rates = BASE ** (-torch.arange(0, HEAD_SIZE, 2) / HEAD_SIZE)
        angles = torch.outer(torch.arange(TOKENS), rates)  # tokens × half a head
        self.register_buffer("cosine", angles.cos())
        self.register_buffer("sine", angles.sin())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(F.rms_norm(x, x.shape[-1:], self.before_attention, EPSILON))
        gate, up = F.linear(F.rms_norm(x, x.shape[-1:], self.before_mlp, EPSILON), self.gate_up).chunk(2, dim=-1)
        return x + F.linear(F.silu(gate) * up, self.down)

    def attention(self, x: torch.Tensor) -> torch.Tensor:
        heads = F.linear(x, self.inward).view(*x.shape[:2], -1, HEAD_SIZE).transpose(1, 2)
        query, key, value = heads[:, :HEADS], heads[:, HEADS:-KV_HEADS], heads[:, -KV_HEADS:]
        mixed = F.scaled_dot_product_attention(
            self.turned(query), self.turned(key), value, is_causal=True, enable_gqa=True
        )
        return F.linear(mixed.transpose(1, 2).flatten(2), self.outward)

    def turned(self, x: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, dim=-1)
        cosine, sine = self.cosine[: x.shape[-2]], self.sine[: x.shape[-2]]
        return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(1, TOKENS, HIDDEN)]


def get_init_inputs() -> list[int]:
    return [HIDDEN, INNER]
