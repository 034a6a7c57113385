"""View algebra: any chain of reshape, permute, slice and expand over a dense buffer, in one canonical form.

A `Layout` maps the row-major order of a view to offsets in its dense base: an offset plus *atoms* (size, stride),
outermost first, and the shape that groups them. Adjacent atoms that walk memory as one are merged and atoms of size 1
are dropped, so two chains that denote the same elements in the same order have equal layouts, however they are spelled.
Extents are integers: while a graph with a symbolic token count is normalised, `TOKENS` represents the count.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from agentcompile.ir.graph import Dim, View

TOKENS = 1_000_003
"""A prime that divides no extent of a model; it marks the token axis in shapes and products of shapes."""

Atom = tuple[int, int]
Shape = tuple[int, ...]


class Inexpressible(Exception):
    """A view that this algebra cannot represent (a reshape across a slice, a flip); the caller copies instead."""


def dim(extent: int) -> Dim:
    """Turn an extent back into a graph dimension; `TOKENS` becomes ``"T"``.

    Raises:
        Inexpressible: the extent is a multiple of `TOKENS`, but not `TOKENS` itself.
    """
    if extent == TOKENS:
        return "T"
    if extent >= TOKENS and extent % TOKENS == 0:
        raise Inexpressible(f"an extent of {extent // TOKENS} x T")
    return extent


def dims(shape: Shape) -> tuple[Dim, ...]:
    """Apply `dim` to every extent of a shape."""
    return tuple(dim(extent) for extent in shape)


def _merged(atoms: Sequence[Atom]) -> tuple[Atom, ...]:
    out: list[Atom] = []
    for size, stride in atoms:
        if size == 1:
            continue
        if out and out[-1][1] == size * stride:
            out[-1] = (out[-1][0] * size, stride)
        else:
            out.append((size, stride))
    return tuple(out)


@dataclass(frozen=True, slots=True)
class Layout:
    """How a view reads a dense base: `offset` and `atoms` in elements of the base, grouped as `shape`."""

    offset: int
    atoms: tuple[Atom, ...]
    shape: Shape

    @property
    def numel(self) -> int:
        """The number of elements of the view."""
        return math.prod(self.shape)

    def is_order_kept(self, base: Shape) -> bool:
        """Return whether the view is the base's own elements in their own order, so at most a reshape."""
        return self.offset == 0 and self.numel == math.prod(base) and self.atoms == _merged([(self.numel, 1)])

    def is_bijective(self, base: Shape) -> bool:
        """Return whether every element of the base appears exactly once, so only reshapes and permutes."""
        if self.offset or self.numel != math.prod(base):
            return False
        return _merged(sorted(self.atoms, key=lambda atom: -atom[1])) == _merged([(self.numel, 1)])

    def reshape(self, shape: Sequence[int]) -> Layout:
        """Return the same elements in the same order under another shape."""
        shape = tuple(shape)
        assert math.prod(shape) == self.numel, (self.shape, shape)
        return replace(self, shape=shape)

    def per_dim(self) -> list[list[Atom]]:
        """Return the atoms of each dimension.

        Raises:
            Inexpressible: a dimension ends inside an atom.
        """
        rest, out = list(self.atoms), list[list[Atom]]()
        for extent in reversed(self.shape):
            group: list[Atom] = []
            need = extent
            while need > 1:
                size, stride = rest.pop()
                if need % size == 0:
                    group.insert(0, (size, stride))
                    need //= size
                elif size % need == 0:
                    group.insert(0, (need, stride))
                    rest.append((size // need, stride * need))
                    need = 1
                else:
                    raise Inexpressible(f"{self.shape} does not divide {self.atoms}")
            out.insert(0, group)
        return out

    def regroup(self, groups: Sequence[Sequence[Atom]], shape: Sequence[int], offset: int = 0) -> Layout:
        """Return the layout with these atoms for each dimension, moved by `offset`."""
        atoms = _merged([atom for group in groups for atom in group])
        return Layout(self.offset + offset, atoms, tuple(shape))

    def permute(self, axes: Sequence[int]) -> Layout:
        """Reorder the dimensions."""
        groups = self.per_dim()
        return self.regroup([groups[axis] for axis in axes], [self.shape[axis] for axis in axes])

    def expand(self, shape: Sequence[int]) -> Layout:
        """Broadcast dimensions of size 1; leading dimensions may be added; -1 keeps an extent."""
        lead = len(shape) - len(self.shape)
        old = (1,) * lead + self.shape
        new = [o if n == -1 else n for o, n in zip(old, shape, strict=True)]
        kept = [*[[] for _ in range(lead)], *self.per_dim()]
        groups = [[(n, 0)] if o == 1 and n != 1 else g for o, n, g in zip(old, new, kept, strict=True)]
        return self.regroup(groups, new)

    def slice(self, axis: int, start: int, stop: int, step: int = 1) -> Layout:
        """Keep [start, stop) of an axis, `step` apart; the bounds are already inside the extent."""
        groups = self.per_dim()
        count = max(0, -(-(stop - start) // step))
        offset, group = _slice_atoms(list(_merged(groups[axis])), start, count, step)
        groups[axis] = group
        return self.regroup(groups, [count if i == axis else s for i, s in enumerate(self.shape)], offset)

    def select(self, axis: int, index: int) -> Layout:
        """Keep one index of an axis and drop the axis."""
        one = self.slice(axis, index, index + 1)
        return one.reshape([s for i, s in enumerate(one.shape) if i != axis])


def _slice_atoms(group: list[Atom], start: int, count: int, step: int) -> tuple[int, list[Atom]]:
    if not group:
        if count == 1 and start == 0:
            return 0, []
        raise Inexpressible("an empty slice")
    (size, stride), rest = group[0], group[1:]
    if not rest:
        return start * stride, [(count, stride * step)]
    inner = math.prod(s for s, _ in rest)
    if step == 1 and start % inner == 0 and count % inner == 0:
        return (start // inner) * stride, [(count // inner, stride), *rest]
    if (start // inner) == (start + (count - 1) * step) // inner:
        offset, kept = _slice_atoms(rest, start % inner, count, step)
        return offset + (start // inner) * stride, kept
    raise Inexpressible(f"a slice across the atoms {group} of {size}")


def dense(shape: Sequence[int]) -> Layout:
    """Return the layout of a dense buffer of this shape, that is, of no view at all."""
    return Layout(0, _merged([(math.prod(shape), 1)]), tuple(shape))


@functools.lru_cache(maxsize=4096)
def chain(layout: Layout, base: Shape) -> tuple[View, ...]:
    """Return the canonical view chain of a layout: reshape, slices, permute, expand, reshape, each only where needed.

    Raises:
        Inexpressible: the layout has no such chain (overlapping windows, extents that are multiples of T).
    """
    if layout.is_order_kept(base):
        return () if layout.shape == base else (View(op="reshape", args=dims(layout.shape)),)
    try:
        groups = layout.per_dim()
        one_to_one = all(len(group) <= 1 for group in groups)
    except Inexpressible:
        groups, one_to_one = [], False
    if not one_to_one:
        groups = [[], *([atom] for atom in layout.atoms)]
    slots = [group[0] if group else (1, 0) for group in groups]
    return tuple(_steps(layout, base, slots))


def _extents(layout: Layout, base: Shape, slots: Sequence[Atom]) -> list[tuple[int, int, int, Atom | None]]:
    """Return dimensions (extent, start, count, slot) of the base, outermost first, that make every slot one of them."""  # noqa: DOC501
    previous, out = math.prod(base), list[tuple[int, int, int, Atom | None]]()
    for size, stride in sorted((slot for slot in slots if slot[1]), key=lambda slot: -slot[1]):
        extent, ragged = divmod(previous, stride)
        start = (layout.offset // stride) % max(extent, 1)
        if ragged or start + size > extent:
            raise Inexpressible(f"overlapping atoms {layout.atoms}")
        if extent != size and extent % TOKENS == 0 and extent % size == 0 and start % size == 0:
            out.append((extent // size, start // size, 1, None))
            extent, start = size, 0
        out.append((extent, start, size, (size, stride)))
        previous = stride
    if previous > 1:
        out.append((previous, layout.offset % previous, 1, None))
    return out


def _steps(layout: Layout, base: Shape, slots: Sequence[Atom]) -> list[View]:
    steps: list[View] = []
    extents = _extents(layout, base, slots)
    free = sum(1 for slot in slots if not slot[1])
    lead = max(0, free - sum(1 for _, _, _, slot in extents if slot is None))
    current = [1] * lead + [extent for extent, _, _, _ in extents]
    names: list[Atom | None] = [*[None] * lead, *(slot for _, _, _, slot in extents)]
    if tuple(current) != base:
        steps.append(View(op="reshape", args=dims(tuple(current))))
    for axis, (extent, start, count, _) in enumerate(extents, start=lead):
        if count != extent:
            steps.append(View(op="slice", args=(axis, *_bounds(extent, start, count))))
            current[axis] = count
    spare = [axis for axis, name in enumerate(names) if name is None]
    axes = [spare.pop(0) if not slot[1] else names.index(slot) for slot in slots]
    axes = spare + axes
    assert len(axes) == len(current)
    if axes != sorted(axes):
        kept = [axis for axis in axes if current[axis] != 1]
        op = "permute" if kept != sorted(kept) else "reshape"
        shape = tuple(current[axis] for axis in axes)
        if op == "permute":
            steps.append(View(op="permute", args=tuple(axes)))
        elif shape != tuple(current):
            steps.append(View(op="reshape", args=dims(shape)))
    current = [current[axis] for axis in axes]
    wide = [1] * len(spare) + [size for size, _ in slots]
    if wide != current:
        steps.append(View(op="expand", args=dims(tuple(wide))))
    if tuple(wide) != layout.shape:
        steps.append(View(op="reshape", args=dims(layout.shape)))
    return steps


def _bounds(extent: int, start: int, count: int) -> tuple[Dim, Dim]:
    """Return slice bounds; on the token axis they count from the end, so that they hold for every T."""
    if extent != TOKENS:
        return start, start + count
    stop: Dim = "T" if start + count == extent else start + count - extent
    return (start - extent, stop) if start > TOKENS // 2 else (start, stop)
