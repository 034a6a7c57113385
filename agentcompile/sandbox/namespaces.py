"""Namespaces: a process gets a network, message queues, mounts and a user of its own, with no rights over others.

Needs no privilege where users may make user namespaces. A process of root gets a user number of its own as well:
root's is free of the limit on processes, and processes of one user may signal one another.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import warnings

from agentcompile.sandbox import syscalls as sys_

MOUNTS, IPC, USER, PROCESSES, NETWORK = 0x00020000, 0x08000000, 0x10000000, 0x20000000, 0x40000000
ALL = USER | NETWORK | IPC | MOUNTS
_SECURE_BITS, _AMBIENT, _RAISE = 28, 47, 2
_NO_FIXUP = 1 << 2
"""SECBIT_NO_SETUID_FIXUP: a change of the user number changes no right."""
_READ_ALL, _SEARCH_ALL = 1, 2
"""CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH, for root's files inside its namespace; Landlock says which of them."""
_NOT_ROOT = 0x60000000
"""The first of the user numbers that no account has; the process's number is added."""
_PRIVATE, _RECURSIVE = 1 << 18, 1 << 14
_NO_PROGRAMS = 2 | 4 | 8
"""MS_NOSUID, MS_NODEV and MS_NOEXEC."""


def available() -> str:
    """Return why a process cannot have its own namespaces here; empty when it can. A child tries."""
    if sys_.machine() is None:
        return "not Linux on x86-64 or aarch64"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warns of threads; the child makes two system calls and ends
        child = os.fork()
    if child == 0:
        try:
            enter(ALL)
        except OSError as error:
            os._exit(min(error.errno or 255, 255))
        os._exit(0)
    number = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if number == 0:
        return ""
    said = os.strerror(number) if number > 0 else f"signal {-number}"
    return f"users may not make namespaces here ({said}; see user.max_user_namespaces and kernel.apparmor_*)"


def enter(kinds: int) -> int:
    """Move this process, which has one thread, into new namespaces, where it has every right over what it made there.

    Return the user number that it may `become`; 0 where it stays who it is.

    Raises:
        OSError: the kernel makes none; the process is as it was, or has lost its rights.
    """
    user, group = os.geteuid(), os.getegid()
    if user != 0:
        sys_.checked(sys_.libc().unshare(ctypes.c_int(kinds)), "unshare")
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{user} {user} 1\n")
        _write("/proc/self/gid_map", f"{group} {group} 1\n")
        return 0
    other = _NOT_ROOT + os.getpid()
    return other if _enter_mapped(kinds, other) else 0


def become(other: int) -> None:
    """Take the user number `other`, if it is one, and give up all rights but those to reach root's files.

    Raises:
        OSError: the kernel refuses it.
    """
    if other:
        sys_.prctl(_SECURE_BITS, _NO_FIXUP)  # also of access(2), by which compilers choose a temporary folder
        os.setgroups([])
        os.setresgid(other, other, other)
        os.setresuid(other, other, other)
    drop_rights(keep_files=bool(other))


def _enter_mapped(kinds: int, other: int) -> bool:
    """Make namespaces whose users are root and `other`; a helper, which keeps root's rights, says which they are.

    Raises:
        OSError: the kernel makes none.
    """
    asked, answered = os.pipe(), os.pipe()
    target = os.getpid()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        helper = os.fork()
    if helper == 0:
        os.close(asked[1])
        made = b"\3"
        if os.read(asked[0], 1):
            for text, result in ((f"0 0 1\n{other} {other} 1\n", b"\2"), ("0 0 1\n", b"\1")):
                try:
                    _write(f"/proc/{target}/uid_map", text)
                    _write(f"/proc/{target}/gid_map", text)
                except OSError:
                    continue
                made = result
                break
            os.write(answered[1], made)
        os._exit(0)
    os.close(asked[0])
    os.close(answered[1])
    try:
        sys_.checked(sys_.libc().unshare(ctypes.c_int(kinds)), "unshare")
        os.write(asked[1], b"\1")
        made = os.read(answered[0], 1)
    finally:
        os.close(asked[1])
        os.close(answered[0])
        os.waitpid(helper, 0)
    if made not in (b"\1", b"\2"):
        raise OSError(errno.EPERM, "the users of a new namespace cannot be set")
    return made == b"\2"


def own_disk(folder: str, nbytes: int) -> None:
    """Mount a disk in memory of `nbytes` over `folder`, in this process's mounts alone.

    Raises:
        OSError: the kernel refuses it.
    """
    mount = sys_.libc().mount
    sys_.checked(mount(b"none", b"/", None, ctypes.c_ulong(_PRIVATE | _RECURSIVE), None), "private mounts")
    options = f"size={nbytes},nr_inodes=1024,mode=1777".encode()
    made = mount(b"tmpfs", os.fsencode(folder), b"tmpfs", ctypes.c_ulong(_NO_PROGRAMS), options)
    sys_.checked(made, f"a disk at {folder}")


def drop_rights(*, keep_files: bool) -> None:
    """Give up all capabilities, but with `keep_files` those to reach root's files, which programs inherit.

    Raises:
        OSError: the kernel refuses it.
    """
    on = sys_.machine()
    assert on is not None
    kept = (1 << _READ_ALL | 1 << _SEARCH_ALL) if keep_files else 0
    header = struct.pack("=Ii", 0x20080522, 0)
    sys_.call(sys_.CAPSET[on], header, struct.pack("=6I", kept, kept, kept, 0, 0, 0))
    if keep_files:
        for right in (_READ_ALL, _SEARCH_ALL):
            sys_.prctl(_AMBIENT, _RAISE, right)


def _write(path: str, text: str) -> None:
    place = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(place, text.encode())
    finally:
        os.close(place)
