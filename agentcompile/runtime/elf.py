"""What a shared object takes of memory when it is loaded, by its ELF program headers, without loading it."""

from __future__ import annotations

import os
import struct
from pathlib import Path

_LOAD = 1
_HEADER = struct.Struct("<16s2HI3QI6H")
"""The file's header: identification, type, machine, version, entry, two offsets, flags, sizes and counts."""
_SEGMENT = struct.Struct("<2I6Q")
"""A segment: type, flags, offset, two addresses, bytes in the file, bytes in memory, alignment."""


def loaded_bytes(path: Path) -> int:
    """Return the bytes of memory that a 64-bit little-endian ELF file takes, from its first segment to its last.

    It is 0 for any other file, and for a damaged one.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        head = file.read(_HEADER.size)
        if len(head) < _HEADER.size or not head.startswith(b"\x7fELF\x02\x01"):
            return 0
        _, _, _, _, _, at, _, _, _, size, count, *_ = _HEADER.unpack(head)
        if size != _SEGMENT.size or at + size * count > os.fstat(file.fileno()).st_size:
            return 0
        file.seek(at)
        loaded = [one for one in _SEGMENT.iter_unpack(file.read(size * count)) if one[0] == _LOAD]
    return max((one[3] + one[6] for one in loaded), default=0) - min((one[3] for one in loaded), default=0)
