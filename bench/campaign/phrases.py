"""C++ and CUDA texts as tokens, and the parsing of them that mutators need; no grammar, no types.

In: the text of a `Source`. Out: the tokens that a compiler reads after the generated prologue, without comments,
directives and branches that the preprocessor drops; brackets, statements, arguments and operands among them; the file
that each place comes from. Invariant: a token's text is the source's text between its offsets.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
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
    found = (match for match in _TOKEN.finditer(body, begin) if match.lastgroup != "skipped")
    return tuple(Token(cast(TokenKind, one.lastgroup), one[0], one.start(), one.end()) for one in found)


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


_PAIRS = {"(": ")", "[": "]", "{": "}"}
_DECLARING = (
    "const", "constexpr", "auto", "alignas", "return", "using", "template", "struct", "static", "inline", "typedef",
    "extern", "case", "default", "goto", "break", "continue", "if", "for", "while", "do", "else", "enum", "class",
    "public", "private", "friend", "namespace", "static_assert", "__shared__", "__device__", "__global__", "typename",
    "void", "float", "int", "long", "unsigned", "bool", "char", "asm", "operator",
)  # fmt: skip
"""Words that begin a declaration or another construct that mutators must not remove."""


class Code:
    """A text with its tokens and, for every bracket, the matching one."""

    def __init__(self, text: str, tokens: Sequence[Token]) -> None:
        self.text = text
        self.tokens = tuple(tokens)
        self.partner = dict[int, int]()
        open = list[int]()
        for i, token in enumerate(self.tokens):
            if token.kind != "operator":
                continue
            if token.text in _PAIRS:
                open.append(i)
            elif token.text in _PAIRS.values() and open and _PAIRS[self.tokens[open[-1]].text] == token.text:
                begin = open.pop()
                self.partner[begin], self.partner[i] = i, begin

    def at(self, index: int) -> str:
        """Return the text of a token; empty for an index out of range."""
        return self.tokens[index].text if 0 <= index < len(self.tokens) else ""

    def spaced(self, index: int) -> bool:
        """Return whether there are blanks on both sides of a token.

        Every binary operator of the templates has them, and no bracket of a C++ template argument does.
        """
        token = self.tokens[index]
        return self.text[token.start - 1].isspace() and self.text[token.end : token.end + 1].isspace()

    def outside(self, index: int, end: int | None = None) -> Iterator[int]:
        """Yield the indices from `index` to before `end` (default: to the last), but for what is in brackets."""
        while index < (len(self.tokens) if end is None else end):
            yield index
            index = self.partner.get(index, index) + 1

    def clause_end(self, index: int) -> int:
        """Return the index of the first `;` or `,` from `index` on outside brackets, or of the enclosing bracket.

        The enclosing bracket is the closing one; the result is the number of tokens when none of these follows.
        """
        ends = (at for at in self.outside(index) if self.at(at) in (";", ",", ")", "]", "}"))
        return next(ends, len(self.tokens))

    def condition_before(self, index: int) -> int | None:
        """Return the offset where the condition before a question mark begins; None when it cannot be determined."""
        at = index - 1
        while at >= 0 and self.at(at) not in ("=", ",", ";", ":", "?", "return", "(", "[", "{", "}", ">"):
            at = self.partner.get(at, at) - 1 if self.at(at) in (")", "]", "}") else at - 1
        return self.tokens[at + 1].start if 0 <= at < index - 1 and self.at(at) != ">" else None


def statements(code: Code) -> Iterator[tuple[int, int]]:
    """Yield expression statements, as the indices of the first token and of the semicolon."""
    for i, token in enumerate(code.tokens):
        if _begins(code, i) and token.text not in _DECLARING and token.kind != "number":
            end = _semicolon(code, i)
            if end is not None and end > i and not _declares(code, i):
                yield i, end


def _begins(code: Code, index: int) -> bool:
    """Return whether a statement begins here: after one, after a brace, or as the body of `if`, `for` or `else`."""
    before = code.at(index - 1)
    if before in (";", "{", "}", "else"):
        return code.at(index) not in ("}", ";", "{", ")", "]") and not in_parentheses(code, index)
    if before == ")" and index - 1 in code.partner:
        head = code.partner[index - 1] - 1
        return code.at(head) in ("if", "for", "while", "constexpr") and code.at(index) not in ("{", ";")
    return False


def in_parentheses(code: Code, index: int) -> bool:
    """Return whether the nearest enclosing bracket is no brace: semicolons in a `for` header end no statement."""
    at = index - 1
    while at >= 0:
        if code.at(at) in (")", "]", "}") and at in code.partner:
            at = code.partner[at] - 1
        elif code.at(at) in ("(", "[", "{"):
            return code.at(at) != "{"
        else:
            at -= 1
    return False


def _semicolon(code: Code, index: int) -> int | None:
    """Return the semicolon that ends what begins at `index`; None when a closing bracket comes first."""
    end = next((at for at in code.outside(index) if code.at(at) in (";", ")", "]", "}")), -1)
    return end if code.at(end) == ";" else None


def _declares(code: Code, index: int) -> bool:
    """Return whether a declaration begins here: `T name`, `T* name` or `T<…> name`.

    Removing a declaration leaves a program that does not compile.
    """
    first, second = code.tokens[index], code.tokens[index + 1]
    if first.kind != "name":
        return False
    if second.kind == "name":
        return True
    glued = second.start == first.end
    if second.text in ("*", "&") and glued:
        return True
    if second.text == "<" and glued:
        at = index + 2
        while at < len(code.tokens) and code.at(at) not in (">", ";", ">>"):
            at += 1
        return at + 1 < len(code.tokens) and code.tokens[at + 1].kind == "name"
    return second.text == "::" and code.tokens[min(index + 3, len(code.tokens) - 1)].kind == "name"


def body_of(code: Code, index: int) -> int | None:
    """Return the first token of the body of the `if` or `for` at `index`; None when it has no header."""
    opening = index + 2 if code.at(index + 1) == "constexpr" else index + 1
    return code.partner[opening] + 1 if code.at(opening) == "(" and opening in code.partner else None


def statement_ends(code: Code, index: int) -> int:
    """Return the last token of the `if` or `for` at `index`, without an `else`; `index` itself when it has no body."""
    body = body_of(code, index)
    if body is None:
        return index
    if code.at(body) == "{":
        return code.partner.get(body, index)
    if code.at(body) in ("if", "for"):
        return statement_ends(code, body)
    end = _semicolon(code, body)
    return index if end is None else end


def increments(code: Code) -> Iterator[tuple[int, int]]:
    """Yield the third part of every `for` header, as the indices of its first and last token."""
    for i, token in enumerate(code.tokens):
        if token.text == "for" and code.at(i + 1) == "(" and i + 1 in code.partner:
            end = code.partner[i + 1]
            semicolons = [at for at in code.outside(i + 2, end) if code.at(at) == ";"]
            if len(semicolons) == 2 and semicolons[1] + 1 < end:
                yield semicolons[1] + 1, end - 1


def arguments(code: Code) -> Iterator[list[tuple[int, int]]]:
    """Yield the arguments of every call with two or more, each as a span of the text."""
    for i, token in enumerate(code.tokens):
        if token.text != "(" or i not in code.partner or i == 0:
            continue
        before = code.tokens[i - 1]
        if not (before.kind == "name" or before.text == ">") or before.text in _DECLARING or _defines(code, i):
            continue
        end = code.partner[i]
        commas = [i, *(at for at in code.outside(i + 1, end) if code.at(at) == ","), end]
        spans = [(code.tokens[a + 1].start, code.tokens[b - 1].end) for a, b in pairwise(commas) if b > a + 1]
        if len(spans) > 1:
            yield spans


def _defines(code: Code, opening: int) -> bool:
    """Return whether the parentheses hold the parameters of a function that is defined here."""
    after = code.at(code.partner[opening] + 1)
    first, second = code.tokens[opening + 1], code.at(opening + 2)
    typed = first.kind == "name" and (second in ("*", "&") or code.tokens[opening + 2].kind == "name")
    return (after in ("{", "const", ":") and typed) or first.text in ("const", "vf", "float", "long", "int")


def declared(code: Code, opening: int) -> bool:
    """Return whether `[` gives the size of an array that is declared here, as in `float sums[TILE]`.

    Further dimensions of the array count too.
    """
    at = opening - 1
    while code.at(at) == "]" and at in code.partner:
        at = code.partner[at] - 1
    if code.at(at) == ")":  # a reference to an array: float (&sum)[GROUP][D]
        return True
    kind, text = (code.tokens[at - 1].kind, code.at(at - 1)) if at else ("", "")
    return text == ">" or (kind == "name" and text not in ("return", "else", "case"))


def operand_after(code: Code, index: int) -> int:
    """Return the last token of the right operand of a binary operator; `index` when it cannot be determined."""
    at = index + 1
    while code.at(at) in ("-", "!", "*", "&", "~"):
        at += 1
    if code.at(at) == "(" and at in code.partner:
        end = code.partner[at]
        after = code.tokens[end + 1] if end + 1 < len(code.tokens) else None
        cast = after is not None and (after.kind in ("name", "number") or after.text == "(")
        return index if cast else end
    if at >= len(code.tokens) or code.tokens[at].kind not in ("name", "number"):
        return index
    end = at
    while True:
        follows = code.at(end + 1)
        if follows in ("(", "[") and end + 1 in code.partner:
            end = code.partner[end + 1]
        elif follows in (".", "->", "::"):
            end += 2
        elif follows == "<" and not code.spaced(end + 1):
            return index
        else:
            return end
