"""The timer's quantum, and how long our threads waited for a core."""

from __future__ import annotations

import contextlib
import resource
import time
from pathlib import Path

DEFAULT_QUANTUM_NS = 500
_SWITCH_NS = 1_000_000


def quantum_ns(tries: int = 2000) -> int:
    """The smallest step that the monotonic clock makes between two readings, `DEFAULT_QUANTUM_NS` when it makes none."""
    steps: list[int] = []
    last = time.perf_counter_ns()
    for _ in range(tries):
        now = time.perf_counter_ns()
        if now > last:
            steps.append(now - last)
        last = now
    return min(steps, default=DEFAULT_QUANTUM_NS)


def waited_ns() -> int:
    """Time that this process's live threads were ready and had no core, in ns since each began.

    From the scheduler's statistics; where the system keeps none, an estimate from involuntary context switches.
    """
    total, seen = 0, False
    with contextlib.suppress(OSError):
        for task in Path("/proc/self/task").iterdir():
            with contextlib.suppress(OSError, ValueError, IndexError):
                total += int((task / "schedstat").read_text(encoding="ascii").split()[1])
                seen = True
    return total if seen else resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw * _SWITCH_NS
