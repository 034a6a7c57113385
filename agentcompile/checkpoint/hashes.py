"""Digests of large files, remembered by path, size and time of change, because hashing gigabytes takes seconds."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from pathlib import Path

CHUNK_BYTES = 1 << 24


@contextmanager
def remembered(file: Path) -> Iterator[dict[str, str]]:
    """Yield the digests that `file` keeps, and write those that were added; an unreadable or full disk only forgets."""
    known: dict[str, str] = {}
    with contextlib.suppress(OSError, ValueError):
        loaded = json.loads(file.read_text(encoding="utf-8"))
        known = {str(k): str(v) for k, v in loaded.items()} if isinstance(loaded, dict) else {}
    before = dict(known)
    yield known
    if known != before:
        with contextlib.suppress(OSError):  # a cache: the next run hashes again
            file.parent.mkdir(parents=True, exist_ok=True)
            fresh = file.with_name(f"{file.name}.{os.getpid()}")
            fresh.write_text(json.dumps(known), encoding="utf-8")
            fresh.replace(file)


def sha256_of(file: Path, known: MutableMapping[str, str] | None = None) -> str:
    """Return the SHA-256 of a file's bytes, from `known` where it has not changed since.

    Raises:
        OSError: the file cannot be read.
    """
    stat = file.stat()
    key = f"{file.resolve()}|{stat.st_size}|{stat.st_mtime_ns}"
    found = known.get(key) if known is not None else None
    if found is None:
        found = _read(file)
        if known is not None:
            known[key] = found
    return found


def sha256_of_all(files: Sequence[Path], known: MutableMapping[str, str] | None = None) -> str:
    """Return the SHA-256 of one file; of several, that of their SHA-256 in hex, each on a line, in order.

    What `sha256sum FILES | cut -c-64 | sha256sum` says.

    Raises:
        OSError: a file cannot be read.
    """
    digests = [sha256_of(file, known) for file in files]
    if len(digests) == 1:
        return digests[0]
    return hashlib.sha256("".join(f"{one}\n" for one in digests).encode()).hexdigest()


def _read(path: Path) -> str:
    h = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(CHUNK_BYTES):
            h.update(block)
    return h.hexdigest()
