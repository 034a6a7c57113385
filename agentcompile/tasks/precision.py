"""TF32 in PyTorch: off for what results are compared with, and on where PyTorch is timed, as its users have it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


def exact() -> None:
    """Compute products and convolutions of float32 in float32, from now on."""
    _allow(False)


@contextmanager
def tf32() -> Iterator[None]:
    """Allow TF32 in products and convolutions while the block is open."""
    _allow(True)
    try:
        yield
    finally:
        _allow(False)


def _allow(allowed: bool) -> None:
    torch.backends.cuda.matmul.allow_tf32 = allowed
    torch.backends.cudnn.allow_tf32 = allowed
