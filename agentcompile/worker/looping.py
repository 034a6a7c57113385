"""A candidate launched thousands of times without Python: launch, compare, spoil, next inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from agentcompile.runtime.native import Call, Program
from agentcompile.validate.endurance import Turn
from agentcompile.worker.probes import RANK_WORDS, Probes


class NativeLoop:
    """One program of a launch and a turn for every set of inputs."""

    def __init__(self, probes: Probes, calls: Sequence[Call], turns: Sequence[Turn]) -> None:
        self._tally = torch.zeros(probes.executor.threads * RANK_WORDS, dtype=torch.int64)
        self._keep: list[object] = [turns]
        listed: list[Call] = []
        for turn in turns:
            table = torch.tensor(_table(turn), dtype=torch.int64)
            self._keep.append(table)
            listed += [*calls, probes.call("turn", [self._tally, table])]
        self._program = Program(probes.executor, listed)

    def run(self, rounds: int) -> None:
        """Run the program `rounds` times."""
        self._program.run(rounds)

    def wrong(self) -> tuple[int, int]:
        """A launch is wrong when any rank found a difference in its share."""
        rows = [row for row in self._tally.view(-1, RANK_WORDS)[:, :3].tolist() if row[1]]
        return max((row[1] for row in rows), default=0), min((row[2] for row in rows), default=0)


def looper(
    probes: Probes, bound: Callable[[Mapping[str, Tensor]], list[Call]]
) -> Callable[[Mapping[str, Tensor], Sequence[Turn]], NativeLoop]:
    """Makes loops of a candidate, whose launches `bound` binds to buffers."""
    return lambda buffers, turns: NativeLoop(probes, bound(buffers), turns)


def _table(turn: Turn) -> list[int]:
    """How the kernel `turn` is told: two counts, then five numbers for every pair."""
    rows = [_span(found, dense) for found, dense in (*turn.equal, *turn.copied)]
    return [len(turn.equal), len(turn.copied), *(number for row in rows for number in row)]


def _span(strided: Tensor, dense: Tensor) -> tuple[int, int, int, int, int]:
    """Two addresses, how many pieces, bytes from one piece of the first to the next, and bytes of a piece."""
    assert dense.is_contiguous()
    assert (dense.shape, dense.dtype) == (strided.shape, strided.dtype)
    item, nbytes = strided.element_size(), dense.numel() * dense.element_size()
    if strided.is_contiguous():
        return strided.data_ptr(), dense.data_ptr(), 1, 0, nbytes
    pieces = strided.shape[0]
    assert strided[0].is_contiguous()
    return strided.data_ptr(), dense.data_ptr(), pieces, strided.stride(0) * item, nbytes // pieces
