"""A loop that launches a candidate on a device thousands of times and compares every result there.

The host waits once a stretch, not at every launch: a wait takes longer than most kernels, and so many of them left no
time for the launches of a long generation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from agentcompile.validate.endurance import MakeLoop, Turn
from agentcompile.validate.rig import BITS


class DeviceLaunches:
    """A launch, its comparisons and the next inputs' copies, queued one after another for every set of inputs."""

    def __init__(self, launch: Callable[[], None], wait: Callable[[], None], turns: Sequence[Turn]) -> None:
        """`launch` queues one launch of the candidate on the current stream; `wait` returns when all is done."""
        self._launch, self._wait, self._turns = launch, wait, turns
        self._launches, self._wrong, self._first = (torch.zeros((), dtype=torch.int64) for _ in range(3))

    def run(self, rounds: int) -> None:
        """Launch once for each turn, `rounds` times over, and wait for the device."""
        for _ in range(rounds):
            for turn in self._turns:
                self._launch()
                self._compare(turn)
                for to, source in turn.copied:
                    to.copy_(source)
        self._wait()

    def _compare(self, turn: Turn) -> None:
        self._launches += 1
        if turn.equal:
            bad = torch.stack([_differ(found, expected) for found, expected in turn.equal]).any()
            self._wrong += bad
            self._first += self._launches * (bad & (self._first == 0))

    def wrong(self) -> tuple[int, int]:
        """Return the number of launches that left other bits than expected, and the number of the first."""
        return int(self._wrong), int(self._first)

    def kept(self) -> str:
        """Return that nothing is seen: a device's kernel has no stack that outlives its launch."""
        return ""


def device_looper(bound: Callable[[Mapping[str, Tensor]], Callable[[], None]], wait: Callable[[], None]) -> MakeLoop:
    """Return a function that makes loops of a candidate, whose launches `bound` binds to buffers."""
    return lambda buffers, turns: DeviceLaunches(bound(buffers), wait, turns)


def _differ(found: Tensor, expected: Tensor) -> Tensor:
    kind = BITS[found.element_size()]
    return (found.view(kind) != expected.view(kind)).any()
