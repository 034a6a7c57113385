"""A few files as one: a tar in xz with sorted names, no times and no owners; the same files give the same bytes.

Standard library only. `unpack` takes files from others: nothing touches the disk, nothing is larger than `Limits`, and
whatever `pack` would not have written is refused: links, devices, names that lead out, a name twice, bytes at the end.
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
"""What a file of xz begins with."""


class TarballError(ValueError):
    """What is wrong with a tarball, without its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a tarball may take at most."""

    packed_bytes: int = 16 << 20
    unpacked_bytes: int = 256 << 20
    """Of all files together, and of each."""
    files: int = 16


def pack(files: Mapping[str, bytes]) -> bytes:
    """The tarball of `files` by name."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name in sorted(files):
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(files[name]), 0o644
            tar.addfile(info, io.BytesIO(files[name]))
    return lzma.compress(made.getvalue())


def unpack(data: bytes, limits: Limits) -> dict[str, bytes]:
    """The files of a tarball by name; raises `TarballError`."""
    return _members(_unpacked(data, limits), limits)


def _unpacked(data: bytes, limits: Limits) -> bytes:
    """The tar inside, of a bounded size whatever the tarball would unpack to."""
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


def _members(tar: bytes, limits: Limits) -> dict[str, bytes]:
    """The files of a tar by name. Each header is looked at before anything after it: the standard library's reader
    follows links, long names and extensions, none of which `pack` writes."""
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


def _check(info: tarfile.TarInfo, limits: Limits) -> None:
    """Refuse a header that `pack` does not write."""
    name, path = info.name[:100], PurePosixPath(info.name)
    if path.is_absolute() or ".." in path.parts:
        raise TarballError(f"{name!r}: a name that leads out of the folder")
    if info.type not in (tarfile.REGTYPE, tarfile.AREGTYPE):
        raise TarballError(f"{name!r}: a link or something else that is no plain file")
    if not 0 <= info.size <= limits.unpacked_bytes:
        raise TarballError(f"{name!r}: declares {info.size} bytes, at most {limits.unpacked_bytes} are allowed")
