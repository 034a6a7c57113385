"""The views through which a kind's operators read its values, stated in the kind's row and checked for every region.

A kernel gets dense buffers and knows no views, so a region whose operators permute what they read runs in PyTorch only,
unless its kind states the view. Then every kernel of the kind is written for exactly that view, and no other is
admitted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from agentcompile.ir.graph import Dim, Graph, Use, View, concrete
from agentcompile.regions.match import dense
from agentcompile.regions.pattern import Pattern, PatternError, Size

_VIEW = re.compile(r"([a-z_]\w*) = \[([^\]]+)\](?: by ([\d ]+))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A dense buffer as its readers see it: extents by number or by name, then permuted by `axes`."""

    name: str
    extents: tuple[str, ...]
    axes: tuple[int, ...]

    def shape(self, dims: Mapping[str, int]) -> tuple[int, ...]:
        """Return the extents of the buffer as numbers."""
        return tuple(int(extent) if extent.isdigit() else dims[extent] for extent in self.extents)

    @property
    def text(self) -> str:
        """The view as it is written in the row."""
        order = "" if self.axes == tuple(sorted(self.axes)) else f" by {' '.join(map(str, self.axes))}"
        return f"[{', '.join(self.extents)}]{order}"


def parse_views(kind: str, texts: tuple[str, ...], pattern: Pattern, dims: tuple[Size, ...]) -> tuple[Seen, ...]:
    """Parse items ``name = [extent, …] by axis axis …``.

    Raises:
        PatternError: an item is faulty or uses an unknown name.
    """
    known, found = {"tokens", *(size.name for size in dims)}, []
    for text in texts:
        match = _VIEW.fullmatch(text)
        if match is None:
            raise PatternError(f"kind {kind!r}: {text!r} is not of the form `name = [extent, ...] by axis axis ...`")
        name, extents = match[1], tuple(part.strip() for part in match[2].split(","))
        axes = tuple(int(axis) for axis in match[3].split()) if match[3] else tuple(range(len(extents)))
        if name not in pattern.names:
            raise PatternError(f"kind {kind!r}: {text!r} names {name!r}, which the pattern has not")
        unknown = next((extent for extent in extents if not extent.isdigit() and extent not in known), None)
        if unknown is not None:
            raise PatternError(f"kind {kind!r}: {text!r} names {unknown!r}, which no size defines")
        if sorted(axes) != list(range(len(extents))):
            raise PatternError(f"kind {kind!r}: {text!r} does not name each of its {len(extents)} axes once")
        found.append(Seen(name=name, extents=extents, axes=axes))
    return tuple(found)


def misread(views: tuple[Seen, ...], body: Graph, dims: Mapping[str, int]) -> str:
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


def _as_stated(seen: Seen, use: Use, shape: tuple[Dim, ...], dims: Mapping[str, int]) -> bool:
    """Return whether a chain consists of reshapes to the stated extents, then the stated permutation.

    Where that permutation moves only extents of 1, capture writes it as a reshape.
    """
    tokens, extents = dims["tokens"], seen.shape(dims)
    permuted = bool(use.views) and use.views[-1].op == "permute"
    plain = use.views[:-1] if permuted else use.views
    if not dense(plain):
        return False
    reached = concrete(plain[-1].args if plain else shape, tokens)
    if permuted:
        return use.views[-1].args == seen.axes and reached == extents
    moved = [axis for axis in seen.axes if extents[axis] != 1]
    return moved == sorted(moved) and reached == tuple(extents[axis] for axis in seen.axes)


def _taken(views: tuple[View, ...], shape: tuple[int, ...], tokens: int) -> str:
    steps = [f"{view.op}{list(concrete(view.args, tokens))}" for view in views]
    return " ".join([str(list(shape)), *steps])
