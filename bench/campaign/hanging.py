"""A limit to how long an attempt may take in this process."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class HungError(Exception):
    """An attempt took longer than it may."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise `HungError` in the main thread when the block takes longer."""

    def ring(_number: int, _frame: FrameType | None) -> None:
        raise HungError(f"still at it after {seconds:g} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
