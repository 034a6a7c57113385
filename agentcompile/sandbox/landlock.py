"""Landlock: a process gives up every access to files but the named ones, and to networks, for itself and its children.

In: the paths of a fence. It holds for the calling thread and for what that starts: threads that run already go on
unrestricted, so it is applied before others start.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
from enum import IntFlag
from pathlib import Path

from agentcompile.sandbox import syscalls as sys_
from agentcompile.sandbox.fence import Fence

_VERSION = 1
_UNDER_A_PATH = 1
_NO_NEW_PRIVILEGES = 38


class Access(IntFlag):
    """Rights over files and folders, as the kernel numbers them."""

    EXECUTE = 1 << 0
    WRITE_FILE = 1 << 1
    READ_FILE = 1 << 2
    READ_DIR = 1 << 3
    REMOVE_DIR = 1 << 4
    REMOVE_FILE = 1 << 5
    MAKE_CHAR = 1 << 6
    MAKE_DIR = 1 << 7
    MAKE_REG = 1 << 8
    MAKE_SOCK = 1 << 9
    MAKE_FIFO = 1 << 10
    MAKE_BLOCK = 1 << 11
    MAKE_SYM = 1 << 12
    REFER = 1 << 13
    TRUNCATE = 1 << 14
    IOCTL_DEV = 1 << 15


_OF_FILES = Access.EXECUTE | Access.WRITE_FILE | Access.READ_FILE | Access.TRUNCATE | Access.IOCTL_DEV
"""Rights that mean something for a path that is no folder; the kernel refuses the others there."""
READ = Access.READ_FILE | Access.READ_DIR
RUN = Access.EXECUTE | READ
WRITE = (
    READ
    | Access.WRITE_FILE
    | Access.TRUNCATE
    | Access.MAKE_REG
    | Access.MAKE_DIR
    | Access.REMOVE_FILE
    | Access.REMOVE_DIR
    | Access.REFER
)
"""Files and folders, but no links, sockets, pipes or devices, which would lead whoever reads them elsewhere."""
USE = Access.READ_FILE | Access.WRITE_FILE | Access.IOCTL_DEV

_NETWORK = 0b11
"""TCP's bind and connect."""
_SCOPES = 0b11
"""Abstract Unix sockets, and signals."""


def version() -> int:
    """Return the version of the kernel's Landlock.

    Raises:
        OSError: the kernel has none, or it is switched off.
    """
    if sys_.machine() is None:
        raise OSError(errno.ENOSYS, "not Linux on x86-64 or aarch64")
    return sys_.call(sys_.LANDLOCK_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION))


def available() -> str:
    """Return why Landlock cannot be used here; empty when it can."""
    try:
        version()
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            return "the kernel has Landlock, and it is switched off (add landlock to the boot option lsm=)"
        return f"the kernel has no Landlock, which Linux 5.13 or later has ({error.strerror})"
    return ""


def handled(abi: int) -> Access:
    """Return the rights that version `abi` watches over."""
    known = Access.MAKE_SYM * 2 - 1
    for least, right in ((2, Access.REFER), (3, Access.TRUNCATE), (5, Access.IOCTL_DEV)):
        if abi >= least:
            known |= right
    return Access(known)


def restrict(fence: Fence) -> None:
    """Allow this thread, and all that it starts, the paths of `fence` alone; a path that is missing is skipped.

    Raises:
        OSError: the kernel refuses a rule.
    """
    abi = version()
    attributes = struct.pack("=Q", handled(abi))
    if abi >= 4:
        attributes += struct.pack("=Q", _NETWORK)
    if abi >= 6:
        attributes += struct.pack("=Q", _SCOPES)
    ruleset = sys_.call(sys_.LANDLOCK_CREATE, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint32(0))
    try:
        for rights, paths in (
            (READ, fence.readable),
            (RUN, fence.executable),
            (WRITE, fence.writable),
            (READ | Access.WRITE_FILE | Access.TRUNCATE, fence.written),
            (USE, fence.devices),
        ):
            for path in dict.fromkeys(paths):
                _allow(ruleset, path, rights & handled(abi))
        sys_.prctl(_NO_NEW_PRIVILEGES, 1)
        sys_.call(sys_.LANDLOCK_RESTRICT, ctypes.c_int(ruleset), ctypes.c_uint32(0))
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, rights: Access) -> None:
    if not Path(path).exists():
        return
    place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not stat.S_ISDIR(os.fstat(place).st_mode):
            rights &= _OF_FILES
        rule = struct.pack("=Qi", rights, place)
        sys_.call(sys_.LANDLOCK_ADD, ctypes.c_int(ruleset), ctypes.c_int(_UNDER_A_PATH), rule, ctypes.c_uint32(0))
    finally:
        os.close(place)
