"""Pages: the program of a candidate highlighted, two of them as a difference, the help in its groups."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Sequence
from pathlib import Path

from agentcompile.control.sources import source_text
from agentcompile.events import clean
from agentcompile.ir.trial import Kernel
from agentcompile.runs.progress import State
from agentcompile.runs.session import RunDirectory

from .ink import Ink, Line, Span, Style, line
from .scene import Page
from .trials import latest, placed

LEXERS = {"cuda": "cuda", "cpp": "cpp", "triton": "python", "library": "text", "toml": "toml"}


def colours(page: Page, width: int, ink: Ink) -> list[Line]:
    """Return the lines of a page with their styles; only plain text is wrapped at `width`."""
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
    """Return a unified difference of two programs, or a line that says that they are the same."""
    lines = tuple(difflib.unified_diff(old, new, old_name, new_name, lineterm="", n=3))
    return lines or ("The two programs are the same.",)


def page(state: State, region: str, candidate: str, run: Path, store: Path, *, diff: bool) -> Page | str:
    """Return a candidate's program, or its difference from what the region runs, or why there is none."""
    found = latest(state, region)
    one = found.get(candidate)
    if one is None:
        return "This candidate was not evaluated yet: its program is made when it is."
    label = one.candidate.label
    new = text_of(run, one.source)
    if new is None:
        return f"The program of {label} is not kept here any more: r evaluates it again."
    row = state.row(region)
    language = next(
        (offer.language for offer in (row.offers if row else ()) if offer.template == one.candidate.template), "cpp"
    )
    if not diff:
        return Page(title=label, kind="source", lines=new, language=language)
    other = incumbent(state, region, candidate)
    if other is None:
        return "There is nothing to hold it against: no other candidate of this region was measured."
    old = text_of(run, found[other].source)
    old_label = found[other].candidate.label
    if old is None:
        return f"The program of {old_label} is not kept here any more: r evaluates it again."
    return Page(title=f"{old_label} → {label}", kind="diff", lines=difference(old, new, old_label, label))


def incumbent(state: State, region: str, candidate: str) -> str | None:
    """Return what `candidate` is compared with: what the region runs, else its best, else another one measured."""
    row = state.row(region)
    wanted = []
    runs = placed(state).get(region, row.choice if row is not None else None)
    if isinstance(runs, Kernel):
        wanted.append(runs.candidate.id)
    if row is not None and row.best is not None:
        wanted.append(row.best.candidate)
    known = latest(state, region)
    wanted += [id for id, one in known.items() if one.verdict.kind == "measured"]
    return next((id for id in wanted if id != candidate and id in known), None)


def text_of(run: Path, digest: str) -> tuple[str, ...] | None:
    """Return the lines of a program by its digest; None when it is not kept."""
    text = source_text(RunDirectory(run), digest)
    return tuple(clean(text, len(text) + 1, lines=True).split("\n")) if text is not None else None
