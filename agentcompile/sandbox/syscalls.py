"""Numbers of system calls and constants of Linux on the two processors that the sandbox knows, and calls by number."""

from __future__ import annotations

import ctypes
import functools
import os
import platform
from typing import Literal

Machine = Literal["x86_64", "aarch64"]

NUMBERS: dict[str, tuple[int, int]] = {
    "socket": (41, 198), "socketpair": (53, 199), "connect": (42, 203), "bind": (49, 200), "listen": (50, 201),
    "accept": (43, 202), "accept4": (288, 242),
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "process_madvise": (440, 440), "process_mrelease": (448, 448), "kcmp": (312, 272), "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438), "pidfd_send_signal": (424, 424), "tkill": (200, 130), "setpriority": (141, 140),
    "ioprio_set": (251, 30), "sched_setscheduler": (144, 119), "sched_setattr": (314, 274),
    "sched_setparam": (142, 118), "migrate_pages": (256, 238), "move_pages": (279, 239),
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "open_tree": (428, 428),
    "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432),
    "fspick": (433, 433), "mount_setattr": (442, 442), "setns": (308, 268), "unshare": (272, 97),
    "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265),
    "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218), "bpf": (321, 280),
    "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "kexec_load": (246, 104),
    "kexec_file_load": (320, 294), "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106),
    "reboot": (169, 142), "swapon": (167, 224), "swapoff": (168, 225), "sethostname": (170, 161),
    "setdomainname": (171, 162), "acct": (163, 89), "quotactl": (179, 60), "quotactl_fd": (443, 443),
    "syslog": (103, 116), "vhangup": (153, 58), "personality": (135, 92), "fanotify_init": (300, 262),
    "inotify_init": (253, -1), "inotify_init1": (294, 26), "iopl": (172, -1), "ioperm": (173, -1),
    "modify_ldt": (154, -1), "uselib": (134, -1),
    "clock_settime": (227, 112), "settimeofday": (164, 170), "adjtimex": (159, 171), "clock_adjtime": (305, 266),
    "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195), "semget": (64, 190), "msgget": (68, 186),
    "mq_open": (240, 180), "memfd_secret": (447, 447), "memfd_create": (319, 279),
    "chmod": (90, -1), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452), "chown": (92, -1),
    "lchown": (94, -1), "fchown": (93, 55), "fchownat": (260, 54), "setxattr": (188, 5), "lsetxattr": (189, 6),
    "fsetxattr": (190, 7), "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16),
    "utime": (132, -1), "utimes": (235, -1), "futimesat": (261, -1), "utimensat": (280, 88), "truncate": (76, 45),
    "execve": (59, 221), "execveat": (322, 281), "fork": (57, -1), "vfork": (58, -1), "clone": (56, 220),
    "clone3": (435, 435),
    "prlimit64": (302, 261), "kill": (62, 129), "tgkill": (234, 131), "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240), "fcntl": (72, 25), "ioctl": (16, 29), "mmap": (9, 222),
    "sched_setaffinity": (203, 122), "prctl": (157, 167), "mprotect": (10, 226), "pkey_mprotect": (329, 288),
    "mremap": (25, 216),
}  # fmt: skip
"""The numbers on x86-64 and on aarch64; -1 for a call that aarch64 lacks."""
NEWEST = 462
"""The last call that was reviewed when this table was made; a filter refuses later ones as if there were none."""
X32_BIT = 0x40000000
AUDIT: dict[Machine, int] = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""The kernel's constants for the two processors, which a filter compares with."""
SECCOMP: dict[Machine, int] = {"x86_64": 317, "aarch64": 277}
LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT = 444, 445, 446
CAPSET: dict[Machine, int] = {"x86_64": 126, "aarch64": 91}


def machine() -> Machine | None:
    """Return the processor; None where the sandbox knows no numbers, and on systems other than Linux."""
    if platform.system() != "Linux":
        return None
    match platform.machine():
        case "x86_64" | "AMD64":
            return "x86_64" if ctypes.sizeof(ctypes.c_void_p) == 8 else None
        case "aarch64" | "arm64":
            return "aarch64"
        case _:
            return None


def number(name: str, on: Machine) -> int:
    """Return the number of the call `name`; -1 when the processor has none."""
    return NUMBERS[name][0 if on == "x86_64" else 1]


@functools.cache
def libc() -> ctypes.CDLL:
    """Return the C library of this process, which keeps the error number of each call."""
    return ctypes.CDLL(None, use_errno=True)


def call(syscall: int, *arguments: object) -> int:
    """Make a system call; return its result.

    Raises:
        OSError: the kernel refuses it.
    """
    return checked(libc().syscall(ctypes.c_long(syscall), *arguments), f"system call {syscall}")


def checked(result: int, what: str) -> int:
    """Return the result of a call of the C library.

    Raises:
        OSError: it is negative, so that the call failed.
    """
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")
    return result


def prctl(option: int, value: int, third: int = 0) -> int:
    """Change an attribute of this process.

    Raises:
        OSError: the kernel refuses it.
    """
    zero = ctypes.c_ulong(0)
    words = ctypes.c_ulong(value), ctypes.c_ulong(third), zero, zero
    return checked(libc().prctl(ctypes.c_int(option), *words), f"prctl {option}")
