"""ATen views as functions of a layout: (layout, resulting shape, the operator's other arguments) -> layout(s)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from agentcompile.capture.layout import Inexpressible, Layout

_ALIASES = """view transpose permute unsqueeze squeeze expand detach alias t select slice narrow
split split_with_sizes chunk unbind"""
ALIASES = frozenset(_ALIASES.split())
"""The views that always share their operand's storage."""


def _reshape(layout: Layout, shape: Any, *_: Any, **__: Any) -> Layout:
    return layout.reshape(shape)


def _same(layout: Layout, shape: Any, *_: Any, **__: Any) -> Layout:
    return layout


def _transpose(layout: Layout, shape: Any, a: int, b: int) -> Layout:
    axes = list(range(len(layout.shape)))
    axes[a], axes[b] = axes[b], axes[a]
    return layout.permute(axes)


def _t(layout: Layout, shape: Any) -> Layout:
    return layout.permute(range(len(layout.shape) - 1, -1, -1))


def _permute(layout: Layout, shape: Any, axes: Sequence[int]) -> Layout:
    return layout.permute([axis % len(layout.shape) for axis in axes])


def _movedim(layout: Layout, shape: Any, source: Any, target: Any) -> Layout:
    rank = len(layout.shape)
    source = [s % rank for s in ([source] if isinstance(source, int) else source)]
    target = [t % rank for t in ([target] if isinstance(target, int) else target)]
    rest = iter(i for i in range(rank) if i not in source)
    return layout.permute([source[target.index(i)] if i in target else next(rest) for i in range(rank)])


def _expand(layout: Layout, shape: Any, *_: Any, **__: Any) -> Layout:
    return layout.expand(shape)


def _clamp(value: int | None, extent: int, default: int) -> int:
    if value is None:
        return default
    return min(max(value + extent if value < 0 else value, 0), extent)


def _slice(
    layout: Layout, shape: Any, axis: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Layout:
    axis %= len(layout.shape)
    extent = layout.shape[axis]
    start, end = _clamp(start, extent, 0), _clamp(end, extent, extent)
    if (start, end, step) == (0, extent, 1):
        return layout
    return layout.slice(axis, start, end, step)


def _select(layout: Layout, shape: Any, axis: int, index: int) -> Layout:
    axis %= len(layout.shape)
    return layout.select(axis, index % layout.shape[axis])


def _narrow(layout: Layout, shape: Any, axis: int, start: int, length: int) -> Layout:
    return _slice(layout, shape, axis, start, start + length)


def _pieces(layout: Layout, sizes: Sequence[int], axis: int) -> list[Layout]:
    axis %= len(layout.shape)
    out, start = list[Layout](), 0
    for size in sizes:
        out.append(_slice(layout, None, axis, start, start + size))
        start += size
    return out


def _split(layout: Layout, fakes: Any, size: Any, axis: int = 0) -> list[Layout]:
    extent = layout.shape[axis]
    sizes = list(size) if not isinstance(size, int) else [min(size, extent - at) for at in range(0, extent, size)]
    return _pieces(layout, sizes, axis)


def _chunk(layout: Layout, fakes: Any, chunks: int, axis: int = 0) -> list[Layout]:
    return _split(layout, fakes, -(-layout.shape[axis] // chunks), axis)


def _unbind(layout: Layout, fakes: Any, axis: int = 0) -> list[Layout]:
    return [layout.select(axis % len(layout.shape), i) for i in range(layout.shape[axis])]


def _repeat_interleave(layout: Layout, shape: Any, repeats: Any, axis: int | None = None, **_: Any) -> Layout:
    if axis is None or not isinstance(repeats, int):
        raise Inexpressible("repeat_interleave of a flat tensor")
    axis %= len(layout.shape)
    old = layout.shape
    wide = layout.reshape((*old[: axis + 1], 1, *old[axis + 1 :])).expand((*old[: axis + 1], repeats, *old[axis + 1 :]))
    return wide.reshape(shape)


VIEWS: dict[str, Callable[..., Layout | list[Layout]]] = {
    "view": _reshape,
    "reshape": _reshape,
    "_unsafe_view": _reshape,
    "flatten": _reshape,
    "unflatten": _reshape,
    "unsqueeze": _reshape,
    "squeeze": _reshape,
    "view_as": _reshape,
    "reshape_as": _reshape,
    "transpose": _transpose,
    "swapaxes": _transpose,
    "t": _t,
    "numpy_T": _t,
    "permute": _permute,
    "movedim": _movedim,
    "expand": _expand,
    "expand_as": _expand,
    "broadcast_to": _expand,
    "slice": _slice,
    "select": _select,
    "narrow": _narrow,
    "split": _split,
    "split_with_sizes": _split,
    "chunk": _chunk,
    "unbind": _unbind,
    "repeat_interleave": _repeat_interleave,
    "contiguous": _same,
    "clone": _same,
    "detach": _same,
    "alias": _same,
    "lift_fresh_copy": _same,
}
