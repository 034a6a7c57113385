"""Files that others name: read where they are plain and of a bounded size, without a wait; written whole or not at all.

A FIFO that nobody writes to would block its reader, and a device may never end. Only the standard library is used.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


class NotPlainError(OSError):
    """A path leads to something other than a plain file, or to one that is too large; `strerror` says which."""

    def __init__(self, reason: str) -> None:
        super().__init__(0, reason)


def read_plain(path: Path, most_bytes: int) -> bytes:
    """Return the bytes of a plain file; links are followed.

    Raises:
        NotPlainError: it is something else (a folder, a FIFO, a device, a socket), or has more than `most_bytes`.
        OSError: it cannot be opened or read.
        ValueError: the path has a NUL byte.
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


def destination(path: Path) -> Path:
    """Return where a file that is written to `path` lies: what a link leads to is replaced, and not the link.

    Raises:
        IsADirectoryError: that is a directory.
    """
    place = path.resolve() if path.is_symlink() else path
    if place.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    return place


def is_stream(path: Path) -> bool:
    """Return whether a path is a FIFO, a device or a socket: it is written to, and never replaced by a file."""
    return path.exists() and not path.is_file()


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that it is complete and on disk, or as it was; links are followed, pipes and devices written to.

    Raises:
        OSError: it cannot be written, or is a directory.
    """
    place = destination(path)
    if is_stream(place):
        place.write_bytes(data)
        return
    part = place.with_name(f".{place.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(place)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def special_in(folder: Path) -> str:
    """Return the name and kind of the first entry, links followed, that is neither a file nor a folder; else ""."""
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        try:
            mode = entry.stat().st_mode
        except OSError:
            continue  # a dangling link cannot block a reader
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
