"""Trials that say whether somebody walked through all of them."""

from __future__ import annotations

from collections.abc import Iterator

from agentcompile.ir.trial import Trial
from agentcompile.runs.persistent import GrowingSequence


class Walked(GrowingSequence[Trial]):
    """Counts walks from one end to the other."""

    __slots__ = ("walks",)
    walks: int

    def __iter__(self) -> Iterator[Trial]:
        self.walks += 1
        return super().__iter__()
