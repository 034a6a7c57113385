"""Limits of a worker process: it may not outlive its parent, fill memory or disk, or dump core."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_FILE_BYTES = 2 << 30


def die_with_parent(parent: int) -> None:
    """Ask the kernel for SIGKILL when process `parent` ends; exit at once when it already has."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def limit_process() -> None:
    """Forbid core files, limit file sizes to 2 GiB, and be the first process killed when memory runs out."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_FILE_BYTES, _FILE_BYTES))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


def limit_memory(extra_bytes: int) -> None:
    """Limit private writable memory, not address space, which PyTorch reserves, to `extra_bytes` more than now."""
    used = 0
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmData:"):
                used = int(line.split()[1]) * 1024
    limit = used + extra_bytes
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
