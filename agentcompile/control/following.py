"""A reader that follows a run while its compiler writes it: everything at first, then what is new, nothing twice.

In: a run directory. Out: records and the state that they fold to. Only the standard library; nothing is written or
locked.
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
from agentcompile.runs.session import EVENTS, EventRecord, RunDirectory, record_in

_ROUNDS = re.compile(rb'"kind":"rounds-progress","region":"([0-9a-f]{64})"')
"""A `RoundsProgress` event in the form in which `session.Journal` writes it."""


LOOK = 16
"""Records between two looks at the clock; reading them takes a few milliseconds."""


class Follower:
    """One reader of a run; `state` is the fold of all events before `offset`, a byte offset in the events' file."""

    def __init__(self, run: RunDirectory, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.run = run
        self.state = progress.State()
        self.offset = 0
        self.caught_up = False
        """Whether the last `new` read everything that was there."""
        self._clock = clock

    def new(self, budget_s: float = math.inf) -> list[EventRecord]:
        """Return the records written since the last call, as many as are read in about `budget_s`, folded into `state`.

        Of consecutive progress events of one region's timing only the last is returned. An incomplete last line is left
        until it is complete.

        Raises:
            AgentCompileError: a line is not an event; raised once the records before it were returned.
        """
        found: list[EventRecord] = []
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
        """Whether no process writes the run now.

        Its last records may still be unread, so ask this first and then call `new`.
        """
        return not self.run.alive()


def _thinned(lines: Iterable[tuple[bytes, int]]) -> Iterator[tuple[list[bytes], int]]:
    """Yield the lines, without timing progress that newer progress of the same region directly follows.

    That is half of a long run. The progress that remains comes together with the next line, so that the offset after
    them skips nothing.
    """
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
    """Switch garbage collection off: what is read is kept, and there is a lot of it."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
