"""Cubins of several kernels as one file: a line of JSON, then the cubins one after another.

Some compilers make a cubin a kernel and decide by themselves how much shared memory it takes. What launches it must
know, so the number travels with the code. A plain cubin is such a file too: of one image, whatever its entries.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

ANY = ""
"""The entry of an image that may hold several: a plain cubin."""
_ELF = b"\x7fELF"


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """Machine code of one kernel."""

    entry: str
    """Its name in the code, or `ANY`."""
    code: bytes
    shared_bytes: int = 0
    """Dynamic shared memory that it must be started with, beside what a launch asks for."""


def pack(images: Sequence[Image]) -> bytes:
    """The file of these images; equal images give equal bytes."""
    head = [[image.entry, image.shared_bytes, len(image.code)] for image in images]
    return json.dumps(head).encode() + b"\n" + b"".join(image.code for image in images)


def unpack(data: bytes) -> tuple[Image, ...]:
    """The images of a file that `pack` made, or the one of a plain cubin. Raises ValueError for anything else."""
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
