"""One bfloat16 row through packed int4 weights with a scale for each 128 of them.

A quarter of the bytes, if unpacking stays in registers.
"""

import torch
from torch import nn
from torch.nn import functional as F

INPUTS, OUTPUTS, GROUP, DTYPE = 2048, 1024, 128, torch.bfloat16


class Model(nn.Module):
    packed: torch.Tensor
    scale: torch.Tensor

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.register_buffer("packed", torch.randint(256, (outputs, inputs // 2), dtype=torch.uint8))
        scale = (0.5 + torch.rand(outputs, inputs // GROUP)) * inputs**-0.5 / 4.6  # 4.6: deviation of the weights
        self.register_buffer("scale", scale.to(DTYPE))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        nibbles = torch.stack((self.packed & 15, self.packed >> 4), dim=-1)  # the low one comes first
        grouped = (nibbles.to(x.dtype) - 8).view(*self.scale.shape, GROUP)
        return F.linear(x, (grouped * self.scale[..., None]).flatten(1))


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(1, INPUTS, dtype=DTYPE)]


def get_init_inputs() -> list[int]:
    return [INPUTS, OUTPUTS]
