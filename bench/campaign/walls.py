"""Arrays of a kernel's own with a wall behind them, which is looked at when they go: what checked indices do not see.

Shared texts fill their arrays through pointers, of whose bounds a compiler knows nothing.
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
    """A materialised text whose operands and sums stand before a wall: writing up to 64 bytes behind them traps."""
    begin = prologue_end(text)
    body = _ARRAY.sub(r"walled<\g<type>, long(\g<count>)> \g<name>;", text[begin:])
    return f"{text[:begin]}{_WALLED}{body}"
