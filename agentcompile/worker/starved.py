"""How long a process has waited for processors that others used."""

from __future__ import annotations

import contextlib
from pathlib import Path


def waited_s(pid: int) -> float:
    """Return the most seconds that one of the threads of a process could have run and had no processor.

    The source is the run delay in ``/proc/PID/task/*/schedstat``; 0 where the kernel keeps none, and for a process that
    is gone.
    """
    longest = 0
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError, ValueError, IndexError):  # a thread may end at any moment
                longest = max(longest, int((task / "schedstat").read_text(encoding="ascii").split()[1]))
    return longest / 1e9
