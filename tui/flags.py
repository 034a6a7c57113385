"""Settings as they are handed on to the compiler, by name and as arguments of its command line."""

from __future__ import annotations

from collections.abc import Mapping

Flags = Mapping[str, str | list[str]]
"""Settings that were given, by name; a list for one that may be repeated."""


def as_arguments(flags: Flags) -> list[str]:
    """Return ``--name=value`` for each setting, so that a value that begins with a dash stays a value."""
    pairs = [(name, one) for name, value in flags.items() for one in (value if isinstance(value, list) else [value])]
    return [f"--{name.replace('_', '-')}={value}" for name, value in pairs]
