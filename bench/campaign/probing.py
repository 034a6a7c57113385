"""Whether any acceptance input reaches a mutated statement: a trap is put before it, and the kernel judged again.

A kernel that passes with the trap never ran the statement. That is no proof that no input does, but it is the part of
one that a machine can repeat: where reaching it depends on the region's extents alone, no input of this region will.
"""

from __future__ import annotations

from .lexing import tokens
from .phrases import Code, increments

_TRAP = "__builtin_trap(); "
_GOVERNED = "if ((__builtin_trap(), true)) "
_CUDA_TRAP, _CUDA_GOVERNED = "__trap(); ", "if ((__trap(), true)) "


def trapped(text: str, offset: int, *, cuda: bool = False) -> str:
    """The text with a trap before the statement around `offset`; "" where no statement is found. It may not compile.

    What stands in the third part of a `for`, or a whole `for` or `if`, matters only where the body runs: there the trap
    is put.
    """
    code = Code(text, tokens(text))
    at = next((i for i, token in enumerate(code.tokens) if token.end > offset), None)
    if at is None:
        return ""
    found = _body(code, at) or _statement(code, at)
    if found is None:
        return ""
    begin, governed = found
    plain, under = (_CUDA_TRAP, _CUDA_GOVERNED) if cuda else (_TRAP, _GOVERNED)
    start = code.tokens[begin].start
    return text[:start] + (under if governed else plain) + text[start:]


def entered(text: str, *, cuda: bool = False) -> str:
    """The text with a trap where its first entry begins, which every launch springs: the control of all others."""
    at = text.index("{", text.index(") {", text.index('extern "C"'))) + 1
    return text[:at] + " " + (_CUDA_TRAP if cuda else _TRAP) + text[at:]


def _body(code: Code, index: int) -> tuple[int, bool] | None:
    """The beginning of the body of the `for` or `if` that begins here, or whose third part a token lies in."""
    head = index if code.at(index) in ("for", "if") else None
    for first, last in increments(code):
        if first <= index <= last:
            head = code.partner[last + 1] - 1
    if head is None:
        return None
    opening = head + 2 if code.at(head + 1) == "constexpr" else head + 1
    if opening not in code.partner:
        return None
    body = code.partner[opening] + 1
    return (body + 1, False) if code.at(body) == "{" else (body, True)


def _statement(code: Code, index: int) -> tuple[int, bool] | None:
    """The first token of the innermost statement around a token, and whether an `if`, `for` or `else` governs it."""
    at = index
    while at > 0:
        before = code.at(at - 1)
        if before in (";", "}") or (before == "{" and _is_block(code, at - 1)):
            if not _in_parentheses(code, at):
                return at, False
            at -= 1
        elif before == "else" or (before == ")" and _heads(code, at - 1)):
            return at, True
        elif before in (")", "]") and at - 1 in code.partner:
            at = code.partner[at - 1]
        else:
            at -= 1
    return None


def _is_block(code: Code, brace: int) -> bool:
    """Whether a brace opens statements: after a parameter list, a header, `else` or `do`, not after a type or a `=`."""
    before = code.at(brace - 1)
    return before in (")", "else", "do", "const", "{", ";", "}") or code.at(brace - 2) == "->"


def _heads(code: Code, closing: int) -> bool:
    opening = code.partner.get(closing)
    return opening is not None and code.at(opening - 1) in ("if", "for", "while", "constexpr")


def _in_parentheses(code: Code, index: int) -> bool:
    """Whether a `for` header is the nearest bracket around: its semicolons end no statement."""
    at = index - 1
    while at >= 0:
        if code.at(at) in (")", "]", "}") and at in code.partner:
            at = code.partner[at] - 1
        elif code.at(at) in ("(", "[", "{"):
            return code.at(at) != "{"
        else:
            at -= 1
    return False
