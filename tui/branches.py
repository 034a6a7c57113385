"""A tree as rows: as much of it as there is room for, the best first, with what was left out counted. Pure.

In: the children of each node in the order in which they are shown. Out: rows with the lines that join them. Invariant:
a node is shown only below its parent, and every node that is not shown is counted once.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

PREFIX = 20
"""The most cells of lines in front of a node; deeper ones lose those at the left."""
_LEAST_PATH = 3
Worth = tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """One row: a node with what is hidden below it, or nodes that were left out."""

    id: str
    """The node; empty for a row of roots that were left out."""
    lines: str = ""
    """The lines that join it to its parent; heavy ones on the path."""
    hidden: tuple[str, ...] = ()
    """The nodes below it that were left out, or those that the row stands for."""
    between: bool = False
    """Whether the row stands for nodes that were left out between the row before and the node `id` after it."""


def fitted(
    children: Mapping[str, Sequence[str]], worth: Mapping[str, Worth], path: Sequence[str], room: int
) -> list[Branch]:
    """Return the tree below the node ``""`` in at most about `room` rows; those of `path` come first, then the best.

    Where the path alone takes most of the room its middle is left out. A `room` of 0 means that all is shown.
    """
    kids, skipped = dict(children), dict[str, tuple[str, ...]]()
    if room and len(path) > (keep := max(room * 2 // 3, _LEAST_PATH)):
        first, last = path[0], path[len(path) - keep + 2]
        kids[first] = (last, *(id for id in children.get(first, ()) if id != path[1]))
        skipped[last] = _below(path[1], children, without=last)
    shown = _shown(kids, worth, set(path), room - len(skipped)) if room else None
    return _rows(kids, children, shown, set(path), skipped)


def _shown(kids: Mapping[str, Sequence[str]], worth: Mapping[str, Worth], path: set[str], room: int) -> set[str]:
    """Return the nodes to show: one after another the best whose parent is shown, while there is room.

    Roots that are left out take a row together.
    """
    waiting: list[tuple[bool, Worth, int, str]] = []
    count = itertools.count()

    def put(parent: str) -> None:
        for id in kids.get(parent, ()):
            rank = tuple(-part for part in worth.get(id, ()))
            heapq.heappush(waiting, (id not in path, rank, next(count), id))

    put("")
    roots = set(kids.get("", ()))
    left = len(roots)
    shown: set[str] = set()
    while waiting:
        *_, id = heapq.heappop(waiting)
        after = left - (id in roots)
        if len(shown) + 1 + (after > 0) > room:
            continue
        left = after
        shown.add(id)
        put(id)
    return shown


def _rows(
    kids: Mapping[str, Sequence[str]],
    children: Mapping[str, Sequence[str]],
    shown: set[str] | None,
    path: set[str],
    skipped: Mapping[str, tuple[str, ...]],
) -> list[Branch]:
    rows: list[Branch] = []
    stack: list[tuple[Branch, str]] = []

    def hidden(parent: str) -> tuple[str, ...]:
        if shown is None:
            return ()
        return tuple(one for id in kids.get(parent, ()) if id not in shown for one in _below(id, children))

    def put(parent: str, before: str) -> None:
        visible = [id for id in kids.get(parent, ()) if shown is None or id in shown]
        found: list[tuple[Branch, str]] = []
        for at, id in enumerate(visible):
            final, heavy = at == len(visible) - 1, id in path
            joint = "" if not parent else ("┗━" if heavy else "└─") if final else ("┣━" if heavy else "├─")
            after = "" if not parent else "  " if final else "│ "
            if id in skipped:
                found.append((Branch(id=id, lines=_cut(before + "┃ "), hidden=skipped[id], between=True), ""))
            found.append((Branch(id=id, lines=_cut(before + joint), hidden=hidden(id)), before + after))
        stack.extend(reversed(found))

    put("", "")
    while stack:
        row, before = stack.pop()
        rows.append(row)
        if not row.between:
            put(row.id, before[-2 * PREFIX :])
    return [*rows, Branch(id="", hidden=left)] if (left := hidden("")) else rows


def _cut(lines: str) -> str:
    return lines if len(lines) <= PREFIX else "…" + lines[1 - PREFIX :]


def _below(id: str, children: Mapping[str, Sequence[str]], without: str = "") -> tuple[str, ...]:
    """Return a node and all below it, except the node `without` and those below that."""
    found: list[str] = []
    left: list[str] = [id]
    while left:
        at = left.pop()
        if at != without:
            found.append(at)
            left.extend(reversed(children.get(at, ())))
    return tuple(found)
