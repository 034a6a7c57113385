"""Tables as lines of text that fit a terminal: no cell is shortened, and no word is cut.

In: a table and a width. Out: lines. A last text that has room in its own column is wrapped there. Else a table that is
too wide gives up columns, texts before numbers, with the names narrowed between: what they hold stands below its row,
after the column's head. A name that is longer than its column stands on a line of its own; so does a last text with a
word that is.
"""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap

from agentcompile.runs.tables import Table

LEAST = 40
"""The narrowest terminal that tables are fitted to."""
_GAP = "  "
_NAME = 20
"""The characters that a column of names keeps, where its names are longer."""
_NARROW = 8
"""The same where a column of numbers would have no room else."""
_TEXT = 24
"""The characters from which a text is wrapped in its own column."""
_SIGN = 3
"""The widest column that is a sign, and no text."""


def columns(table: Table) -> list[str]:
    """Return a table's lines, with columns padded to their widest cell."""
    return _aligned(table, _widths(table), range(len(table.heads)))


def fitted(table: Table, width: int) -> list[str]:
    """Return a table's lines, none of them longer than `width` unless a single word is."""
    width, natural = max(width, LEAST), _widths(table)
    if sum(natural) + len(_GAP) * (len(natural) - 1) <= width:
        return columns(table)
    if lines := _in_place(table, natural, width):
        return lines
    named = [i for i in range(len(natural)) if i not in table.right and natural[i] > _SIGN]
    name = next((i for i in named if table.heads[i]), 0)
    kept = _kept(table, natural, name, width)
    others = sum(natural[i] + len(_GAP) for i in kept if i != name)
    widths = [*natural]
    widths[name] = min(natural[name], max(width - others, len(table.heads[name]), 1))
    lines = _aligned(Table(heads=table.heads, rows=[], right=table.right), widths, kept)
    below = [i for i in range(len(natural)) if i not in kept]
    for row in table.rows:
        lines += [*_row(row, widths, kept, name, table, width), *_below(table, row, below, width)]
    return lines


def _in_place(table: Table, widths: Sequence[int], width: int) -> list[str]:
    """Return the lines of a table whose last text is wrapped in its own column; none where it has no room there."""
    last = len(widths) - 1
    before = range(last)
    indent = sum(widths[:last]) + len(_GAP) * last
    room = width - indent
    if last in table.right or room < _TEXT or all(_long(row[last], room) for row in table.rows):
        return []
    lines = [_line(table.heads, widths, range(last + 1), table)]
    for row in table.rows:
        own = _line(row, widths, before, table)
        if _long(row[last], room):
            lines += [own, *_wrapped(row[last], width, _GAP)]
            continue
        first, *rest = _wrapped(row[last], room) or [""]
        lines += [f"{own.ljust(indent)}{first}".rstrip(), *(" " * indent + text for text in rest)]
    return lines


def _long(text: str, room: int) -> bool:
    """Return whether a word of a text has no room."""
    return any(len(word) > room for word in text.split())


def _widths(table: Table) -> list[int]:
    lines = (table.heads, *table.rows)
    return [max(len(line[i]) for line in lines) for i in range(len(table.heads))]


def _kept(table: Table, widths: Sequence[int], name: int, width: int) -> list[int]:
    """Return the columns that a row's own line has room for beside its name: the widest text goes first."""
    kept, least = list(range(len(widths))), _NAME

    def needed() -> int:
        return sum(min(widths[i], least) if i == name else widths[i] for i in kept) + len(_GAP) * (len(kept) - 1)

    while needed() > width and len(kept) > 1:
        texts = [i for i in kept if i not in table.right and i != name and widths[i] > _SIGN]
        if not texts and least > _NARROW:  # numbers are compared by column, and a name may have a line of its own
            least = _NARROW
            continue
        kept.remove(max(texts, key=lambda i: (widths[i], i)) if texts else max(i for i in kept if i != name))
    return kept


def _row(
    row: Sequence[str], widths: Sequence[int], kept: Sequence[int], name: int, table: Table, width: int
) -> list[str]:
    """Return a row's own lines: two where its name is longer than its column."""
    if len(row[name]) <= widths[name]:
        return [_line(row, widths, kept, table)]
    before = [i for i in kept if i < name]
    first = "".join(f"{_cell(row[i], widths[i], i, table)}{_GAP}" for i in before)
    own = _wrapped(row[name], width - len(first))
    lines = [(first if at == 0 else " " * len(first)) + text for at, text in enumerate(own)]
    rest = _line(["" if i <= name else cell for i, cell in enumerate(row)], widths, kept, table)
    return [*lines, rest] if rest else lines


def _below(table: Table, row: Sequence[str], below: Sequence[int], width: int) -> list[str]:
    """Return what a row's own line has no room for: numbers side by side, then each text, wrapped."""
    numbers = [f"{table.heads[i]}: {row[i]}" for i in below if row[i] and i in table.right]
    texts = [f"{table.heads[i]}: {row[i]}" for i in below if row[i] and i not in table.right]
    return [line for text in (_GAP.join(numbers), *texts) for line in _wrapped(text, width, _GAP)]


def _wrapped(text: str, width: int, indent: str = "") -> list[str]:
    """Return a text in lines of at most `width`; a word that is longer stays whole."""
    return wrap(
        text, width, initial_indent=indent, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _aligned(table: Table, widths: Sequence[int], kept: Sequence[int]) -> list[str]:
    return [_line(line, widths, kept, table) for line in (table.heads, *table.rows)]


def _line(cells: Sequence[str], widths: Sequence[int], kept: Sequence[int], table: Table) -> str:
    return _GAP.join(_cell(cells[i], widths[i], i, table) for i in kept).rstrip()


def _cell(cell: str, width: int, i: int, table: Table) -> str:
    return cell.rjust(width) if i in table.right else cell.ljust(width)
