"""Filters of system calls: rules in, a classic BPF program out, which the kernel runs before every call of a process.

A refused call returns EPERM, one that the table of numbers does not know ENOSYS. Another processor's calls (32-bit ones
on a 64-bit machine) end the process, because their numbers mean something else; those of the x32 form are refused.
"""

from __future__ import annotations

import ctypes
import errno
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from agentcompile.sandbox import syscalls as sys_
from agentcompile.sandbox.syscalls import Machine

_LOAD, _AND, _EQUAL, _AT_LEAST, _JUMP, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x05, 0x06
_NUMBER_AT, _PROCESSOR_AT, _ARGUMENTS_AT = 0, 4, 16
_ALLOW, _ERROR, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_SET_FILTER, _ACTION_THERE = 1, 2
_ALL_THREADS = 1
_NO_MITIGATION = 4
"""Flag without which some kernels slow every load after a store of a filtered process, which timing would show."""
_NO_NEW_PRIVILEGES = 38

_THREAD, _NEW_NAMESPACES = 0x00010000, 0x7E020000
_SHARED_AND_ANONYMOUS, _GROWS = 0x21, 0x100
_WRITES, _EXECUTES, _TO_A_PLACE = 0x2, 0x4, 0x2
"""PROT_WRITE, PROT_EXEC and MREMAP_FIXED."""
_PARENT_DEATH = 1
_OWNER_COMMANDS = (8, 10, 15)
"""F_SETOWN, F_SETSIG and F_SETOWN_EX: they make the kernel send signals to a process of the caller's choice."""
_TERMINAL_COMMANDS = (0x5412, 0x541C, 0x8901, 0x8902)
"""TIOCSTI, TIOCLINUX, FIOSETOWN and SIOCSPGRP: input to a terminal, and signals as above."""

Instruction = tuple[int, int, int, int]

_UNIX = 1
"""AF_UNIX: the family of sockets within a machine."""
_OPENS = ("socket", "bind", "listen")
"""Calls by which a process offers a socket: the CUDA driver does so at its start, and ends without."""
_ALWAYS = (
    "socketpair", "connect", "accept", "accept4",
    "ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "process_mrelease", "kcmp", "pidfd_open",
    "pidfd_getfd", "pidfd_send_signal", "tkill", "setpriority", "ioprio_set", "sched_setscheduler", "sched_setattr",
    "sched_setparam", "migrate_pages", "move_pages",
    "mount", "umount2", "pivot_root", "chroot", "open_tree", "move_mount", "fsopen", "fsconfig", "fsmount", "fspick",
    "mount_setattr", "setns", "unshare", "name_to_handle_at", "open_by_handle_at",
    "keyctl", "add_key", "request_key", "bpf", "perf_event_open", "userfaultfd", "io_uring_setup", "io_uring_enter",
    "io_uring_register", "kexec_load", "kexec_file_load", "init_module", "finit_module", "delete_module", "reboot",
    "swapon", "swapoff", "sethostname", "setdomainname", "acct", "quotactl", "quotactl_fd", "syslog", "vhangup",
    "personality", "fanotify_init", "inotify_init", "inotify_init1", "iopl", "ioperm", "modify_ldt", "uselib",
    "clock_settime", "settimeofday", "adjtimex", "clock_adjtime",
    "shmget", "shmat", "shmctl", "semget", "msgget", "mq_open", "memfd_secret",
    # Landlock does not watch over attributes of files.
    "chmod", "fchmod", "fchmodat", "fchmodat2", "chown", "lchown", "fchown", "fchownat", "setxattr", "lsetxattr",
    "fsetxattr", "removexattr", "lremovexattr", "fremovexattr", "utime", "utimes", "futimesat", "utimensat", "truncate",
)  # fmt: skip
"""Calls that neither a compiler nor a worker needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A call that is refused: always, or when an argument, cut to `mask`, is one of `values` (or is not, `unless`)."""

    call: str
    argument: int = -1
    values: tuple[int, ...] = ()
    mask: int = 0xFFFFFFFF
    unless: bool = False
    error: int = errno.EPERM


def rules(*, pid: int, programs: bool, devices: bool) -> tuple[Rule, ...]:
    """Return what process `pid` is refused; it may start `programs`, or share memory with `devices`.

    Without programs it has no children: it makes threads only, and signals and limits only itself. With devices it may
    offer a socket within the machine, of which nobody in its network namespace asks anything: it accepts no connection.
    """
    own = (0, pid)
    found = [Rule(call=name) for name in _ALWAYS]
    if devices:
        found.append(Rule(call="socket", argument=0, values=(_UNIX,), unless=True))
    else:
        found += [Rule(call=name) for name in _OPENS]
    # The flags of clone3 lie in memory, where no filter sees them: without it the C library takes clone.
    found.append(Rule(call="clone3", error=errno.ENOSYS))
    # One rule for each bit that asks for a namespace.
    found += [
        Rule(call="clone", argument=0, mask=1 << bit, values=(1 << bit,))
        for bit in range(32)
        if _NEW_NAMESPACES & (1 << bit)
    ]
    # The wish to end with the parent stays.
    found.append(Rule(call="prctl", argument=0, values=(_PARENT_DEATH,)))
    # Stacks that grow are memory that no limit of a process counts; the C library's are none.
    found.append(Rule(call="mmap", argument=3, mask=_GROWS, values=(_GROWS,)))
    found.append(Rule(call="fcntl", argument=1, values=_OWNER_COMMANDS))
    found.append(Rule(call="ioctl", argument=1, values=_TERMINAL_COMMANDS))
    if not programs:
        found += [Rule(call=name) for name in ("execve", "execveat", "fork", "vfork")]
        found.append(Rule(call="clone", argument=0, mask=_THREAD, values=(_THREAD,), unless=True))
        found += [
            Rule(call=name, argument=0, values=own, unless=True)
            for name in ("kill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "prlimit64")
        ]
    if not devices:
        # Nor does any count memory that is shared.
        found.append(Rule(call="memfd_create"))
        found.append(Rule(call="mmap", argument=3, mask=_SHARED_AND_ANONYMOUS, values=(_SHARED_AND_ANONYMOUS,)))
    return tuple(found)


def placing(pid: int) -> tuple[Rule, ...]:
    """Return the rule that lets process `pid` choose the cores of its main thread and of a thread that asks itself."""
    return (Rule(call="sched_setaffinity", argument=0, values=(0, pid), unless=True),)


def computing() -> tuple[Rule, ...]:
    """Return the rules under which a process starts no thread, and runs no code but that of files which it loads.

    Without them a kernel could go on after its launch, or rewrite the clock that times it (the vDSO is code, too).
    """
    return (
        Rule(call="clone"),
        Rule(call="mprotect", argument=2, mask=_EXECUTES, values=(_EXECUTES,)),
        Rule(call="pkey_mprotect", argument=2, mask=_EXECUTES, values=(_EXECUTES,)),
        Rule(call="mmap", argument=2, mask=_WRITES | _EXECUTES, values=(_WRITES | _EXECUTES,)),
        Rule(call="mremap", argument=3, mask=_TO_A_PLACE, values=(_TO_A_PLACE,)),
    )


def program(refused: Sequence[Rule], on: Machine) -> tuple[Instruction, ...]:
    """Return the filter that refuses by `refused` and allows everything else that the table of numbers knows."""
    out: list[Instruction] = [
        (_LOAD, 0, 0, _PROCESSOR_AT),
        (_EQUAL, 1, 0, sys_.AUDIT[on]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER_AT),
    ]
    if on == "x86_64":
        out += _refused_from(sys_.X32_BIT, errno.EPERM)
    out += _refused_from(sys_.NEWEST + 1, errno.ENOSYS)
    for rule in refused:
        if (number := sys_.number(rule.call, on)) >= 0:
            body = list(_body(rule))
            out += [(_EQUAL, 0, len(body), number), *body]
    return (*out, (_RETURN, 0, 0, _ALLOW))


def _refused_from(number: int, error: int) -> list[Instruction]:
    return [(_AT_LEAST, 0, 1, number), (_RETURN, 0, 0, _ERROR | error)]


def _body(rule: Rule) -> Iterator[Instruction]:
    """Yield what runs for the rule's call; where that does not return, the call's number is loaded again."""
    refuse, number = (_RETURN, 0, 0, _ERROR | rule.error), (_LOAD, 0, 0, _NUMBER_AT)
    if rule.argument < 0:
        yield refuse
        return
    # The low half: every argument that the rules look at is an int or has its flags there.
    yield (_LOAD, 0, 0, _ARGUMENTS_AT + 8 * rule.argument)
    yield (_AND, 0, 0, rule.mask)
    after = [refuse, number] if rule.unless else [number, (_JUMP, 0, 0, 1), refuse]
    found = 1 if rule.unless else 2
    for at, value in enumerate(rule.values):
        yield (_EQUAL, len(rule.values) - 1 - at + found, 0, value)
    yield from after


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def available() -> str:
    """Return why no filter can be installed here; empty when one can."""
    on = sys_.machine()
    if on is None:
        return "not Linux on x86-64 or aarch64"
    action = ctypes.c_uint32(_KILL)
    try:
        sys_.call(sys_.SECCOMP[on], ctypes.c_uint(_ACTION_THERE), ctypes.c_uint(0), ctypes.byref(action))
    except OSError as error:
        return f"the kernel has no seccomp filters ({error.strerror})"
    return ""


def install(refused: Sequence[Rule]) -> None:
    """Filter the calls of every thread of this process, for ever; filters add up.

    Raises:
        OSError: the kernel does not take the filter.
    """
    on = sys_.machine()
    if on is None:
        raise OSError(errno.ENOSYS, "no filter for this processor")
    made = program(refused, on)
    data = b"".join(struct.pack("=HBBI", *instruction) for instruction in made)
    sys_.prctl(_NO_NEW_PRIVILEGES, 1)
    whole = _Program(length=len(made), instructions=data)
    flags = ctypes.c_uint(_ALL_THREADS | _NO_MITIGATION)
    left = sys_.call(sys_.SECCOMP[on], ctypes.c_uint(_SET_FILTER), flags, ctypes.byref(whole))
    if left:
        raise OSError(errno.EBUSY, f"thread {left} has a filter of its own")
