"""A time limit for an attempt in this process."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class HungError(Exception):
    """An attempt took longer than its limit."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Limit the wall time of a block to `seconds`; works in the main thread only.

    Raises:
        HungError: the block takes longer.
    """

    def ring(_number: int, _frame: FrameType | None) -> None:
        raise HungError(f"still at it after {seconds:g} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
