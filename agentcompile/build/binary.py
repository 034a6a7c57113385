"""What a builder returns, and the key it is kept under."""

from __future__ import annotations

from dataclasses import dataclass

from agentcompile.ir.digest import digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Binary:
    """A loadable file. `path` is empty for `library`, which has nothing to load."""

    digest: str
    """Of the file's bytes; of the source for `library`."""
    path: str = ""


def binary_key(source_digest: str, toolchain: str, flags: tuple[str, ...]) -> str:
    """Where a binary is kept: what was compiled, by what, and how."""
    return digest("binary/1", source_digest, toolchain, list(flags))
