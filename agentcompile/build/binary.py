"""The result of a builder, and the key under which it is stored."""

from __future__ import annotations

from dataclasses import dataclass

from agentcompile.ir.digest import digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Binary:
    """A loadable file; `path` is empty for the language `library`, which has nothing to load."""

    digest: str
    """Digest of the file's bytes; of the source for `library`."""
    path: str = ""


def binary_key(source_digest: str, toolchain: str, flags: tuple[str, ...]) -> str:
    """Return the store key of a binary, from the source, the toolchain and the flags."""
    return digest("binary/1", source_digest, toolchain, list(flags))
