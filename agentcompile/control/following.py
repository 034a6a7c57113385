"""Reads a run from outside while its compiler writes it: whole at first, then what is new, without reading twice.

In: a run directory. Out: records and the state that they fold to. Standard library alone; nothing is written or locked.
"""

from __future__ import annotations

import gc
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from agentcompile.errors import AgentCompileError
from agentcompile.runs import progress
from agentcompile.runs.session import EVENTS, Record, RunDirectory, record_in

_ROUNDS = re.compile(rb'"kind":"rounds-progress","region":"([0-9a-f]{64})"')
"""How far a timing is, as `session.Journal` writes it."""


LOOK = 16
"""Records between two looks at the clock: a few milliseconds."""


class Follower:
    """One reader. `state` is the fold of everything before `offset`, a byte of the events' file."""

    def __init__(self, run: RunDirectory, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.run = run
        self.state = progress.State()
        self.offset = 0
        self.caught_up = False
        """Whether the last `new` read all there was."""
        self._clock = clock

    def new(self, budget_s: float = math.inf) -> list[Record]:
        """What was written since the last call, as much of it as is read in about `budget_s`; folded into `state`.

        Of several words in a row on how far a region's timing is only the last is among them. A last line that is not
        whole yet waits for its end. Raises AgentCompileError for a line that is no event, once what is before it was
        returned.
        """
        found: list[Record] = []
        file, begin, looked = self.run.path / EVENTS, self._clock(), 0
        self.caught_up = False
        with _uncollected():
            for lines, offset in _thinned(self.run.lines(self.offset)):
                try:
                    records = [record_in(line, file) for line in lines]
                except AgentCompileError:
                    if found:
                        return found
                    raise
                self.state, self.offset = progress.fold((one.event for one in records), self.state), offset
                found += records
                if len(found) - looked >= LOOK:
                    looked = len(found)
                    if self._clock() - begin >= budget_s:
                        return found
        self.caught_up = True
        return found

    @property
    def ended(self) -> bool:
        """Whether nobody writes the run now. What it wrote last may still be new: ask this first, then `new`."""
        return not self.run.alive()


def _thinned(lines: Iterable[tuple[bytes, int]]) -> Iterator[tuple[list[bytes], int]]:
    """The lines without progress that the same region's overtakes before anything else happens: half of a long run.
    What is left of such progress comes with the line behind it, so that the offset after it passes nothing over."""
    held: dict[bytes, bytes] = {}
    offset = 0
    for line, offset in lines:
        if (rounds := _ROUNDS.search(line, 0, 200)) is not None:
            held[rounds[1]] = line
        else:
            yield [*held.values(), line], offset
            held.clear()
    if held:
        yield list(held.values()), offset


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without looking for garbage: what is read lives on, and there is a lot of it."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
