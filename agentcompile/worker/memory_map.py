"""The process's address space around launches: what is mapped, by how much it grows, and which code is in it."""

from __future__ import annotations

import ctypes
import functools
import mmap
import re
import zlib
from dataclasses import dataclass
from pathlib import Path

_LINE = re.compile(r"^(\S+) (\S+) \S+ \S+ \S+ *(.*)$", re.MULTILINE)
"""A mapping's address range, rights and path in /proc/self/maps."""
_MORE_MAPPINGS = 8
"""Mappings that a launch may add: the interpreter and PyTorch's allocator map memory at times, a kernel need not."""
_MORE_BYTES = 128 << 20
"""Bytes that all launches may add or take: an arena of the C library has 64 MiB."""
_OFTEN, _LEAST = 0.25, 16
"""The share of launches, of at least so many, around which the address space may change its size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mappings:
    """The process's address space: how many mappings, those of files, and the executable ones that anyone may write."""

    count: int
    code: frozenset[str]
    files: frozenset[str] = frozenset()
    clock: int = 0
    """A checksum of the vDSO, which is the code that tells the time."""


def mappings() -> Mappings:
    """Return the address space now; empty where the system does not show it."""
    try:
        count, code, files, clock = _mapped(Path("/proc/self/maps").read_bytes())
    except OSError:
        return Mappings(count=0, code=frozenset())
    return Mappings(count=count, code=code, files=files, clock=zlib.crc32(ctypes.string_at(*clock)) if clock else 0)


@functools.lru_cache(maxsize=1)  # most of the time nothing was mapped since the last look
def _mapped(maps: bytes) -> tuple[int, frozenset[str], frozenset[str], tuple[int, int] | None]:
    """Return of /proc/self/maps the number of mappings, code and files as in `Mappings`, and the vDSO's place."""
    text, code, files, clock = maps.decode(errors="replace"), set[str](), set[str](), None
    for place, rights, path in _LINE.findall(text):
        named = path.startswith("/") and not path.startswith(("/memfd:", "/dev/"))
        if named:
            files.add(f"{place} {rights} {path}")
        if "x" not in rights:
            continue
        if "w" in rights or not (named or path in ("[vdso]", "[vsyscall]")):
            code.add(f"{place} {rights}")
        elif path == "[vdso]":
            begin, end = (int(word, 16) for word in place.split("-"))
            clock = begin, end - begin
    return text.count("\n"), frozenset(code), frozenset(files), clock


def differences(before: Mappings, after: Mappings, when: str, more: int = _MORE_MAPPINGS) -> list[str]:
    """Return, in words, what `when` did to the address space; it may add `more` mappings."""
    found = []
    if after.code - before.code:
        found.append(f"executable memory mapped {when}")
    if after.clock != before.clock:
        found.append(f"the clock rewritten {when}")
    if gone := before.files - after.files:
        found.append(f"{len(gone)} mappings of files gone or with other rights {when}")
    if after.count > before.count + more:
        found.append(f"{after.count - before.count} mappings more {when}")
    return found


class Growth:
    """The size of the address space around many launches; a look costs a few microseconds.

    Mappings beside one another become one, so memory that is mapped page by page shows in the size alone.
    """

    def __init__(self) -> None:
        self._looks = self._changed = self._bytes = 0

    def add(self, before: int) -> None:
        """Count a look, around which `mapped_bytes` was `before` and is what it is now."""
        more = mapped_bytes() - before
        self._looks += 1
        self._changed += more != 0
        self._bytes += more

    def found(self) -> list[str]:
        """Return, in words, what launches did to the size of the address space."""
        found = []
        if self._looks >= _LEAST and self._changed > _OFTEN * self._looks:
            found.append(f"mapped memory grew or shrank in {self._changed} of {self._looks} looks at launches")
        if abs(self._bytes) > _MORE_BYTES:
            sign = "more" if self._bytes > 0 else "less"
            found.append(f"{abs(self._bytes) / 1e6:.0f} MB {sign} mapped by launches")
        return found


def mapped_bytes() -> int:
    """Return the size of the address space; 0 where the system does not show it."""
    try:
        with open("/proc/self/statm", "rb", buffering=0) as file:  # noqa: PTH123 - many thousand times
            return int(file.read(64).split()[0]) * mmap.PAGESIZE
    except OSError:
        return 0
