"""The best speed-up so far as a curve in the cells of a terminal, with others faint behind it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from agentcompile.runs.searches import Curve

from .ink import Ink, Line, Span, Style, line
from .trials import times

LABEL = 7
"""Cells of the labels at the left: a ratio and a blank."""
AROUND = 2
"""Lines that a plot takes beside its curve: its axis, and the marks of failures."""
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
"""The bits of a braille character by column and row of its dots."""
Cells = dict[tuple[int, int], int]


def plot(
    curve: Curve,
    width: int,
    height: int,
    ink: Ink,
    behind: Sequence[Curve] = (),
    *,
    value: Callable[[float], str] = times,
    counted: str = "candidate",
) -> list[Line]:
    """Return a curve in `height` lines of at most `width` cells, and below it its axis and a mark for each failure.

    The lowest and the highest speed-up of all curves are the ends of the scale, but below half of the highest only this
    curve counts: what else is lower is left out, so that its rises stay visible. The curves `behind` are faint, and
    `legend` names them. `value` writes a speed-up in `LABEL` - 1 cells, and what has one is called `counted`. Beside a
    look for the first measured candidate it costs as much as the plot has cells.
    """
    most = max(len(one.best) for one in (curve, *behind))
    room = max(width - LABEL - 1, 4)
    reached = [first for one in (curve, *behind) if (first := _first(one))]
    if not reached:
        return [line((f"No {counted} was measured yet.", "dim"))]
    low, high = min(reached), max(one.best[-1] for one in (curve, *behind) if one.best)
    low = max(low, min(_first(curve) or low, high / 2))
    own = _cells(curve, most, room, height, low, high)
    faint = Cells()
    for one in behind:
        for cell, bits in _cells(one, most, room, height, low, high).items():
            faint[cell] = faint.get(cell, 0) | bits
    lines: list[Line] = []
    for y in range(height):
        label = value(high) if y == 0 else value(low) if y == height - 1 and low < high else ""
        spans: list[Span] = [(ink.fit(label, LABEL - 1, right=True) + " ", "dim"), (ink.text("│"), "rule")]
        lines.append(line(*spans, *_row(own, faint, y, room, ink)))
    return [*lines, _axis(curve, counted, room, ink), _marks(curve, most, room, ink)]


def legend(behind: Sequence[Curve], width: int, most: int, ink: Ink) -> list[Line]:
    """Return the names of faint curves in at most `most` lines: that which ends highest first, as many as fit."""
    if not behind:
        return []
    names = [one.name for one in sorted(behind, key=lambda one: -one.best[-1] if one.best else 0.0)]
    room = max(width - LABEL - 1, 4)
    lines = ink.wrap(f"faint: {', '.join(names)}", room)
    for kept in range(len(names) - 1, 0, -1):
        if len(lines) <= most:
            break
        lines = ink.wrap(f"faint: {', '.join(names[:kept])} … {len(names) - kept} more", room)
    return [line((" " * (LABEL + 1), ""), (text, "dim")) for text in lines[:most]]


def _first(curve: Curve) -> float:
    return next((value for value in curve.best if value), 0.0)


def _cells(curve: Curve, most: int, width: int, height: int, low: float, high: float) -> Cells:
    """Return the dots of a curve as bits by cell: a step for each rise, two columns and four rows of dots a cell.

    What is below `low` is left out; a curve that rises from there comes in at the bottom.
    """
    cells = Cells()
    across, down = 2 * width, 4 * height
    last = -1
    for x in range(across):
        at = x * (most - 1) / (across - 1)
        if int(at) >= len(curve.best) or not (value := curve.best[int(at)]):
            continue
        if value < low:
            last = down - 1
            continue
        y = round((high - value) / (high - low) * (down - 1)) if high > low else 0
        for dot in range(y, max(last, y) + 1):
            cell = (x // 2, dot // 4)
            cells[cell] = cells.get(cell, 0) | _DOTS[x % 2][dot % 4]
        last = y
    return cells


def _row(own: Cells, faint: Cells, y: int, width: int, ink: Ink) -> list[Span]:
    """Return one line of cells as spans; where curves cross, the one in front has the cell."""
    spans: list[Span] = []
    for x in range(width):
        front = own.get((x, y), 0)
        bits = front or faint.get((x, y), 0)
        glyph = " " if not bits else ("*" if front else ".") if ink.ascii else chr(0x2800 + bits)
        style: Style = "accent" if front else "dim"
        if spans and (spans[-1][1] == style or not bits):
            spans[-1] = (spans[-1][0] + glyph, spans[-1][1])
        else:
            spans.append((glyph, style))
    return spans


def _axis(curve: Curve, counted: str, width: int, ink: Ink) -> Line:
    tried = counted if len(curve.best) == 1 else f"{counted}s"
    counts = {tried: len(curve.best), "failed": len(curve.failed), "without a result": len(curve.unknown)}
    text = " " + ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    text = ink.text(text) if ink.width(text) <= width else ink.fit(text, width)
    rule = ink.text("└" + "─" * (width - ink.width(text)))
    return line((" " * LABEL, ""), (rule, "rule"), (text, "dim"))


def _marks(curve: Curve, most: int, width: int, ink: Ink) -> Line:
    """Return a mark under each candidate that failed, and another under each of which nothing is known."""
    marks: dict[int, Span] = {}
    kinds: tuple[tuple[tuple[int, ...], Span], ...] = ((curve.unknown, ("▲", "warn")), (curve.failed, ("✗", "bad")))
    for places, mark in kinds:
        for at in places:
            marks[at * (width - 1) // max(most - 1, 1)] = mark
    if not marks:
        return line()
    spans: list[Span] = [(ink.fit("failed" if curve.failed else "", LABEL + 1), "dim")]
    at = 0
    for x, (glyph, style) in sorted(marks.items()):
        spans.append((" " * (x - at) + ink.text(glyph), style))
        at = x + 1
    return line(*spans)
