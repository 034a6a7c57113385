"""Text of a report's cells: numbers with some significant digits, and names on one line."""

from __future__ import annotations

import math

NOTHING = "-"


def plain(text: str) -> str:
    """Return `text` on one line, with U+FFFD for characters that cannot be printed (control, lone surrogate)."""
    return "".join(
        sign if sign.isprintable() else " " if sign.isspace() else "\N{REPLACEMENT CHARACTER}" for sign in text
    )


def number(value: float | None, digits: int = 4) -> str:
    """Return `value` with `digits` significant digits, commas between thousands and no exponent.

    None and what is not finite give a dash.
    """
    if value is None or not math.isfinite(value):
        return NOTHING
    if value == 0:
        return "0"
    return f"{value:,.{max(0, digits - 1 - math.floor(math.log10(abs(value))))}f}"


def short(text: str, letters: int) -> str:
    """Return `text` on one line of at most `letters` characters, cut with an ellipsis."""
    text = plain(text)
    return text if len(text) <= letters else f"{text[: letters - 1]}…"
