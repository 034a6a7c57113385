"""Traps in a materialised text: before a mutated statement, at a kernel's entry, and behind its local arrays.

A kernel that passes with a trap before a statement never ran it. That does not prove that no input runs it, but it is
the part of a proof that a machine can repeat: where reaching the statement depends on the region's extents alone, no
input of this region will. Guards behind a kernel's local arrays are checked when the arrays go out of scope, for what
checked indices do not see: shared texts fill their arrays through pointers, whose bounds a compiler does not know.
"""

from __future__ import annotations

import re

from .phrases import Code, body_of, in_parentheses, increments, prologue_end, tokens

_TRAP, _CUDA_TRAP = "__builtin_trap()", "__trap()"
_ARRAY = re.compile(r"alignas\(64\) (?P<type>[\w<>]+(?: [\w<>]+)?) (?P<name>room|sums)\[(?P<count>[^\];]+)\];")
_WALLED = """template <class T, long N> struct walled {
    alignas(64) T own[N];
    volatile unsigned wall[16];
    walled() { for (int i = 0; i < 16; ++i) wall[i] = 0x5a5a5a5au; }
    ~walled() { for (int i = 0; i < 16; ++i) if (wall[i] != 0x5a5a5a5au) __builtin_trap(); }
    operator T*() { return own; }
};
"""


def behind_walls(text: str) -> str:
    """Return a materialised text with a guard behind its operands and sums: writing up to 64 bytes past them traps."""
    begin = prologue_end(text)
    body = _ARRAY.sub(r"walled<\g<type>, long(\g<count>)> \g<name>;", text[begin:])
    return f"{text[:begin]}{_WALLED}{body}"


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
    trap, start = _CUDA_TRAP if cuda else _TRAP, code.tokens[begin].start
    return text[:start] + (f"if (({trap}, true)) " if governed else f"{trap}; ") + text[start:]


def entered(text: str, *, cuda: bool = False) -> str:
    """Return the text with a trap at its first entry, which every launch reaches: the control for all other traps."""
    at = text.index("{", text.index(") {", text.index('extern "C"'))) + 1
    return f"{text[:at]} {_CUDA_TRAP if cuda else _TRAP}; {text[at:]}"


def _body(code: Code, index: int) -> tuple[int, bool] | None:
    """Return where the body of a `for` or `if` begins, and whether it is a single statement without braces.

    The token at `index` is the `for` or `if` itself, or lies in the third part of a `for`; None for any other token.
    """
    head = index if code.at(index) in ("for", "if") else None
    for first, last in increments(code):
        if first <= index <= last:
            head = code.partner[last + 1] - 1
    body = None if head is None else body_of(code, head)
    if body is None:
        return None
    return (body + 1, False) if code.at(body) == "{" else (body, True)


def _statement(code: Code, index: int) -> tuple[int, bool] | None:
    """Return the first token of the innermost statement around a token, and whether a header or `else` governs it.

    A header is that of an `if`, `for` or `while`.
    """
    at = index
    while at > 0:
        before = code.at(at - 1)
        heads = before == ")" and code.at(code.partner.get(at - 1, 0) - 1) in ("if", "for", "while", "constexpr")
        # A brace opens statements after a parameter list, a header, `else` or `do`, but not after a type or a `=`.
        block = before == "{" and (
            code.at(at - 2) in (")", "else", "do", "const", "{", ";", "}") or code.at(at - 3) == "->"
        )
        if before in (";", "}") or block:
            if not in_parentheses(code, at):
                return at, False
            at -= 1
        elif before == "else" or heads:
            return at, True
        elif before in (")", "]") and at - 1 in code.partner:
            at = code.partner[at - 1]
        else:
            at -= 1
    return None
