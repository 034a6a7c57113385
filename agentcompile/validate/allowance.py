"""The time that one check of a candidate may take, where a check could go on for as long as it likes."""

from __future__ import annotations

import time

_STRETCHED = 4.0  # the factor by which wall time may exceed the allowance, as the machine may be shared


class Allowance:
    """CPU time of this thread in seconds, from now: what a check costs when other processes share the cores."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._cpu, self._wall = time.thread_time(), time.monotonic()

    @property
    def share(self) -> float:
        """The spent share, in CPU time or in the allowed wall time, whichever is the larger; above 1 it is over."""
        cpu, wall = time.thread_time() - self._cpu, time.monotonic() - self._wall
        return max(cpu, wall / _STRETCHED) / self._seconds
