"""The timer's quantum, how long our threads waited for a core, and when those of the arm before have gone to sleep."""

from __future__ import annotations

import contextlib
import resource
import threading
import time
from collections.abc import Callable
from pathlib import Path

from agentcompile.ir.timing import Interval

DEFAULT_QUANTUM_NS = 500
_SWITCH_NS = 1_000_000


def quantum_ns(tries: int = 2000) -> int:
    """The smallest step of the monotonic clock between two readings, `DEFAULT_QUANTUM_NS` when it makes none."""
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


def interval(timed: Callable[[], int]) -> Interval:
    """What `timed` returns, in ns, with the time that our threads waited for a core meanwhile."""
    before = waited_ns()
    ns = timed()
    return Interval(ns=ns, waited_ns=max(waited_ns() - before, 0))


def settle(at_most_s: float = 0.02) -> None:
    """Wait until no other thread of this process runs.

    PyTorch's and the executor's threads spin for a while after their work: milliseconds that would be taken from the
    threads of the arm that comes next, where cores are few.
    """
    until = time.monotonic() + at_most_s
    me = threading.get_native_id()
    while _running(me) and time.monotonic() < until:
        time.sleep(0.0002)


def _running(me: int) -> bool:
    with contextlib.suppress(OSError):
        for task in Path("/proc/self/task").iterdir():
            if int(task.name) == me:
                continue
            with contextlib.suppress(OSError, IndexError):
                # The name in parentheses may hold anything, spaces and parentheses included.
                if (task / "stat").read_text(encoding="ascii", errors="replace").rpartition(") ")[2][0] == "R":
                    return True
    return False
