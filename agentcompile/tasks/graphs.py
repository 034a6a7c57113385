"""Batches of launches on a device as graphs, and their time by events around the replay.

PyTorch's arms and written kernels are timed by this one way: the device is kept busy until a batch is queued, then the
batch runs between two events (see `worker.gpu_timing.DeviceTimer`).
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from agentcompile.runtime.device_step import captured
from agentcompile.runtime.sites import Action
from agentcompile.tasks.wire import Timed
from agentcompile.worker.gpu_timing import DeviceTimer

MOST_LAUNCHES = 1 << 10
"""The most launches in one graph; longer batches replay it several times. It is a multiple of the sets."""


class GraphBatches:
    """Graphs of so many launches of one arm, each captured when it is asked for first."""

    def __init__(self, launches: Callable[[int], Action], *, graphs: bool = True, ready: Action = lambda: None) -> None:
        """Keep what makes `launches`, of a number of them from the first set on; one runs before each capture.

        `ready` is called before that one. Without `graphs` they are launched from the host.
        """
        self._launches, self._graphs, self._first, self._ready = launches, graphs, launches(1), ready
        self._known: dict[int, Action] = {}
        self._watch = DeviceTimer()

    def of(self, count: int) -> Action:
        """Return what queues `count` launches; it is captured now, unless it was before."""
        whole, rest = divmod(count, MOST_LAUNCHES)
        parts = [self._one(MOST_LAUNCHES)] * whole + ([self._one(rest)] if rest else [])

        def queue() -> None:
            for part in parts:
                part()

        return queue

    def timed(self, count: int, *, before: Action) -> Timed:
        """Return the time of `count` launches behind `before`, and how long the host saw them take.

        Both run again, held longer, where the host was slow to queue them.
        """
        queue, begun = self.of(count), 0

        def ready() -> None:
            nonlocal begun
            before()
            torch.cuda.synchronize()
            begun = time.perf_counter_ns()

        found = self._watch.elapsed(queue, before=ready)
        return Timed(interval=found, took_ns=time.perf_counter_ns() - begun)

    def _one(self, count: int) -> Action:
        if count not in self._known:
            body = self._launches(count)
            if self._graphs:
                self._ready()
                self._known[count] = captured(body, before=self._first).replay
            else:
                self._known[count] = body
        return self._known[count]
