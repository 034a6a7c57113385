"""A field of dots for charts: two by four of them in a cell, single glyphs over them. Pure but for its own cells."""

from __future__ import annotations

from collections.abc import Callable

from .ink import Ink, Line, Span, Style

_BITS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
"""The bits of a braille character by column and row of its dots."""


class Dots:
    """Dots and glyphs on `width` × `height` cells; what is set later lies above."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self._bits: dict[tuple[int, int], int] = {}
        self._styles: dict[tuple[int, int], Style] = {}
        self._glyphs: dict[tuple[int, int], Span] = {}

    @property
    def across(self) -> int:
        """The number of dots in a row."""
        return 2 * self.width

    @property
    def down(self) -> int:
        """The number of dots in a column."""
        return 4 * self.height

    def dot(self, x: int, y: int, style: Style) -> None:
        """Set the dot `x` from the left and `y` from the top; one outside is left out."""
        if 0 <= x < self.across and 0 <= y < self.down:
            cell = (x // 2, y // 4)
            self._bits[cell] = self._bits.get(cell, 0) | _BITS[x % 2][y % 4]
            self._styles[cell] = style

    def glyph(self, x: int, y: int, glyph: str, style: Style) -> None:
        """Put a glyph on the cell of a dot; one outside is left out."""
        if 0 <= x < self.across and 0 <= y < self.down:
            self._glyphs[x // 2, y // 4] = (glyph, style)

    def line(self, height_at: Callable[[int], int | None], style: Style) -> None:
        """Draw a line whose height in dots from the top `height_at` gives for each column; None is a gap."""
        last: int | None = None
        for x in range(self.across):
            y = height_at(x)
            if y is not None:
                for between in range(min(y, y if last is None else last), max(y, y if last is None else last) + 1):
                    self.dot(x, between, style)
            last = y

    def lines(self, ink: Ink) -> list[Line]:
        """Return the field as lines."""
        return [Line(tuple(self._span(x, y, ink) for x in range(self.width))) for y in range(self.height)]

    def _span(self, x: int, y: int, ink: Ink) -> Span:
        if (found := self._glyphs.get((x, y))) is not None:
            return ink.fit(found[0], 1), found[1]
        bits = self._bits.get((x, y), 0)
        style = self._styles.get((x, y), "")
        if not bits:
            return " ", ""
        return ("*" if style == "accent" else ".") if ink.ascii else chr(0x2800 + bits), style
