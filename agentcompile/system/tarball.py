"""A few files in one: a tar in xz with sorted names, no times and no owners; the same files give the same bytes.

`unpack` takes files from others: it does not touch the disk, makes nothing larger than `TarballLimits`, and refuses
what `pack` would not have written: links, devices, names that lead out of the folder, a name twice, bytes at the end.
Only the standard library is used.
"""

from __future__ import annotations

import io
import lzma
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

_BLOCK = 512
_SLACK_BYTES = 64 << 10  # the end of a tar
_UNXZ_MEMORY_BYTES = 80 << 20
MAGIC = b"\xfd7zXZ\x00"
"""The first bytes of an xz file."""


class TarballError(ValueError):
    """A tarball is invalid; the message says why, without the tarball's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TarballLimits:
    """The largest sizes and the most files that a tarball may have."""

    packed_bytes: int = 16 << 20
    unpacked_bytes: int = 256 << 20
    """The limit of all files together, and of each."""
    files: int = 16


def pack(files: Mapping[str, bytes]) -> bytes:
    """Return the tarball of `files`, whose contents are given by name."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name in sorted(files):
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(files[name]), 0o644
            tar.addfile(info, io.BytesIO(files[name]))
    return lzma.compress(made.getvalue())


def unpack(data: bytes, limits: TarballLimits) -> dict[str, bytes]:
    """Return the contents of a tarball's files by name.

    Raises:
        TarballError: it is damaged, exceeds `limits`, or holds what `pack` would not have written.
    """
    return _members(_unpacked(data, limits), limits)


def _unpacked(data: bytes, limits: TarballLimits) -> bytes:
    """Decompress the tar, to a bounded size whatever the tarball would unpack to.

    Raises:
        TarballError: the data is no whole xz stream, has bytes after its end, or unpacks to too much.
    """
    most = limits.unpacked_bytes + _SLACK_BYTES + _BLOCK * 2 * limits.files
    xz = lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=_UNXZ_MEMORY_BYTES)
    try:
        tar = xz.decompress(data, max_length=most + 1)
    except lzma.LZMAError as error:
        raise TarballError(f"damaged, or no such archive: {error}") from error
    if len(tar) > most:
        raise TarballError(f"unpacks to more than {limits.unpacked_bytes} bytes")
    if not xz.eof:
        raise TarballError("cut off")
    if xz.unused_data:
        raise TarballError(f"damaged: {len(xz.unused_data)} bytes after its end")
    return tar


def _members(tar: bytes, limits: TarballLimits) -> dict[str, bytes]:
    """Return the contents of a tar's files by name.

    Each header is checked before anything after it is read, because the standard library's reader follows links, long
    names and extensions, none of which `pack` writes.

    Raises:
        TarballError: a header is damaged or refused, a file is cut off, twice there or one too many, or bytes follow.
    """
    found: dict[str, bytes] = {}
    at = 0
    while any(tar[at : at + _BLOCK]):
        try:
            info = tarfile.TarInfo.frombuf(tar[at : at + _BLOCK], "utf-8", "strict")
        except (tarfile.HeaderError, ValueError) as error:
            raise TarballError(f"damaged: {error}") from error
        _check(info, limits)
        if info.name in found or len(found) == limits.files:
            raise TarballError(f"{info.name[:100]!r}: a file more than there may be")
        at += _BLOCK
        if at + info.size > len(tar):
            raise TarballError(f"{info.name}: cut off")
        found[info.name] = tar[at : at + info.size]
        at += -(-info.size // _BLOCK) * _BLOCK
    if any(tar[at:]):
        raise TarballError("damaged: something follows its last file")
    return found


def _check(info: tarfile.TarInfo, limits: TarballLimits) -> None:
    """Check that `pack` could have written a header.

    Raises:
        TarballError: the name leads out of the folder, it is not a plain file, or its size exceeds the limit.
    """
    name, path = info.name[:100], PurePosixPath(info.name)
    if path.is_absolute() or ".." in path.parts:
        raise TarballError(f"{name!r}: a name that leads out of the folder")
    if info.type not in (tarfile.REGTYPE, tarfile.AREGTYPE):
        raise TarballError(f"{name!r}: a link or something else that is no plain file")
    if not 0 <= info.size <= limits.unpacked_bytes:
        raise TarballError(f"{name!r}: declares {info.size} bytes, at most {limits.unpacked_bytes} are allowed")
