"""The frames exchanged with a worker: a magic number, lengths, a checksum, then JSON and raw bytes, never a pickle.

Layout, little endian: ``b"acf1"``, u32 bytes of JSON, u32 bytes of payload, u32 CRC-32 of both, JSON, payload. The
payload is raw bytes that the JSON describes (samples as int64).
"""

from __future__ import annotations

import json
import os
import struct
import zlib

from agentcompile.ir.digest import Json, canonical

MAGIC = b"acf1"
HEADER = struct.Struct("<4sIII")
LIMIT_BYTES = 64 << 20
"""The largest frame: a header with a greater length is corrupt."""


class FrameError(Exception):
    """The stream is not a sequence of frames: its writer is broken and must not be trusted again."""


def pack(message: Json, payload: bytes = b"") -> bytes:
    """Return one frame.

    Raises:
        ValueError: JSON and payload together are larger than `LIMIT_BYTES`.
    """
    text = canonical(message)
    if len(text) + len(payload) > LIMIT_BYTES:
        raise ValueError(f"a frame of {len(text) + len(payload)} bytes is above the limit of {LIMIT_BYTES}")
    check = zlib.crc32(payload, zlib.crc32(text))
    return HEADER.pack(MAGIC, len(text), len(payload), check) + text + payload


class Splitter:
    """A cutter of a byte stream into frames, whatever the sizes of the pieces that arrive."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[tuple[Json, bytes]]:
        """Add bytes and return the frames that they complete.

        Raises:
            FrameError: the bytes cannot belong to a frame.
        """
        self._buffer += data
        frames: list[tuple[Json, bytes]] = []
        while (frame := self._next()) is not None:
            frames.append(frame)
        return frames

    def _next(self) -> tuple[Json, bytes] | None:
        if len(self._buffer) < HEADER.size:
            if not MAGIC.startswith(bytes(self._buffer[:4])):
                raise FrameError(f"a frame starts with {bytes(self._buffer[:4])!r}")
            return None
        magic, text_bytes, payload_bytes, check = HEADER.unpack_from(self._buffer)
        if magic != MAGIC or text_bytes + payload_bytes > LIMIT_BYTES:
            raise FrameError(f"a frame starts with {bytes(self._buffer[: HEADER.size])!r}")
        end = HEADER.size + text_bytes + payload_bytes
        if len(self._buffer) < end:
            return None
        body = bytes(self._buffer[HEADER.size : end])
        if zlib.crc32(body) != check:
            raise FrameError("a frame's checksum is wrong")
        del self._buffer[:end]
        try:
            return json.loads(body[:text_bytes]), body[text_bytes:]
        except ValueError as error:
            raise FrameError(f"a frame holds no JSON: {error}") from error


def write_all(fd: int, data: bytes) -> None:
    """Write every byte to a blocking descriptor.

    Raises:
        BrokenPipeError: the reader is gone.
    """
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
