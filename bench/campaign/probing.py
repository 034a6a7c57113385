"""Whether any acceptance input reaches a mutated statement: a trap is put before it, and the kernel validated again.

A kernel that passes with the trap never ran the statement. That does not prove that no input runs it, but it is the
part of a proof that a machine can repeat: where reaching the statement depends on the region's extents alone, no input
of this region will.
"""

from __future__ import annotations

from .lexing import tokens
from .phrases import Code, increments

_TRAP = "__builtin_trap(); "
_GOVERNED = "if ((__builtin_trap(), true)) "
_CUDA_TRAP, _CUDA_GOVERNED = "__trap(); ", "if ((__trap(), true)) "


def trapped(text: str, offset: int, *, cuda: bool = False) -> str:
    """Return the text with a trap before the statement around `offset`; empty where no statement is found.

    The result may not compile. The third part of a `for` header, and a whole `for` or `if`, matter only where the body
    runs, so the trap is put into the body.
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
    """Return the text with a trap at its first entry, which every launch reaches: the control for all other traps."""
    at = text.index("{", text.index(") {", text.index('extern "C"'))) + 1
    return text[:at] + " " + (_CUDA_TRAP if cuda else _TRAP) + text[at:]


def _body(code: Code, index: int) -> tuple[int, bool] | None:
    """Return where the body of a `for` or `if` begins, and whether it is a single statement without braces.

    The token at `index` is the `for` or `if` itself, or lies in the third part of a `for`; None for any other token.
    """
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
    """Return the first token of the innermost statement around a token, and whether a header or `else` governs it.

    A header is that of an `if`, `for` or `while`.
    """
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
    """Return whether a brace opens statements, as after a parameter list, a header, `else` or `do`.

    A brace after a type or a `=` does not.
    """
    before = code.at(brace - 1)
    return before in (")", "else", "do", "const", "{", ";", "}") or code.at(brace - 2) == "->"


def _heads(code: Code, closing: int) -> bool:
    opening = code.partner.get(closing)
    return opening is not None and code.at(opening - 1) in ("if", "for", "while", "constexpr")


def _in_parentheses(code: Code, index: int) -> bool:
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
