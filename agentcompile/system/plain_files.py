"""Reads files that others name: plain files of a bounded size alone, without ever waiting for one.

Standard library only. A FIFO that nobody writes to would block whoever opens it, a device may never end.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path


class NotPlainError(OSError):
    """What is there is no plain file, or a larger one than is read; `strerror` says which."""

    def __init__(self, reason: str) -> None:
        super().__init__(0, reason)


def read_plain(path: Path, most_bytes: int) -> bytes:
    """The bytes of a plain file, which links may lead to.

    Raises `NotPlainError` for anything else (a folder, a FIFO, a device, a socket) and for a file of more than
    `most_bytes`; OSError and ValueError (a NUL in the name) as `open` does.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise NotPlainError(f"not a file but a {_kind(found.st_mode)}")
        data = bytearray()
        while found.st_size <= most_bytes and len(data) <= most_bytes:  # a file of /proc has a size of 0
            if not (block := os.read(descriptor, 1 << 20)):
                return bytes(data)
            data += block
        raise NotPlainError(f"{max(found.st_size, len(data))} bytes, and at most {most_bytes} are read")
    finally:
        os.close(descriptor)


def special_in(folder: Path) -> str:
    """The name and kind of the first thing in a folder, links followed, that is neither a file nor a folder; or ""."""
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        try:
            mode = entry.stat().st_mode
        except OSError:
            continue  # a link that leads nowhere blocks nobody
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            return f"{entry.name} is a {_kind(mode)}"
    return ""


def _kind(mode: int) -> str:
    kinds = {
        stat.S_IFDIR: "folder",
        stat.S_IFIFO: "FIFO",
        stat.S_IFCHR: "device",
        stat.S_IFBLK: "device",
        stat.S_IFSOCK: "socket",
    }
    return kinds.get(stat.S_IFMT(mode), "special file")
