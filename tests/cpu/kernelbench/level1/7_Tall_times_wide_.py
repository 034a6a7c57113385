import torch
import torch.nn as nn


class Model(nn.Module):
    """
    A tall matrix times a wide one, with a small dimension between them.
    """

    def __init__(self):
        super(Model, self).__init__()

    def forward(self, A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
        """
        Args:
            A: Input of shape (ROWS, INNER).
            B: Input of shape (INNER, COLUMNS).

        Returns:
            Output of shape (ROWS, COLUMNS).
        """
        return torch.matmul(A, B)


ROWS = 1024 * 2
INNER = 32
COLUMNS = ROWS


def get_inputs():
    A = torch.rand(ROWS, INNER)
    B = torch.rand(INNER, COLUMNS)
    return [A, B]


def get_init_inputs():
    return []  # The constructor takes nothing
