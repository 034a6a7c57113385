"""Cubins of several kernels in one file: a line of JSON, then the cubins one after another.

Some compilers make one cubin for each kernel and choose its shared memory themselves. A launch needs that number, so it
is kept with the code. A plain cubin is a valid file, too: it is one image, however many entries it has.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

ANY = ""
"""The entry name of a plain cubin, an image that may hold several kernels."""
_ELF = b"\x7fELF"


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """Machine code of one kernel, or a plain cubin."""

    entry: str
    """The kernel's name in the code, or `ANY`."""
    code: bytes
    shared_bytes: int = 0
    """Dynamic shared memory that the kernel needs in addition to what a launch asks for."""


def pack(images: Sequence[Image]) -> bytes:
    """Return the bytes of a file that holds `images`; equal images give equal bytes."""
    head = [[image.entry, image.shared_bytes, len(image.code)] for image in images]
    return json.dumps(head).encode() + b"\n" + b"".join(image.code for image in images)


def unpack(data: bytes) -> tuple[Image, ...]:
    """Return the images of a file that `pack` made, or the one image of a plain cubin.

    Raises:
        ValueError: `data` is neither.
    """
    if data.startswith(_ELF):
        return (Image(entry=ANY, code=data),)
    head, _, codes = data.partition(b"\n")
    images, begin = [], 0
    for entry, shared_bytes, size in json.loads(head):
        images.append(Image(entry=entry, code=codes[begin : begin + size], shared_bytes=shared_bytes))
        begin += size
    if begin != len(codes):
        raise ValueError(f"{len(codes)} bytes of code, the head says {begin}")
    return tuple(images)
