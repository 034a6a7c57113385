"""Locks that are corrupted as files: bytes, lines and values that no compiler wrote, with the hashes as they were."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Mapping

Spoil = Callable[[bytes, random.Random], bytes]

_ODD = (
    b"9" * 5000, b"0x" + b"f" * 4000, b"-9223372036854775809", b"1e999", b"nan", b"-inf", b"2026-01-01", b"true", b'""',
    b'"\\u0000"', b"[]", b"{}", b"[[[[[[[[1]]]]]]]]", b'"' + b"x" * 5000 + b'"', b'"\\ud800"', "“＂ﬀ́".encode(), b"'''",
    b'"/etc/passwd"', b"[" * 3000, b"{a=" * 500, b"07", b"1_0", b'"..."', b"a." * 3000 + b"a = 1",
)  # fmt: skip


def _flipped(data: bytes, draw: random.Random) -> bytes:
    spoiled = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 8))):
        spoiled[draw.randrange(len(spoiled))] ^= 1 << draw.randrange(8)
    return bytes(spoiled)


def _lines(data: bytes, draw: random.Random) -> bytes:
    lines = data.split(b"\n")
    at = draw.randrange(len(lines))
    count = draw.choice((1, 1, 3, 20))
    match draw.randrange(4):
        case 0:
            del lines[at : at + count]
        case 1:
            lines[at:at] = lines[at : at + count]
        case 2:
            other = draw.randrange(len(lines))
            lines[at], lines[other] = lines[other], lines[at]
        case _:
            lines = draw.sample(lines, len(lines)) if draw.random() < 0.1 else [*lines[at:], *lines[:at]]
    return b"\n".join(lines)


def _row(data: bytes, draw: random.Random, *, of_key: bool) -> bytes:
    """Replace one key or one value by an odd one, or by another of the file."""
    lines = data.split(b"\n")
    valued = [at for at, line in enumerate(lines) if b" = " in line]
    at = draw.choice(valued)
    row, other = (lines[at].split(b" = ", 1) for at in (at, draw.choice(valued)))
    if of_key:
        row[0] = other[0] if draw.random() < 0.5 else draw.choice(_ODD)[:40]
    else:
        row[1] = draw.choice(_ODD) if draw.random() < 0.6 else other[1]
    lines[at] = b" = ".join(row)
    return b"\n".join(lines)


def _cut(data: bytes, draw: random.Random) -> bytes:
    at, end = sorted((draw.randrange(len(data) + 1), draw.randrange(len(data) + 1)))
    return draw.choice((data[:at], data[at:], data[:at] + data[end:], data + data[at:end]))


def _inserted(data: bytes, draw: random.Random) -> bytes:
    at = draw.randrange(len(data) + 1)
    return data[:at] + draw.choice((*_ODD, b"\0", b"\xef\xbb\xbf", b"\xff", b"\r", b"\n#\n", b" ")) + data[at:]


def _digits(data: bytes, draw: random.Random) -> bytes:
    places = [at for at, byte in enumerate(data) if 48 <= byte <= 57]
    spoiled = bytearray(data)
    for at in draw.sample(places, draw.choice((1, 2, 5))):
        spoiled[at] = 48 + draw.randrange(10)
    return bytes(spoiled)


def _spaced(data: bytes, draw: random.Random) -> bytes:
    """Insert a comment or a blank line, or change the line ends, which does not change the lock's content."""
    lines = data.split(b"\n")
    at = draw.randrange(len(lines))
    match draw.randrange(3):
        case 0:
            lines.insert(at, b"# a comment")
        case 1:
            lines.insert(at, b"   ")
        case _:
            return data.replace(b"\n", b"\r\n")
    return b"\n".join(lines)


SPOILS: Mapping[str, Spoil] = {
    "bytes flipped": _flipped,
    "lines moved": _lines,
    "a value changed": functools.partial(_row, of_key=False),
    "a key changed": functools.partial(_row, of_key=True),
    "cut": _cut,
    "something inserted": _inserted,
    "digits changed": _digits,
    "spaced": _spaced,
}
