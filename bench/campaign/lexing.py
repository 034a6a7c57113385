"""C++ and CUDA texts as tokens: what a compiler reads of a materialised source, and the file each place comes from.

In: the text of a `Source`. Out: the tokens after the generated prologue, without comments, directives and branches that
the preprocessor drops. Invariant: a token's text is the source's text between its offsets.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, NamedTuple, cast

from agentcompile.ir.evaluate import evaluate
from agentcompile.ir.expr import parse

TokenKind = Literal["name", "number", "operator", "text"]

_TOKEN = re.compile(
    r"""(?P<skipped>//[^\n]*|/\*.*?\*/|[ \t\r\n]+|\\\n)
    |(?P<text>R"\((?s:.*?)\)"|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')
    |(?P<number>(?:0[xX][0-9a-fA-F]+|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)[uUlLfF]*)
    |(?P<name>[A-Za-z_]\w*)
    |(?P<operator><<=|>>=|\.\.\.|->|\+\+|--|&&|\|\||==|!=|<=|>=|\+=|-=|\*=|/=|%=|&=|\|=|\^=|<<|>>|::|.)""",
    re.VERBOSE | re.DOTALL,
)
_DIRECTIVE = re.compile(r"[ \t]*#[ \t]*(\w+)[ \t]*(.*)")
_LINE = re.compile(r'^#line (\d+) "([^"\n]*)"$', re.MULTILINE)


class Token(NamedTuple):
    """One token, whose text is at [start, end)."""

    kind: TokenKind
    text: str
    start: int
    end: int


def tokens(text: str) -> tuple[Token, ...]:
    """Return the tokens that a compiler reads after the prologue, which ends at the first `#line`."""
    body, begin = _without_dropped(text), prologue_end(text)
    found = ((cast(TokenKind, match.lastgroup), match) for match in _TOKEN.finditer(body, begin))
    return tuple(Token(kind, match[0], *match.span()) for kind, match in found if match.lastgroup != "skipped")


def prologue_end(text: str) -> int:
    """Return the offset where the template's own text begins; the length of the text when there is none."""
    first = _LINE.search(text)
    return first.start() if first else len(text)


def place(text: str, offset: int) -> tuple[str, int]:
    """Return the template's or shared file, and the line in it, that `offset` of a materialised text comes from.

    The file is empty for an offset in the prologue.
    """
    directives = list(_LINE.finditer(text, 0, offset))
    if not directives:
        return "", text.count("\n", 0, offset) + 1
    last = directives[-1]
    return last[2], int(last[1]) + text.count("\n", last.end(), offset) - 1


def line_at(text: str, offset: int) -> str:
    """Return the line at an offset, without its indentation."""
    begin = text.rfind("\n", 0, offset) + 1
    end = text.find("\n", offset)
    return text[begin : end if end >= 0 else len(text)].strip()


def _without_dropped(text: str) -> str:
    """Blank out directives and lines in branches not taken; offsets stay as they are."""
    defined: dict[str, int] = {}
    lines, taken = [], [_Branch(here=True, done=True)]
    for line in text.splitlines(keepends=True):
        directive = _DIRECTIVE.match(line)
        if directive is not None:
            _direct(directive[1], directive[2].split("//")[0].strip(), taken, defined)
        keep = directive is None and all(branch.here for branch in taken)
        lines.append(line if keep else re.sub(r"[^\n]", " ", line))
    return "".join(lines)


class _Branch(NamedTuple):
    """One `#if`: whether the current branch is taken (`here`), and whether any branch has been (`done`)."""

    here: bool
    done: bool


def _direct(name: str, rest: str, taken: list[_Branch], defined: dict[str, int]) -> None:
    live = all(branch.here for branch in taken)
    match name:
        case "if" | "ifdef" | "ifndef":
            asked = rest if name == "if" else f"{'!' if name == 'ifndef' else ''}defined({rest})"
            holds = live and _holds(asked, defined)
            taken.append(_Branch(here=holds, done=holds or not live))
        case "elif" | "else":
            here = not taken[-1].done and (name == "else" or _holds(rest, defined))
            taken[-1] = _Branch(here=here, done=taken[-1].done or here)
        case "endif":
            taken.pop()
        case "define" if live:
            words = rest.split()
            if len(words) == 2 and words[1].isdigit():
                defined[words[0]] = int(words[1])


_ARCHITECTURE = {"__CUDA_ARCH__": 900}
"""The macros of the device compiler that shared texts test."""


def _holds(condition: str, defined: Mapping[str, int]) -> bool:
    """Evaluate an `#if` condition; an undefined name counts as 0, as in the preprocessor."""
    known = {**_ARCHITECTURE, **defined}
    text = re.sub(r"defined\s*\(\s*(\w+)\s*\)", lambda found: str(int(found[1] in known)), condition)
    text = text.replace("&&", " and ").replace("||", " or ")
    text = re.sub(r"!(?!=)", " not ", text)
    names = {name: known.get(name, 0) for name in re.findall(r"\b[A-Za-z_]\w*\b", text)}
    return bool(evaluate(parse(text), names))
