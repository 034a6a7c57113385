"""Text for a terminal: cleaned, in glyphs that the terminal can show, exactly as wide as its place.

In: any text, also of compilers and advisers. Out: text that holds no control, escape or bidirectional character.
Invariant: whatever the app draws passes `Ink.text` or `Ink.fit`, so nothing reaches the terminal raw.
"""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from rich.cells import cell_len, set_cell_size

from agentcompile.events import clean

Style = Literal[
    "", "dim", "head", "title", "accent", "good", "bad", "warn", "key", "rule", "bar",
    "added", "removed", "comment", "keyword", "string", "number",
]  # fmt: skip
"""The meaning of a span; a theme gives each its look."""
Span = tuple[str, Style]
LONGEST = 2_000
"""Characters of one text that are looked at; no terminal is wider."""

_ASCII = str.maketrans(
    {
        "…": "~", "×": "x", "±": "+-", "µ": "u", "→": "->", "–": "-", "—": "-", "·": "-", "≤": "<=", "≥": ">=",
        "✓": "+", "✗": "x", "●": "*", "○": ".", "◐": "%", "◌": ":", "▸": ">", "▌": ">", "│": "|", "─": "-",
        "┌": "+", "┐": "+", "└": "+", "┘": "+", "├": "+", "┤": "+", "┬": "+", "┴": "+", "┼": "+",
        "▁": "_", "▂": ".", "▃": ":", "▄": "-", "▅": "=", "▆": "+", "▇": "*", "█": "#", "▏": "|", "░": ".",
        "┣": "+", "┗": "+", "━": "=", "┃": "#",
        "◆": "@", "‖": "=", "▲": "^", "▼": "v", "≠": "!", "⊘": "/", "§": "$", "⏎": "enter", "¢": "c",
    }
)  # fmt: skip
SPARKS = "▁▂▃▄▅▆▇█"
_MARKS = ("Mn", "Me", "Mc")


@dataclass(frozen=True, slots=True)
class Ink:
    """How text becomes cells: in Unicode, or in ASCII for terminals that show nothing else."""

    ascii: bool = False

    def text(self, text: str) -> str:
        """Return `text` on one line, safe to draw."""
        return _safe(text, self.ascii)

    def width(self, text: str) -> int:
        """Return the number of cells that `text` takes."""
        return cell_len(_safe(text, self.ascii))

    def fit(self, text: str, width: int, *, right: bool = False) -> str:
        """Return `text` in exactly `width` cells: padded, or cut with an ellipsis."""
        return _fitted(text, max(width, 0), right, self.ascii)

    def middle(self, text: str, width: int) -> str:
        """Return `text` in exactly `width` cells: padded, or with its middle left out, so that its end stays."""
        return _shortened(text, max(width, 0), self.ascii)

    def wrap(self, text: str, width: int, most: int = 1_000) -> list[str]:
        """Return `text` in at most about `most` lines of at most `width` cells, broken at spaces where it has them."""
        lines: list[str] = []
        for paragraph in clean(text, 64 * LONGEST, lines=True).split("\n"):
            lines += _wrapped(_safe(paragraph, self.ascii), max(width, 1))
            if len(lines) > most:
                return [*lines[:most], self.text("…")]
        return lines


@functools.lru_cache(maxsize=16_384)
def _safe(text: str, ascii: bool) -> str:
    if text.isascii() and text.isprintable() and len(text) <= LONGEST:
        return text
    text = clean(text, LONGEST)
    if not text.isascii():
        text = _unstacked(unicodedata.normalize("NFC", text))
    return text.translate(_ASCII).encode("ascii", "replace").decode() if ascii else text


def _unstacked(text: str) -> str:
    """Leave at most one combining mark on a character and none at the start: stacks of them spill into other lines."""
    kept: list[str] = []
    marks = 1
    for char in text:
        is_mark = unicodedata.category(char) in _MARKS or 0xFE00 <= ord(char) <= 0xFE0F
        marks = marks + 1 if is_mark else 0
        if marks <= 1 and (kept or not is_mark):
            kept.append(char)
    return "".join(kept)


@functools.lru_cache(maxsize=16_384)
def _fitted(text: str, width: int, right: bool, ascii: bool) -> str:
    text = _safe(text, ascii)
    cells = cell_len(text)
    if cells == width:
        return text
    if cells < width:
        return " " * (width - cells) + text if right else text + " " * (width - cells)
    if width == 0:
        return ""
    dots = "~" if ascii else "…"
    return set_cell_size(text, width - 1) + dots


@functools.lru_cache(maxsize=16_384)
def _shortened(text: str, width: int, ascii: bool) -> str:
    text = _safe(text, ascii)
    if cell_len(text) <= width or width < 5:
        return _fitted(text, width, False, ascii)
    after = (width - 1) // 2
    tail = text[-after:]
    while cell_len(tail) > after:
        tail = tail[1:]
    return set_cell_size(text, width - 1 - cell_len(tail)) + ("~" if ascii else "…") + tail


def _wrapped(text: str, width: int) -> list[str]:
    lines: list[str] = []
    line = ""
    for word in text.split(" "):
        left = word
        while cell_len(left) > width:
            if line:
                lines.append(line)
                line = ""
            piece = set_cell_size(left, width).rstrip() or left[:1]
            lines.append(piece)
            left = left[len(piece) :]
        joined = f"{line} {left}" if line else left
        if cell_len(joined) > width:
            lines.append(line)
            joined = left
        line = joined
    return [*lines, line]


@dataclass(frozen=True, slots=True)
class Line:
    """One line of spans."""

    spans: tuple[Span, ...] = ()

    @property
    def plain(self) -> str:
        """Its text alone."""
        return "".join(text for text, _ in self.spans)


Block = Sequence[Line]
BLANK = Line()


def line(*spans: Span | str) -> Line:
    """Return a line of spans; a bare text has no style."""
    return Line(tuple((span, "") if isinstance(span, str) else span for span in spans))


def shaped(lines: Iterable[Line], width: int, height: int, ink: Ink) -> list[Line]:
    """Return exactly `height` lines of exactly `width` cells each; what is too long is cut with an ellipsis."""
    found = [cut(one, width, ink) for one, _ in zip(lines, range(height), strict=False)]
    return found + [Line(((" " * width, ""),))] * (height - len(found))


def cut(one: Line, width: int, ink: Ink) -> Line:
    """Return the line `one` in exactly `width` cells."""
    spans: list[Span] = [(ink.text(text), style) for text, style in one.spans]
    total = sum(cell_len(text) for text, _ in spans)
    if total <= width:
        return Line((*spans, (" " * (width - total), "")) if total < width else tuple(spans))
    kept: list[Span] = []
    for text, style in spans:
        if cell_len(text) >= width:
            return Line((*kept, (ink.fit(text + "~", width), style)))
        kept.append((text, style))
        width -= cell_len(text)
    return Line(tuple(kept))


def beside(left: Block, right: Block, left_width: int, right_width: int, height: int, ink: Ink) -> list[Line]:
    """Return two blocks with a rule between them, in lines of `left_width` + 3 + `right_width` cells."""
    halves = zip(shaped(left, left_width, height, ink), shaped(right, right_width, height, ink), strict=True)
    rule: Span = (f" {ink.text('│')} ", "rule")
    return [Line((*a.spans, rule, *b.spans)) for a, b in halves]


def spark(values: Sequence[float], width: int, ink: Ink) -> str:
    """Return the last `width` values as a line of bars, scaled from lowest to highest; empty without values."""
    if not values:
        return ""
    shown = list(values)[-width:]
    low, high = min(shown), max(shown)
    step = (high - low) or 1.0
    top = len(SPARKS) - 1
    return ink.text("".join(SPARKS[round((value - low) / step * top)] for value in shown))


def histogram(values: Sequence[float], bins: int, ink: Ink) -> str:
    """Return bars of how many values lie in each of `bins` equal parts of their range; empty without values."""
    if not values:
        return ""
    low, high = min(values), max(values)
    step = (high - low) / bins or 1.0
    counts = [0] * bins
    for value in values:
        counts[min(int((value - low) / step), bins - 1)] += 1
    most = max(counts)
    top = len(SPARKS) - 1
    return ink.text("".join(SPARKS[round(count / most * top)] if count else " " for count in counts))


def meter(share: float, width: int, ink: Ink) -> str:
    """Return a bar of `width` cells, filled to `share`."""
    full = round(max(0.0, min(1.0, share)) * width)
    return ink.text("█" * full + "░" * (width - full))
