"""The timer's quantum, the time that this process's threads waited for a core, and a wait until they are idle."""

from __future__ import annotations

import contextlib
import os
import resource
import threading
import time
from collections.abc import Callable
from pathlib import Path

from agentcompile.ir.timing import Interval

DEFAULT_QUANTUM_NS = 500
_SWITCH_NS = 1_000_000
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def quantum_ns(tries: int = 2000) -> int:
    """Return the smallest step in ns seen in `tries` clock readings; `DEFAULT_QUANTUM_NS` when it never moved."""
    steps: list[int] = []
    last = time.perf_counter_ns()
    for _ in range(tries):
        now = time.perf_counter_ns()
        if now > last:
            steps.append(now - last)
        last = now
    return min(steps, default=DEFAULT_QUANTUM_NS)


def waited_ns() -> int:
    """Return the total time in ns that this process's live threads were ready to run and had no core.

    Each thread counts from its start. The source is `/proc/self/task/*/schedstat`; where the kernel keeps none, it is
    an estimate of 1 ms for every involuntary context switch.
    """
    delays = _delays_ns("self")
    return sum(delays) if delays else resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw * _SWITCH_NS


def waited_s(pid: int) -> float:
    """Return the most seconds that one of the threads of a process could have run and had no core.

    It is 0 where the kernel does not count that, and for a process that is gone.
    """
    return max(_delays_ns(pid), default=0) / 1e9


def core_ns(pid: int = 0) -> tuple[int, int]:
    """Return the ns in which this thread, or the main one of process `pid`, ran, and could have run and had no core.

    The system counts them, up to a tick behind while a thread runs, and no code of the process can change them; both
    are 0 where it does not.
    """
    thread = pid or threading.get_native_id()
    with contextlib.suppress(OSError, ValueError):
        ran, delayed, _ = Path(f"/proc/{pid or 'self'}/task/{thread}/schedstat").read_text(encoding="ascii").split()
        return int(ran), int(delayed)
    return 0, 0


def _delays_ns(process: int | str) -> list[int]:
    """Return the run delay of each live thread of a process; empty where the kernel keeps none."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{process}/task").iterdir():
            with contextlib.suppress(OSError, ValueError, IndexError):  # a thread may end at any moment
                found.append(int((task / "schedstat").read_text(encoding="ascii").split()[1]))
    return found


def interval(timed: Callable[[], int]) -> Interval:
    """Call `timed` and return the ns that it reports, with the ns that our threads waited for a core meanwhile."""
    before = waited_ns()
    ns = timed()
    return Interval(ns=ns, waited_ns=max(waited_ns() - before, 0))


class Others:
    """Other processes' use of the machine's processors, and a hypervisor's, since this object was made."""

    def __init__(self) -> None:
        self._begin = _spent_s()

    def share(self) -> float:
        """Return other processes' share of all processors' time since then, 0 to 1; 1 where the system does not say."""
        (busy_s, whole_s, own_s), begin = _spent_s(), self._begin
        if whole_s <= begin[1]:
            return 1.0
        others_s = (busy_s - begin[0]) - (own_s - begin[2])
        return min(max(others_s / (whole_s - begin[1]), 0.0), 1.0)


def _spent_s() -> tuple[float, float, float]:
    """Return three sums in seconds: all processors' busy time, their total time, and this process's CPU time.

    The first two count from the boot; all are 0 where `/proc/stat` cannot be read.
    """
    try:
        words = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]
        user, nice, system, idle, waiting, *rest = (int(word) / _TICKS_PER_S for word in words)
    except (OSError, ValueError):
        return 0.0, 0.0, 0.0
    busy = user + nice + system + sum(rest)
    return busy, busy + idle + waiting, time.process_time()


def settle(at_most_s: float = 0.02) -> None:
    """Wait until no other thread of this process runs, for `at_most_s` seconds at most.

    PyTorch's and the executor's threads spin for some milliseconds after their work. Where cores are few, they would
    take that time from the threads of the next arm.
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
