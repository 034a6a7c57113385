"""Content digests: one canonical JSON form, one hash, and a domain that names what was hashed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]
SHORT = 12
"""Characters of a digest that are shown to people."""


def canonical(value: Json) -> bytes:
    """Encode `value` as JSON with sorted keys, no spaces and no NaN; equal values give equal bytes."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode()


def digest(domain: str, *parts: Json) -> str:
    """Hash `parts` under `domain` (``"candidate/1"``: a noun and its version) to 64 hex digits."""
    h = hashlib.sha256(domain.encode() + b"\0")
    h.update(canonical(list(parts)))
    return h.hexdigest()


def digest_bytes(domain: str, data: bytes) -> str:
    """Hash raw bytes under `domain` to 64 hex digits."""
    return hashlib.sha256(domain.encode() + b"\0" + data).hexdigest()


def digest_files(domain: str, files: Iterable[Path]) -> str:
    """Hash the contents of `files`, in their order and without their names, under `domain`.

    Raises:
        OSError: a file cannot be read.
    """
    return digest(domain, [digest_bytes("file/1", file.read_bytes()) for file in files])
