"""The form of `--help` by `argparse`: paragraphs are filled to the terminal's width, and examples keep their lines."""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Sequence

_HEAD = "Examples:"


class Paragraphs(argparse.HelpFormatter):
    """A formatter of descriptions and epilogues that have several paragraphs."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        filler = textwrap.TextWrapper(width=width, initial_indent=indent, subsequent_indent=indent)
        parts = re.split(r"\n\s*\n", text.strip())
        return "\n\n".join(part if part.startswith(_HEAD) else filler.fill(" ".join(part.split())) for part in parts)


def below(lines: Sequence[str]) -> str:
    """Return what stands below a verb's options: lines that can be typed, as they are or with a name put in."""
    return "\n".join((_HEAD, *(f"  {line}" for line in lines)))
