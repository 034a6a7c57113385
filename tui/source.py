"""Programs as pages: the source of a candidate highlighted, two of them as a difference, the help in its groups."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Sequence

from .ink import Ink, Line, Span, Style, line
from .scene import Page

LEXERS = {"cuda": "cuda", "cpp": "cpp", "triton": "python", "library": "text", "toml": "toml"}
MOST_LINES = 20_000


def colours(page: Page, width: int, ink: Ink) -> list[Line]:
    """The lines of a page as they are drawn; each fits `width`, a longer one is cut with an ellipsis."""
    match page.kind:
        case "help":
            return [_help(text) for text in page.lines]
        case "diff":
            return [_diff(text) for text in page.lines]
        case "source":
            return _numbered(page.lines, page.language)
        case "text":
            return [piece for text in page.lines for piece in (line(one) for one in ink.wrap(text, width))]


def _help(text: str) -> Line:
    if text.startswith("# "):
        return line((text[2:], "head"))
    if not text.strip():
        return line()
    if text[:12].strip():
        return line((text[:12], "key"), text[12:])
    return line((text, "dim"))


def _diff(text: str) -> Line:
    styles: dict[str, Style] = {"+": "added", "-": "removed", "@": "accent"}
    return line((text, styles.get(text[:1], "")))


@functools.lru_cache(maxsize=8)
def _numbered(lines: tuple[str, ...], language: str) -> list[Line]:
    width = len(str(len(lines)))
    return [
        Line(((f"{number:>{width}}  ", "dim"), *spans)) for number, spans in enumerate(_highlighted(lines, language), 1)
    ]


def _highlighted(lines: Sequence[str], language: str) -> list[tuple[Span, ...]]:
    """Spans by the grammar of the language; plain text for one that is not in the table."""
    from pygments.lexers import get_lexer_by_name

    lexer = get_lexer_by_name(LEXERS.get(language, "text"), stripnl=False, ensurenl=False)
    found: list[list[Span]] = [[]]
    for token, text in lexer.get_tokens("\n".join(lines)):
        style = _style(str(token))
        for at, piece in enumerate(text.split("\n")):
            if at:
                found.append([])
            if piece:
                found[-1].append((piece, style))
    return [tuple(spans) for spans in found[: len(lines)]]


def _style(token: str) -> Style:
    for part, style in _TOKENS:
        if token.startswith(f"Token.{part}"):
            return style
    return ""


_TOKENS: tuple[tuple[str, Style], ...] = (
    ("Comment.Preproc", "keyword"),
    ("Comment", "comment"),
    ("Keyword", "keyword"),
    ("Literal.String", "string"),
    ("Literal.Number", "number"),
    ("Name.Decorator", "keyword"),
)


def difference(old: Sequence[str], new: Sequence[str], old_name: str, new_name: str) -> tuple[str, ...]:
    """A unified difference of two programs; says so when there is none."""
    lines = tuple(difflib.unified_diff(old, new, old_name, new_name, lineterm="", n=3))
    return lines or ("The two programs are the same.",)
