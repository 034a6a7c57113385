"""Adds up the time in which the compiler waits for an evaluator, to tell it from what the compiler does itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")
_END = object()


class Stopwatch:
    """A stopwatch that stands still at first; for one thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Create a stopwatch; `clock` returns seconds."""
        self._clock, self._total_s, self._since_s, self._runs = clock, 0.0, 0.0, False

    @property
    def seconds(self) -> float:
        """The seconds in which it ran."""
        return self._total_s + (self._clock() - self._since_s if self._runs else 0.0)

    @contextmanager
    def running(self, runs: bool = True) -> Iterator[None]:
        """Run, or stand still, until the block ends; then go on as before."""
        before = self._runs
        self._set(runs)
        try:
            yield
        finally:
            self._set(before)

    def during(self, items: Iterable[T], runs: bool = True) -> Iterator[T]:
        """Yield the items; run, or stand still, while the next one is made, and not while it is used."""
        source = iter(items)
        while True:
            with self.running(runs):
                item = next(source, _END)
            if item is _END:
                return
            yield item  # type: ignore[misc] # an item of the source: the end has been told apart

    def _set(self, runs: bool) -> None:
        now_s = self._clock()
        if self._runs:
            self._total_s += now_s - self._since_s
        self._since_s, self._runs = now_s, runs
