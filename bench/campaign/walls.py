"""Guards behind a kernel's local arrays, checked when the arrays go out of scope, for what checked indices do not see.

Shared texts fill their arrays through pointers, whose bounds a compiler does not know.
"""

from __future__ import annotations

import re

from .lexing import prologue_end

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
