"""Text of a report's cells: numbers with so many telling digits, and names on one line."""

from __future__ import annotations

import math

NOTHING = "-"


def plain(text: str) -> str:
    """`text` on one line, with a sign for what no text can hold: control characters, halves of a pair."""
    return "".join(
        sign if sign.isprintable() else " " if sign.isspace() else "\N{REPLACEMENT CHARACTER}" for sign in text
    )


def number(value: float | None, digits: int = 4) -> str:
    """`value` with so many telling digits and no exponent; a dash for what is not known."""
    if value is None or not math.isfinite(value):
        return NOTHING
    if value == 0:
        return "0"
    return f"{value:.{max(0, digits - 1 - math.floor(math.log10(abs(value))))}f}"


def short(text: str, letters: int) -> str:
    """`text` on one line of at most so many letters."""
    text = plain(text)
    return text if len(text) <= letters else f"{text[: letters - 1]}…"
