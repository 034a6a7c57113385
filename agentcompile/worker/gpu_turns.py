"""Whether other processes use a GPU too: their contexts and ours take turns on it, of about two milliseconds each.

Nobody tells a process how long its kernels waited for the GPU, so it is looked at: a row of equal kernels that only
count cycles takes longer than so many of them alone when others' turns lie in between.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from agentcompile.measure.policy import POLICY, Policy

TURN_NS = 2_000_000
"""How long a context runs while others wait: the default of the driver's time slices."""
_CYCLES = 400_000
"""Of one kernel: about 0.25 ms, so that one alone fits into a turn."""
_ALONE, _ROW = 4, 24
"""Kernels that are timed alone, of which the shortest counts, and those in a row, which last three turns."""


def taking_turns(policy: Policy) -> Policy:
    """The policy for regions on a shared GPU: a sample and one of twice its length fit into a turn, and one that holds
    others' turns, by which it may be ten times as long, is taken again."""
    return replace(policy, max_interval_ns=TURN_NS // 3, retaken_ns=policy.max_interval_ns)


class Turns:
    """What others take of the current GPU, seen when this is made and when it is asked."""

    def __init__(self) -> None:
        self._seen = _share()

    @property
    def shared(self) -> bool:
        """Whether others were seen."""
        return self._seen > POLICY.others_share

    def turn_ns(self) -> int:
        """How long the GPU is ours at a time, 0 where it is ours alone. Looks again."""
        self._seen = max(self._seen, _share())
        return TURN_NS if self.shared else 0


def _share() -> float:
    """Others' share of the GPU's time."""
    alone_ms = min(_spun_ms(1) for _ in range(_ALONE))
    return max(1.0 - _ROW * alone_ms / _spun_ms(_ROW), 0.0)


def _spun_ms(kernels: int) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    begin.record()
    for _ in range(kernels):
        torch.cuda._sleep(_CYCLES)  # type: ignore[no-untyped-call]
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end))
