"""The views through which a kind's operators read its values, stated in the kind's row and checked for every region.

A kernel gets dense buffers and knows no views, so a region whose operators permute what they read runs in PyTorch only,
unless its kind states the view. Then every kernel of the kind is written for exactly that view, and no other is
admitted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from agentcompile.ir.graph import Dim, Graph, Use, View, concrete, takes_last
from agentcompile.regions.match import dense
from agentcompile.regions.pattern import Pattern, PatternError, Size

_VIEW = re.compile(r"([a-z_]\w*) = \[([^\]]+)\](?: by ([\d ]*\d)( joined)?| (last))?")
_FORM = "`name = [extent, ...] by axis axis ...`, `... joined`, or `name = [extent, ...] last`"


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferView:
    """A dense buffer as its readers see it: extents by number or by name, then permuted by `axes`."""

    name: str
    extents: tuple[str, ...]
    axes: tuple[int, ...]
    joined: bool = False
    """Whether the last two extents are then read as one."""
    last: bool = False
    """Whether only the last of the second extent, the chunk's last token, is read."""

    def shape(self, dims: Mapping[str, int]) -> tuple[int, ...]:
        """Return the extents of the buffer as numbers."""
        return tuple(int(extent) if extent.isdigit() else dims[extent] for extent in self.extents)

    @property
    def text(self) -> str:
        """The view as it is written in the row."""
        order = "" if self.axes == tuple(sorted(self.axes)) else f" by {' '.join(map(str, self.axes))}"
        return f"[{', '.join(self.extents)}]{order}{' joined' * self.joined}{' last' * self.last}"


def parse_views(kind: str, texts: tuple[str, ...], pattern: Pattern, dims: tuple[Size, ...]) -> tuple[BufferView, ...]:
    """Parse items ``name = [extent, …] by axis axis …``, with ``joined`` behind it, or ``name = [extent, …] last``.

    Raises:
        PatternError: an item is faulty or uses an unknown name.
    """
    known, found = {"tokens", *(size.name for size in dims)}, []
    for text in texts:
        match = _VIEW.fullmatch(text)
        if match is None:
            raise PatternError(f"kind {kind!r}: {text!r} is not of the form {_FORM}")
        name, extents = match[1], tuple(part.strip() for part in match[2].split(","))
        axes = tuple(int(axis) for axis in match[3].split()) if match[3] else tuple(range(len(extents)))
        if name not in pattern.names:
            raise PatternError(f"kind {kind!r}: {text!r} names {name!r}, which the pattern has not")
        unknown = next((extent for extent in extents if not extent.isdigit() and extent not in known), None)
        if unknown is not None:
            raise PatternError(f"kind {kind!r}: {text!r} names {unknown!r}, which no size defines")
        if sorted(axes) != list(range(len(extents))):
            raise PatternError(f"kind {kind!r}: {text!r} does not name each of its {len(extents)} axes once")
        joined, last = match[4] is not None, match[5] is not None
        found.append(BufferView(name=name, extents=extents, axes=axes, joined=joined, last=last))
    return tuple(found)


def misread(views: tuple[BufferView, ...], body: Graph, dims: Mapping[str, int]) -> str:
    """Return which value is read in another way than the kind states; empty when none is. `dims` includes `tokens`."""
    stated, table = {seen.name: seen for seen in views}, body.table()
    for node in body.nodes:
        for use in node.inputs:
            seen = stated.get(use.value)
            if seen is None and dense(use.views):
                continue
            taken = _taken(use.views, concrete(table[use.value].shape, dims["tokens"]), dims["tokens"])
            if seen is None:
                return f"{use.value} is read as {taken}, not as a dense buffer"
            if not _as_stated(seen, use, table[use.value].shape, dims):
                return f"{use.value} is read as {taken}, not as {seen.text}"
    return ""


def _as_stated(seen: BufferView, use: Use, shape: tuple[Dim, ...], dims: Mapping[str, int]) -> bool:
    """Return whether a chain consists of reshapes to the stated extents, then what the kind states of them.

    Where that permutation moves only extents of 1, capture writes it as a reshape.
    """
    tokens, extents, views = dims["tokens"], seen.shape(dims), use.views
    if seen.last:
        return takes_last(views) and _reached(views[:-1], shape, tokens) == extents
    order = tuple(extents[axis] for axis in seen.axes)
    if seen.joined:
        flat = (*order[:-2], order[-2] * order[-1])
        if not views or views[-1].op != "reshape" or concrete(views[-1].args, tokens) != flat:
            return False
        views = views[:-1]
    permuted = bool(views) and views[-1].op == "permute"
    plain = views[:-1] if permuted else views
    if not dense(plain):
        return False
    reached = _reached(plain, shape, tokens)
    if permuted:
        return views[-1].args == seen.axes and reached == extents
    moved = [axis for axis in seen.axes if extents[axis] != 1]
    return moved == sorted(moved) and reached == order


def _reached(views: tuple[View, ...], shape: tuple[Dim, ...], tokens: int) -> tuple[int, ...]:
    return concrete(views[-1].args if views else shape, tokens)


def _taken(views: tuple[View, ...], shape: tuple[int, ...], tokens: int) -> str:
    steps = [f"{view.op}{list(concrete(view.args, tokens))}" for view in views]
    return " ".join([str(list(shape)), *steps])
