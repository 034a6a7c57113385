"""Detection of other processes on a GPU: their contexts and ours take turns on it, of about two milliseconds each.

No interface tells a process how long its kernels waited for the GPU, so it is measured: a row of equal kernels that
only count cycles takes longer than as many of them alone when others' turns lie in between.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from agentcompile.measure.policy import POLICY, Policy

TURN_NS = 2_000_000
"""How long a context runs while others wait: the default of the driver's time slices."""
_CYCLES = 400_000
"""The cycles of one kernel: about 0.25 ms, so that one alone fits into a turn."""
_ALONE, _ROW = 4, 24
"""How many kernels are timed alone (the shortest counts), and how many in a row (which last three turns)."""


def taking_turns(policy: Policy) -> Policy:
    """Return the policy for a shared GPU: a sample, even doubled, fits into a turn; one with others' is retaken."""
    return replace(policy, max_interval_ns=TURN_NS // 3, retaken_ns=policy.max_interval_ns)


class Turns:
    """The use of the current GPU by other processes, measured when this is made and when it is asked."""

    def __init__(self) -> None:
        self._seen = _share()

    @property
    def shared(self) -> bool:
        """Whether others were seen to use the GPU."""
        return self._seen > POLICY.others_share

    def turn_ns(self) -> int:
        """Measure again and return how long, in ns, the GPU is ours at a time; 0 where no other process uses it."""
        self._seen = max(self._seen, _share())
        return TURN_NS if self.shared else 0


def _share() -> float:
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
