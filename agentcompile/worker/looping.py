"""A loop that launches a candidate thousands of times without Python and compares every result."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from agentcompile.runtime.native import Call, NativeProgram
from agentcompile.validate.endurance import Turn
from agentcompile.worker.probes import RANK_WORDS, Probes
from agentcompile.worker.stacks import left_on_stacks

_LOOK = 64  # how many calls of `run` pass before the slower way of running is timed again


class NativeLoop:
    """One program with a launch and a `turn` kernel (compare, then copy the next inputs) for every set of inputs.

    It runs on the executor's threads, or, where that is faster, with one rank after another: on a shared machine a
    barrier may wait for a thread that has lost its core.
    """

    def __init__(self, probes: Probes, calls: Sequence[Call], turns: Sequence[Turn]) -> None:
        self._tally = torch.zeros(probes.executor.threads * RANK_WORDS, dtype=torch.int64)
        self._keep: list[object] = [turns]
        self._own = [own for _ in turns for own in (*[True] * len(calls), False)]
        listed: list[Call] = []
        for turn in turns:
            table = torch.tensor(_table(turn), dtype=torch.int64)
            self._keep.append(table)
            listed += [*calls, probes.call("turn", [self._tally, table])]
        self._program = NativeProgram(probes.executor, listed)
        self._probes, self._runs = probes, 0
        self._round_s = [0.0, 0.0]  # the seconds of a round, on all threads and with ranks in turn

    def run(self, rounds: int) -> None:
        """Run the program `rounds` times."""
        ways = 0 if self._round_s[0] <= self._round_s[1] else 1
        if self._runs < 2 or self._runs % _LOOK == 0:  # times each way once at first, later the slower one at times
            self._once(self._runs % 2 if self._runs < 2 else 1 - ways, 1)
            rounds -= 1
        self._runs += 1
        if rounds > 0:
            self._once(ways, rounds)

    def _once(self, way: int, rounds: int) -> None:
        begin = time.monotonic()
        if way == 0:
            self._program.run(rounds)
        else:
            self._probes.in_turn(self._program, rounds)
        taken = (time.monotonic() - begin) / rounds
        known = self._round_s[way]
        self._round_s[way] = taken if rounds > 1 or known == 0.0 else min(known, taken)

    def kept(self) -> str:
        """Return what the launches keep on their stacks, in words; they are counted as those of `run` are."""
        return left_on_stacks(self._probes, self._program, self._own)

    def wrong(self) -> tuple[int, int]:
        """Return the number of launches in which any rank found a difference, and the number of the first."""
        rows = [row for row in self._tally.view(-1, RANK_WORDS)[:, :3].tolist() if row[1]]
        return max((row[1] for row in rows), default=0), min((row[2] for row in rows), default=0)


def looper(
    probes: Probes, bound: Callable[[Mapping[str, Tensor]], list[Call]]
) -> Callable[[Mapping[str, Tensor], Sequence[Turn]], NativeLoop]:
    """Return a function that makes loops of a candidate, whose launches `bound` binds to buffers."""
    return lambda buffers, turns: NativeLoop(probes, bound(buffers), turns)


def _table(turn: Turn) -> list[int]:
    """Return the argument of the kernel `turn`: two counts, then five numbers for every pair."""
    rows = [_span(found, dense) for found, dense in (*turn.equal, *turn.copied)]
    return [len(turn.equal), len(turn.copied), *(number for row in rows for number in row)]


def _span(strided: Tensor, dense: Tensor) -> tuple[int, int, int, int, int]:
    """Return two addresses, the number of pieces, the stride between the first's, and a piece's size, in bytes."""
    assert dense.is_contiguous()
    assert (dense.shape, dense.dtype) == (strided.shape, strided.dtype)
    item, nbytes = strided.element_size(), dense.numel() * dense.element_size()
    if strided.is_contiguous():
        return strided.data_ptr(), dense.data_ptr(), 1, 0, nbytes
    pieces = strided.shape[0]
    assert strided[0].is_contiguous()
    return strided.data_ptr(), dense.data_ptr(), pieces, strided.stride(0) * item, nbytes // pieces
