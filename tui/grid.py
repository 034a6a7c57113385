"""Tables of fixed columns: the columns that a width has room for, and the rows around the cursor as lines. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .ink import Ink, Line, Span

GAP = 2
SORTED = "▼"
"""Behind the head of the column that rows are sorted by: the most important first, at the top."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of at least `width` cells.

    The cells that are left are shared by `grow`; where cells are missing the columns of the highest `drop` go first.
    """

    head: str
    width: int
    right: bool = False
    grow: int = 0
    drop: int = 0
    wants: int = 0
    """Cells for which other columns are dropped; 0 for no more than its width."""
    middle: bool = False
    """Whether what is too long is cut in its middle, because its end tells it apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One row: a stable key, its cells, and what filters and sorts look at."""

    key: str
    cells: tuple[Span, ...]
    order: tuple[float | str, ...] = ()
    """A value for each column, to sort by."""
    group: int = 0
    """Rows of different groups are not compared: the lower group stays above the higher one however rows are sorted."""
    under: str = ""
    """The key of the row that it stands below, whichever column is sorted by; empty for a row of its own."""

    @property
    def text(self) -> str:
        """What a filter is held against."""
        return " ".join(text for text, _ in self.cells).lower()


def fitted(columns: Sequence[Column], total: int) -> list[tuple[int, int]]:
    """Return the columns that `total` cells have room for: the index and the width of each."""
    kept = list(range(len(columns)))
    least = [max(column.width, column.wants) for column in columns]

    def needed() -> int:
        return sum(least[at] for at in kept) + GAP * (len(kept) - 1)

    while needed() > total and any(columns[at].drop for at in kept):
        kept.remove(max(kept, key=lambda at: (columns[at].drop, at)))
    if needed() > total:
        least = [column.width for column in columns]
    left = max(total - needed(), 0)
    shares = sum(columns[at].grow for at in kept)
    widths: dict[int, int] = {}
    for at in kept:
        extra = left * columns[at].grow // shares if shares else 0
        widths[at] = least[at] + extra
    if shares:
        first = next(at for at in kept if columns[at].grow)
        widths[first] += total - GAP * (len(kept) - 1) - sum(widths.values()) if needed() <= total else 0
    return [(at, widths[at]) for at in kept]


def window(count: int, cursor: int, height: int) -> int:
    """Return the first row to show, so that the cursor stays near the middle."""
    return max(0, min(cursor - height // 2, count - height))


def shown_rows(count: int, cursor: int, height: int) -> range:
    """Return which of `count` rows a table of `height` lines shows below its heads."""
    room = max(height - 1, 1)
    if count > room:
        room -= 1
    start = window(count, cursor, room)
    return range(start, min(start + room, count))


def column_at(columns: Sequence[Column], width: int, x: int) -> int:
    """Return the index of the column under cell `x` of a table of `width` cells; -1 where there is none."""
    left = GAP
    for at, cells in fitted(columns, width - GAP):
        if left <= x < left + cells:
            return at
        left += cells + GAP
    return -1


def table(
    columns: Sequence[Column],
    entries: Sequence[Entry],
    *,
    width: int,
    height: int,
    cursor: int,
    ink: Ink,
    sort: int = -1,
    empty: str = "",
) -> list[Line]:
    """Return heads and rows in `height` lines of `width` cells, with a mark at the cursor and the number of rows."""
    places = fitted(columns, width - GAP)
    heads = []
    for at, cells in places:
        head = columns[at].head[: cells - 1] + SORTED if at == sort else columns[at].head
        heads.append(ink.fit(head, cells, right=columns[at].right))
    lines = [Line((("  " + (" " * GAP).join(heads), "head"),))]
    if not entries:
        return [*lines, Line((("  ", ""), (ink.text(empty), "dim")))]
    shown = shown_rows(len(entries), cursor, height)
    lines += [_row(entries[at], places, columns, at == cursor, ink) for at in shown]
    if len(entries) > len(shown) and height > 2:
        where = f"{shown.start + 1}–{shown.stop} of {len(entries)}"
        lines.append(Line((("  ", ""), (ink.text(where), "dim"))))
    return lines


def _row(entry: Entry, places: Sequence[tuple[int, int]], columns: Sequence[Column], chosen: bool, ink: Ink) -> Line:
    spans: list[Span] = [("▌ " if chosen else "  ", "accent")]
    for number, (at, cells) in enumerate(places):
        text, style = entry.cells[at]
        gap = " " * GAP if number else ""
        fit = ink.middle(text, cells) if columns[at].middle else ink.fit(text, cells, right=columns[at].right)
        spans.append((gap + fit, "bar" if chosen else style))
    return Line(tuple(spans))


def picked(entries: Sequence[Entry], wanted: str, sort: int) -> list[Entry]:
    """Return the entries whose text holds every word of `wanted`, sorted by column `sort` (-1: as they come)."""
    words = wanted.lower().split()
    found = [entry for entry in entries if all(word in entry.text for word in words)] if words else list(entries)
    if sort >= 0:
        found.sort(key=lambda one: (one.group, *(_key(one.order[sort]) if sort < len(one.order) else (1, 0.0, ""))))
    return _nested(found)


def _nested(entries: list[Entry]) -> list[Entry]:
    """Return the rows with each that stands below another right after it, where that other row is there."""
    if not any(entry.under for entry in entries):
        return entries
    keys = {entry.key for entry in entries}
    below: dict[str, list[Entry]] = {}
    for entry in entries:
        below.setdefault(entry.under if entry.under in keys else "", []).append(entry)
    return [one for top in below.get("", []) for one in (top, *below.get(top.key, []))]


def _key(value: float | str) -> tuple[int, float, str]:
    return (1, 0.0, value) if isinstance(value, str) else (0, value, "")


def cursor_of(entries: Sequence[Entry], key: str) -> int:
    """Return the index of the entry `key`; 0 when it is not there."""
    return next((at for at, entry in enumerate(entries) if entry.key == key), 0)


def pairs(rows: Sequence[tuple[str, str | Span]], ink: Ink, width: int, label: int = 10) -> list[Line]:
    """Return labels with their values, wrapped below one another."""
    lines: list[Line] = []
    for name, value in rows:
        span: Span = value if isinstance(value, tuple) else (value, "")
        for at, piece in enumerate(ink.wrap(span[0], width - label)):
            lines.append(Line(((ink.fit(name if at == 0 else "", label), "dim"), (piece, span[1]))))
    return lines
