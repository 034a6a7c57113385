"""The looks of the styles: four themes, one accent each, and a set for terminals that want no colour."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

from rich.style import Style as Look
from textual.theme import BUILTIN_THEMES, Theme

from .ink import Style

ANSI = "agentcompile-ansi"
"""The theme in the terminal's own colours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Palette:
    """One theme: its name, whether it uses the terminal's own colours, and how each style looks."""

    name: str
    label: str
    dark: bool
    ansi: bool
    background: str
    foreground: str
    looks: Mapping[Style, str]


def _looks(
    *, text: str, dim: str, accent: str, good: str, bad: str, warn: str, rule: str, bar: str, string: str, number: str
) -> Mapping[Style, str]:
    return {
        "": text,
        "dim": dim,
        "head": f"bold {dim}",
        "title": f"bold {text}",
        "accent": accent,
        "good": good,
        "bad": bad,
        "warn": warn,
        "key": f"bold {accent}",
        "rule": rule,
        "bar": bar,
        "added": good,
        "removed": bad,
        "comment": f"italic {dim}",
        "keyword": accent,
        "string": string,
        "number": number,
    }


PALETTES: tuple[Palette, ...] = (
    Palette(
        name="agentcompile-dark", label="dark", dark=True, ansi=False, background="#14171c", foreground="#d7dae0",
        looks=_looks(
            text="#d7dae0", dim="#858c99", accent="#6cb6ff", good="#7bd88f", bad="#ff7b72", warn="#e3b341",
            rule="#343a46", bar="bold #ffffff on #2b4a6f", string="#a5d6a7", number="#e5c07b",
        ),
    ),
    Palette(
        name="agentcompile-light", label="light", dark=False, ansi=False, background="#fbfbfa", foreground="#24292f",
        looks=_looks(
            text="#24292f", dim="#656d76", accent="#0757b5", good="#0f6b2c", bad="#b3201b", warn="#7d5200",
            rule="#d0d4d9", bar="bold #0a2f5c on #cfe3fb", string="#0a5c36", number="#7a3e00",
        ),
    ),
    Palette(
        name=ANSI, label="the terminal's own colours", dark=True, ansi=True,
        background="ansi_default", foreground="ansi_default",
        looks=_looks(
            text="default", dim="bright_black", accent="cyan", good="green", bad="red", warn="yellow",
            rule="bright_black", bar="reverse", string="green", number="yellow",
        ),
    ),
    Palette(
        name="agentcompile-contrast", label="high contrast", dark=True, ansi=False,
        background="#000000", foreground="#ffffff",
        looks=_looks(
            text="#ffffff", dim="#d0d0d0", accent="#ffff00", good="#00ff66", bad="#ff9d94", warn="#ffd000",
            rule="#ffffff", bar="bold #000000 on #ffff00", string="#9dffb0", number="#ffd9a0",
        ),
    ),
)  # fmt: skip
PLAIN: Mapping[Style, str] = {
    "": "", "dim": "", "head": "bold", "title": "bold", "accent": "bold", "good": "", "bad": "bold", "warn": "bold",
    "key": "bold", "rule": "", "bar": "reverse", "added": "bold", "removed": "", "comment": "italic", "keyword": "bold",
    "string": "", "number": "",
}  # fmt: skip
"""Without colour: weight and reversal alone; glyphs and words carry the state anyway."""


def textual_themes() -> list[Theme]:
    """Return the palettes as themes of the toolkit, for what lies behind our own lines."""
    return [
        Theme(
            name=palette.name,
            primary="ansi_cyan" if palette.ansi else "#6cb6ff",
            background=palette.background,
            surface=palette.background,
            panel=palette.background,
            foreground=palette.foreground,
            dark=palette.dark,
            ansi=palette.ansi,
            variables=dict(BUILTIN_THEMES["ansi-dark"].variables) if palette.ansi else {},
        )
        for palette in PALETTES
    ]


@functools.lru_cache(maxsize=256)
def look(theme: str, style: Style, plain: bool) -> Look:
    """Return the look of a style in a theme; `plain` is without any colour."""
    palette = next((palette for palette in PALETTES if palette.name == theme), PALETTES[0])
    return Look.parse(PLAIN[style] or "none") if plain else Look.parse(palette.looks[style])
