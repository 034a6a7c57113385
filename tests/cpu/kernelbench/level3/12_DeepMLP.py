from typing import List

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, input_size: int, layer_sizes: List[int], output_size: int = 4, dropout: float = 0.0):
        """
        :param input_size: Features of the input.
        :param layer_sizes: Features of every hidden layer.
        :param output_size: Features of the output.
        :param dropout: Share of the hidden features that training drops.
        """
        super(Model, self).__init__()
        layers = []
        current = input_size
        for size in layer_sizes:
            layers.append(nn.Linear(current, size))
            layers.append(nn.LayerNorm(size))
            layers.append(nn.GELU())
            layers.append(nn.Dropout(dropout))
            current = size
        layers.append(nn.Linear(current, output_size))
        self.network = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.network(x)


# Test code
batch_size = 8
input_size = 20
layer_sizes = [24, 16]


def get_inputs():
    return [torch.randn(batch_size, input_size)]


def get_init_inputs():
    return [[input_size], {"layer_sizes": layer_sizes, "dropout": 0.25}]
