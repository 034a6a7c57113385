"""Precompiled headers: the system headers at the head of a text, parsed once for each toolchain and flags.

Parsing ``immintrin.h`` and the standard headers takes longer than compiling a kernel. A text must compile to the same
bytes with the precompiled header and without; only g++ is known to do that, so only g++ uses it.
"""

from __future__ import annotations

from pathlib import Path

from agentcompile.build.binary import binary_key
from agentcompile.build.cxx import run_header
from agentcompile.build.toolchain import Toolchain
from agentcompile.ir.digest import digest_bytes
from agentcompile.system.store import Store

WORTH = 3
"""Texts with the same head that a process compiles before it precompiles the head, which takes as long as these."""

_seen: dict[Path, int] = {}


def prelude_flags(
    text: str, toolchain: Toolchain, flags: tuple[str, ...], limit_s: float, store: Store
) -> tuple[str, ...]:
    """Return the flags that include the precompiled head of `text`; empty where it does not pay or cannot be made."""
    head = system_head(text)
    if not toolchain.name.startswith("g++") or not head:
        return ()
    key = binary_key(digest_bytes("prelude/1", head.encode()), toolchain.name, flags)
    header = store.path(key, ".h")
    if store.get(key, ".h.gch") is None:
        _seen[header] = _seen.get(header, 0) + 1
        if _seen[header] != WORTH + 1:
            return ()
        parsed = run_header(head, toolchain, flags, limit_s, store)
        if parsed is None:
            return ()
        store.write(key, head.encode(), ".h")
        store.write(key, parsed, ".h.gch")
    return ("-include", str(header.resolve())) if header.is_file() else ()


def system_head(text: str) -> str:
    """Return the ``#include <…>`` lines that only comments precede; "" when there are none."""
    lines = []
    for line in text.splitlines():
        if line.startswith("#include <"):
            lines.append(line)
        elif line.strip() and not line.startswith("//"):
            break
    return "".join(f"{line}\n" for line in lines)
