"""Causal attention over a KV cache in PyTorch, for one sequence or a batch, at known or unknown positions.

A query at position p reads the slots up to p. In a batch every sequence has its own cache and its own position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
import torch.nn.functional as F

Attention = Callable[..., torch.Tensor]
"""A function with the signature of `attention`."""
Partial = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, bool, float], tuple[torch.Tensor, torch.Tensor]]
"""A function that returns attention and the logarithm of each query's sum of exponentials. Its arguments: queries
[B, H, T, D], keys and values [B, K, S, D], whether to mask causally from the first of both, and the scale.
"""
_rehearsed: ContextVar[bool] = ContextVar("rehearsed", default=False)


@contextmanager
def rehearsing() -> Iterator[None]:
    """Make `attention` behave inside the block as it does while a CUDA graph is captured.

    This lets libraries do the allocations of their first call before the capture.
    """
    before = _rehearsed.set(True)
    try:
        yield
    finally:
        _rehearsed.reset(before)


def unforeseen(positions: torch.Tensor) -> bool:
    """Return whether `positions` cannot be read, because a CUDA graph is being captured or that is rehearsed."""
    return _rehearsed.get() or (positions.is_cuda and torch.cuda.is_current_stream_capturing())


def attention(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    positions: torch.Tensor,
    *,
    scale: float,
    window: int = 0,
) -> torch.Tensor:
    """Return causal attention of q [B, heads, T, D] over caches [B, kv_heads, context, D] as [B, heads, T, D].

    The query at position p reads slots <= p, and > p - window when there is a window. Slots beyond the last position
    are not read at all, so they may hold anything, NaN included. The sequences of a batch are computed one after
    another, bit for bit as each would be alone. While a CUDA graph is captured the positions cannot be read, so
    `masked_attention` runs instead.
    """
    if unforeseen(positions):
        return masked_attention(q, keys, values, positions, scale=scale, window=window)
    if q.shape[0] == 1:
        first, last = int(positions[0]), int(positions[-1])
        seen = visible(first, last, window)
        mask = _mask(positions, seen.start, seen.stop, window) if q.shape[2] > 1 else None
        return _attend(q, keys[:, :, seen], values[:, :, seen], mask, scale)
    alone = []
    for b, last in enumerate(positions.tolist()):
        one, seen = slice(b, b + 1), visible(last, last, window)
        alone.append(_attend(q[one], keys[one, :, seen], values[one, :, seen], None, scale))
    return torch.cat(alone)


def masked_attention(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    positions: torch.Tensor,
    *,
    scale: float,
    window: int = 0,
) -> torch.Tensor:
    """Compute `attention` without reading the positions on the host.

    Every slot of the cache is read under a mask, so all slots must be finite.
    """
    mask = _mask(positions, 0, keys.shape[2], window)
    return _attend(q, keys, values, mask[:, None, None] if q.shape[0] > 1 else mask, scale)


def attention_at(first: int, last: int) -> Attention:
    """Return `attention` for one sequence whose queries stand at the positions `first` … `last`.

    The positions are known on the host, so nothing is read back from the device.
    """

    def at(
        q: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        positions: torch.Tensor,
        *,
        scale: float,
        window: int = 0,
    ) -> torch.Tensor:
        assert q.shape[0] == 1, "sequences of a batch have positions of their own"
        seen = visible(first, last, window)
        keys, values = keys[:, :, seen], values[:, :, seen]
        if q.shape[2] == 1:
            return _attend(q, keys, values, None, scale)
        if window:
            return tokens_first(_attend(q, keys, values, _mask(positions, seen.start, seen.stop, window), scale))
        return tokens_first(_attend_causally(q, keys, values, scale))

    return at


def visible(first: int, last: int, window: int) -> slice:
    """Return the slots that queries at positions `first` … `last` read; a `window` of 0 reaches to the start."""
    return slice(max(0, first - window + 1) if window else 0, last + 1)


def _mask(positions: torch.Tensor, low: int, high: int, window: int) -> torch.Tensor:
    """Return which of the slots `low` … `high` - 1 each position reads: bool [positions, high - low]."""
    slots, at = torch.arange(low, high, device=positions.device), positions[:, None]
    mask = slots <= at
    return mask & (slots > at - window) if window else mask


def _attend(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float,
    *,
    causal: bool = False,
) -> torch.Tensor:
    grouped = q.shape[1] != keys.shape[1]
    return F.scaled_dot_product_attention(q, keys, values, mask, is_causal=causal, scale=scale, enable_gqa=grouped)


def _attend_causally(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float) -> torch.Tensor:
    """Compute attention where the last query reads every slot, and each query before it one less.

    The causal structure is passed to the fused kernels, so they need no mask in memory.
    """
    if q.shape[2] == keys.shape[2]:
        return _attend(q, keys, values, None, scale, causal=True)
    if _cudnn_serves(q, keys, values):
        return attend_in_parts(q, keys, values, scale, _cudnn_attention)
    from torch.nn.attention.bias import causal_lower_right  # loads PyTorch's compiler, which takes a second

    return _attend(q, keys, values, causal_lower_right(q.shape[2], keys.shape[2]), scale)


def tokens_first(made: torch.Tensor) -> torch.Tensor:
    """Return `made` [B, H, T, D] with the heads of a token adjacent in memory, as the product that reads them expects.

    On a GPU a fused kernel returns its result in the order of its queries, and PyTorch would transpose it element by
    element. The tensor itself is returned when no copy is needed or its rows are not a multiple of 16 bytes.
    """
    turned = made.transpose(1, 2)
    if not made.is_cuda or turned.is_contiguous() or not made.is_contiguous() or made.shape[3] * made.itemsize % 16:
        return made
    return in_sixteens(turned).transpose(1, 2)


def in_sixteens(x: torch.Tensor) -> torch.Tensor:
    """Return a dense copy of `x`, moved 16 bytes at a time; its last axis is dense and a multiple of 16 bytes long."""
    made = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    made.view(torch.complex128).copy_(x.view(torch.complex128))
    return made


def attend_in_parts(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float, attend: Partial
) -> torch.Tensor:
    """Return causal attention [B, H, T, D] of the last T slots, from a kernel whose mask starts at the first slot.

    The slots before them, which every query reads, and the queries' own slots are attended to separately. Each part
    yields the logarithm of its sum of exponentials, by which the two are merged (Milakov and Gimelshein, arXiv
    1805.02867).
    """
    first = keys.shape[2] - q.shape[2]
    before, its = attend(q, keys[:, :, :first], values[:, :, :first], False, scale)
    own, mine = attend(q, keys[:, :, first:], values[:, :, first:], True, scale)
    share = torch.sigmoid(mine - its).view(*q.shape[:3], 1)
    return torch.lerp(before, own, share.to(q.dtype))


def _cudnn_attention(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, causal: bool, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    made = torch.ops.aten._scaled_dot_product_cudnn_attention(
        q, keys, values, None, True, 0.0, causal, False, scale=scale
    )
    return made[0], made[1]


def _cudnn_serves(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> bool:
    """Return whether cuDNN attention runs on this device with operands like these."""
    if not q.is_cuda:
        return False
    from torch.backends.cuda import SDPAParams, can_use_cudnn_attention

    grouped = q.shape[1] != keys.shape[1]
    return all(
        can_use_cudnn_attention(SDPAParams(q, k, v, None, 0.0, causal, grouped))
        for k, v, causal in (
            (keys[:, :, : -q.shape[2]], values[:, :, : -q.shape[2]], False),
            (keys[:, :, -q.shape[2] :], values[:, :, -q.shape[2] :], True),
        )
    )
