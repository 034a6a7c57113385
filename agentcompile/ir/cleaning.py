"""Makes untrusted text safe to show, and removes secrets.

Texts of events lose escape sequences, control and bidirectional characters; texts that leave the process contain no
key. Standard library only.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from typing import Any, cast

TEXT_LIMIT = 16_384
"""Most characters of one text in an event; longer ones end in an ellipsis."""
HIDDEN = "[redacted]"
_LEAST_KEY = 4
LINES = frozenset({"log", "detail", "text", "message", "hint"})
"""Fields that may hold several lines; everywhere else a line break becomes a space."""

# CSI, OSC and other string sequences are removed whole, so that their printable tail does not remain.
_SEQUENCES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_][^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)|\x1b[ -/]*[0-~]")
_CONTROL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\ud800-\udfff]"
)


def clean(text: str, limit: int = TEXT_LIMIT, *, lines: bool = False) -> str:
    """Make untrusted text safe to show: no escape sequences, control or bidirectional characters, at most `limit` long.

    Tabs become spaces; line breaks stay when `lines` is set and become spaces otherwise.
    """
    if text.isascii() and text.isprintable() and len(text) <= limit:
        return text
    text = text[: 4 * limit].replace("\r\n", "\n").replace("\r", "\n").replace("\t", "    ")
    text = _CONTROL.sub("", _SEQUENCES.sub("", text))
    if not lines:
        text = text.replace("\n", " ")
    return text if len(text) <= limit else text[: max(limit - 1, 0)] + "…"


def redacted(text: str, secrets: tuple[str, ...]) -> str:
    """Return `text` without any of `secrets`, as they are or as JSON and Python literals write them.

    Secrets of fewer than four characters are ignored.
    """
    for secret in secrets:
        if len(secret) >= _LEAST_KEY:
            for form in {secret, json.dumps(secret)[1:-1], repr(secret)[1:-1]}:
                text = text.replace(form, HIDDEN)
    return text


@functools.cache
def _fields(cls: Any) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(cls))


def _cleaned(value: object, lines: bool = False) -> object:
    """Return `value` with every text in it cleaned; the same object when nothing changed."""
    if isinstance(value, str):
        return clean(value, lines=lines)
    if isinstance(value, tuple):
        items = tuple(_cleaned(item, lines) for item in value)
        return value if all(a is b for a, b in zip(items, value, strict=True)) else items
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changed = _changes(value)
        return dataclasses.replace(cast(Any, value), **changed) if changed else value
    return value


def _changes(value: object) -> dict[str, object]:
    """Return the fields of a dataclass whose text had to be cleaned, with their new values."""
    changed: dict[str, object] = {}
    cls: Any = type(value)
    for name in _fields(cls):
        old = getattr(value, name)
        if (new := _cleaned(old, name in LINES)) is not old:
            changed[name] = new
    return changed


class Clean:
    """A base class of events that cleans every text in them, at any depth, when they are created."""

    __slots__ = ()

    def __post_init__(self) -> None:
        for name, value in _changes(self).items():
            object.__setattr__(self, name, value)


def harmless(line: bytes) -> bool:
    """Return whether a line of JSON certainly needs no cleaning: it is short, printable ASCII without an escape.

    This is a quick check of lines that were written clean.
    """
    return len(line) <= TEXT_LIMIT and line.isascii() and b"\\" not in line and b"\x7f" not in line
