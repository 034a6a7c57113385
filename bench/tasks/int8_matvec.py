"""One token through a layer of int8 weights with a scale a row.

Eager code writes the weights out in float first, though reading bytes is all it takes.
"""

import torch
from torch import nn
from torch.nn import functional as F

INPUTS, OUTPUTS = 2048, 2048


class Model(nn.Module):
    weight: torch.Tensor
    scale: torch.Tensor

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randint(-127, 128, (outputs, inputs), dtype=torch.int8))
        self.register_buffer("scale", (0.5 + torch.rand(outputs)) * inputs**-0.5 / 73)  # 73: deviation of the weights

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight.to(x.dtype) * self.scale[:, None])


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(1, INPUTS)]


def get_init_inputs() -> list[int]:
    return [INPUTS, OUTPUTS]
