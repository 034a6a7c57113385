"""Grounded instruction: the spans of a kernel that a plan allows to change, and whether an edit stays inside them.

In: a kernel's text, and the same text with marks on lines of their own. Out: `Spans`, or the reason why there are none.
A span holds whole lines; an empty one is a place to insert at. A newline at the end of a text does not count.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable
from dataclasses import dataclass

BEGINS, ENDS = "<<<IMPROVE BEGINS>>>", "<<<IMPROVE ENDS>>>"
_SHOWN = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Spans:
    """The lines of a kernel, and which of them may change."""

    lines: tuple[str, ...]
    spans: tuple[tuple[int, int], ...]
    """Ranges of indices into `lines`, ascending, each without its end."""

    @property
    def marked(self) -> str:
        """The kernel's text with the marks."""
        found, at = list[str](), 0
        for begin, end in self.spans:
            found += [*self.lines[at:begin], BEGINS, *self.lines[begin:end], ENDS]
            at = end
        return "\n".join([*found, *self.lines[at:]])

    def refusal(self, answer: str) -> str:
        """Return why `answer` is no edit of these spans alone, with line numbers; empty where it is one."""
        lines = _lines(answer)
        for number, line in enumerate(lines, 1):
            if BEGINS in line or ENDS in line:
                return f"line {number}: a mark was left in the kernel"
        if (0, len(self.lines)) in self.spans:
            return ""
        fixed, find = self._fixed(), _finder(lines)
        at = 0
        for place, (begin, end) in enumerate(fixed):
            segment = self.lines[begin:end]
            if place == 0:
                wrong = _first_difference(segment, lines[: len(segment)])
            elif place == len(fixed) - 1:
                least = min(max(len(lines) - len(segment), at), len(lines))
                wrong = _last_difference(segment, lines[least:])
            else:
                found = find(segment, at)
                if found is None:
                    return f"lines {begin + 1} to {end}, between two spans: they were changed or are missing"
                at = found + len(segment)
                continue
            if wrong is not None:
                changed = begin + wrong
                return f"line {changed + 1}, outside every span: {self.lines[changed].strip()[:_SHOWN]!r} was changed"
            at += len(segment)
        return ""

    def _fixed(self) -> list[tuple[int, int]]:
        """Return the ranges of lines before, between and after the spans."""
        edges = [0, *(edge for span in self.spans for edge in span), len(self.lines)]
        return list(zip(edges[::2], edges[1::2], strict=True))


def whole(text: str) -> Spans:
    """Return the spans of a kernel that may change everywhere; of an empty text, one that is not written yet."""
    lines = _lines(text)
    return Spans(lines=lines, spans=((0, len(lines)),))


def spans_of(marked: str, text: str) -> Spans | str:
    """Return the spans that `marked` shows in the kernel `text`, or why it shows none."""
    plain, spans, opened = list[str](), list[tuple[int, int]](), 0
    begin: int | None = None
    for number, line in enumerate(_lines(marked), 1):
        mark = line.strip()
        if mark not in (BEGINS, ENDS):
            if BEGINS in line or ENDS in line:
                return f"line {number}: a mark must be on a line of its own"
            plain.append(line)
        elif mark == BEGINS:
            if begin is not None:
                return f"line {number}: {BEGINS} inside the span that begins on line {opened}"
            begin, opened = len(plain), number
        elif begin is None:
            return f"line {number}: {ENDS} without {BEGINS}"
        else:
            spans.append((begin, len(plain)))
            begin = None
    if begin is not None:
        return f"line {opened}: {BEGINS} without {ENDS}"
    if not spans:
        return f"no span is marked by {BEGINS} and {ENDS}"
    lines = _lines(text)
    wrong = _first_difference(lines, tuple(plain))
    if wrong is not None or len(plain) != len(lines):
        differs = min(len(lines), len(plain)) if wrong is None else wrong
        return f"without its marks the text differs from the kernel on line {differs + 1}"
    return Spans(lines=lines, spans=tuple(spans))


def _lines(text: str) -> tuple[str, ...]:
    lines = text.split("\n")
    return tuple(lines[:-1] if lines[-1] == "" else lines)


def _first_difference(wanted: tuple[str, ...], found: tuple[str, ...]) -> int | None:
    """Return the index of the first line of `wanted` that `found` has not in its place."""
    for at, line in enumerate(wanted):
        if at >= len(found) or found[at] != line:
            return at
    return None


def _last_difference(wanted: tuple[str, ...], found: tuple[str, ...]) -> int | None:
    """Return the index of the last line of `wanted` that `found` has not in its place, counted from the end."""
    wrong = _first_difference(wanted[::-1], found[::-1])
    return None if wrong is None else len(wanted) - 1 - wrong


def _finder(lines: tuple[str, ...]) -> Callable[[tuple[str, ...], int], int | None]:
    """Return a function that says where a segment first stands in `lines` from a place on.

    It searches in one text, in time linear in its length: line by line, equal lines would take minutes.
    """
    text = "".join(f"\n{line}" for line in lines) + "\n"
    breaks = [0, *itertools.accumulate(len(line) + 1 for line in lines)]

    def find(segment: tuple[str, ...], at: int) -> int | None:
        if not segment:
            return at
        place = text.find("\n" + "\n".join(segment) + "\n", breaks[at])
        return None if place < 0 else bisect.bisect_left(breaks, place)

    return find
