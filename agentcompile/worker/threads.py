"""What the system keeps of each thread of the process, and of the process beside its State: read, never changed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_RIGHTS = ("Uid:", "Gid:", "Groups:", "Cap", "NoNewPrivs:", "Seccomp:", "Mems_allowed:", "CoreDumping:", "THP_enabled:")
"""How lines of /proc/self/status begin that say what the process may do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Threads:
    """Settings by thread. Threads come and go by themselves, so only those of both times are compared."""

    cores: Mapping[int, frozenset[int]]
    priority: Mapping[int, tuple[int, int, int]]
    """The nice value, the policy and its own priority."""
    name: Mapping[int, str]


def threads_now() -> Threads:
    """Return the settings of every thread that there is."""
    cores: dict[int, frozenset[int]] = {}
    priority: dict[int, tuple[int, int, int]] = {}
    name: dict[int, str] = {}
    for thread in thread_ids():
        with contextlib.suppress(OSError):  # it has ended
            cores[thread] = frozenset(os.sched_getaffinity(thread))
            nice, policy = os.getpriority(os.PRIO_PROCESS, thread), os.sched_getscheduler(thread)
            priority[thread] = nice, policy, os.sched_getparam(thread).sched_priority
            with open(f"/proc/self/task/{thread}/comm", "rb", buffering=0) as file:  # noqa: PTH123 - many times a second
                name[thread] = file.read(64).decode(errors="replace").strip()
    return Threads(cores=cores, priority=priority, name=name)


def thread_ids() -> frozenset[int]:
    """Return the ids of the process's threads; none where the system does not show them."""
    return frozenset(int(name) for name in listed("/proc/self/task"))


def listed(path: str) -> list[str]:
    """Return the names in a folder of the system's; none where it does not show them."""
    with contextlib.suppress(OSError):
        return os.listdir(path)  # noqa: PTH208 - names alone, many times a second
    return []


def status() -> tuple[str, tuple[str, ...]]:
    """Return the line of the process's file mask, and the lines that say what it may do."""
    umask, rights = "", []
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("Umask:"):
                umask = line
            elif line.startswith(_RIGHTS):
                rights.append(line)
    return umask, tuple(rights)


def timers_made() -> int:
    """Return how many timers the process has made (``timer_create``); 0 where the system does not show them."""
    with contextlib.suppress(OSError):
        return Path("/proc/self/timers").read_text(encoding="ascii", errors="replace").count("ID:")
    return 0
