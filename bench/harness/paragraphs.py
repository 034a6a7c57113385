"""The form of a recipe's `--help`: each paragraph is filled to the terminal's width by itself."""

from __future__ import annotations

import argparse
import re
import textwrap


class Paragraphs(argparse.HelpFormatter):
    """A formatter of descriptions and epilogues that have several paragraphs."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        parts = re.split(r"\n\s*\n", text.strip())
        filler = textwrap.TextWrapper(width=width, initial_indent=indent, subsequent_indent=indent)
        return "\n\n".join(filler.fill(" ".join(part.split())) for part in parts)
