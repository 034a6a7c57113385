"""The protocol by which any `nn.Module` decoder is captured: one attribute and one call.

    class Mine(nn.Module):
        spec = DecoderSpec(vocab=…, hidden=…, layers=…, heads=…, kv_heads=…, head_dim=…)

        def forward(self, tokens, positions, caches): ...

- `tokens` int64 [1, T] and `positions` int64 [T] (consecutive) are the new tokens and where they stand.
- `caches` is a list with one pair (keys, values) a layer, each [1, kv_heads, context, head_dim] in the dtype of the
  parameters. The decoder writes the new rows at slots `positions` (`index_copy_(2, positions, new)`,
  `cache[:, :, positions] = new`, `scatter_`) and attends over the whole cache under a mask made from `positions`.
  Slots that were never written hold any finite number, so the mask must hide them.
- It returns logits [1, T, vocab], or [1, 1, vocab] for the last token alone.
- What depends on positions alone (rotary angles, masks) may be computed in any way, or read from buffers.
- T is symbolic: shapes may depend on it, control flow may not. Nothing may depend on the content of a tensor.

Operators that capture does not know are kept and run by PyTorch. Weights are the parameters; buffers are constants.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSpec:
    """The extents of a decoder, which cannot be read from its code."""

    vocab: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    eos: tuple[int, ...] = ()
    """Token ids that end generation."""


@runtime_checkable
class Decoder(Protocol):
    """The interface that `capture` needs of a module."""

    spec: DecoderSpec

    def forward(
        self, tokens: torch.Tensor, positions: torch.Tensor, caches: Sequence[tuple[torch.Tensor, torch.Tensor]]
    ) -> torch.Tensor:
        """Write the caches and return logits [1, T, vocab] or [1, 1, vocab]."""
        ...
