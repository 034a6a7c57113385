"""ATen views as functions of a layout: (layout, resulting shape, the operator's other arguments) -> layout(s)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from agentcompile.capture.layout import Inexpressible, Layout

_ALIASES = """view transpose permute unsqueeze squeeze expand detach alias t select slice narrow
split split_with_sizes chunk unbind"""
ALIASES = frozenset(_ALIASES.split())
"""The views that always share their operand's storage."""


def _transpose(layout: Layout, shape: Any, a: int, b: int) -> Layout:
    axes = list(range(len(layout.shape)))
    axes[a], axes[b] = axes[b], axes[a]
    return layout.permute(axes)


def _movedim(layout: Layout, shape: Any, source: Any, target: Any) -> Layout:
    rank = len(layout.shape)
    source = [s % rank for s in ([source] if isinstance(source, int) else source)]
    target = [t % rank for t in ([target] if isinstance(target, int) else target)]
    rest = iter(i for i in range(rank) if i not in source)
    return layout.permute([source[target.index(i)] if i in target else next(rest) for i in range(rank)])


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


def _repeat_interleave(layout: Layout, shape: Any, repeats: Any, axis: int | None = None, **_: Any) -> Layout:
    if axis is None or not isinstance(repeats, int):
        raise Inexpressible("repeat_interleave of a flat tensor")
    axis %= len(layout.shape)
    old = layout.shape
    wide = layout.reshape((*old[: axis + 1], 1, *old[axis + 1 :])).expand((*old[: axis + 1], repeats, *old[axis + 1 :]))
    return wide.reshape(shape)


_RESHAPES = "view reshape _unsafe_view flatten unflatten unsqueeze squeeze view_as reshape_as"
VIEWS: dict[str, Callable[..., Layout | list[Layout]]] = {
    **dict.fromkeys(_RESHAPES.split(), lambda layout, shape, *_, **__: layout.reshape(shape)),
    **dict.fromkeys(("transpose", "swapaxes"), _transpose),
    **dict.fromkeys(("t", "numpy_T"), lambda layout, _: layout.permute(range(len(layout.shape) - 1, -1, -1))),
    "permute": lambda layout, _, axes: layout.permute([axis % len(layout.shape) for axis in axes]),
    "movedim": _movedim,
    **dict.fromkeys(("expand", "expand_as", "broadcast_to"), lambda layout, shape, *_, **__: layout.expand(shape)),
    "slice": _slice,
    "select": _select,
    "narrow": lambda layout, shape, axis, start, length: _slice(layout, shape, axis, start, start + length),
    **dict.fromkeys(("split", "split_with_sizes"), _split),
    "chunk": lambda layout, fakes, chunks, axis=0: _split(layout, fakes, -(-layout.shape[axis] // chunks), axis),
    "unbind": lambda layout, _, axis=0: [layout.select(axis % len(layout.shape), i) for i in range(layout.shape[axis])],
    "repeat_interleave": _repeat_interleave,
    **dict.fromkeys(("contiguous", "clone", "detach", "alias", "lift_fresh_copy"), lambda layout, *_, **__: layout),
}
