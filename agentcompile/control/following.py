"""Reads a run from outside while its compiler writes it: whole at first, then what is new, without reading twice.

In: a run directory. Out: records and the state that they fold to. Standard library alone; nothing is written or locked.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from agentcompile import progress
from agentcompile.session import EVENTS, Record, RunDirectory, record_in

_ROUNDS = re.compile(rb'"kind":"rounds-progress","region":"([0-9a-f]{64})"')
"""How far a timing is, as `session.Journal` writes it."""


class Follower:
    """One reader. `state` is the fold of everything before `offset`, a byte of the events' file."""

    def __init__(self, run: RunDirectory) -> None:
        self.run = run
        self.state = progress.State()
        self.offset = 0

    def new(self, most: int = 0) -> list[Record]:
        """What was written since the last call, at most `most` records of it where that is not 0; folded into `state`.

        Of several words in a row on how far a region's timing is only the last is among them. A last line that is not
        whole yet waits for its end. Raises AgentCompileError for a line that is no event.
        """
        found: list[Record] = []
        file = self.run.path / EVENTS
        with _uncollected():
            for line, offset in _thinned(self.run.lines(self.offset)):
                record = record_in(line, file)
                self.state = progress.apply(self.state, record.event)
                self.offset = offset
                found.append(record)
                if len(found) == most:
                    break
        return found

    @property
    def ended(self) -> bool:
        """Whether nobody writes the run now. What it wrote last may still be new: ask this first, then `new`."""
        return not self.run.alive()


def _thinned(lines: Iterable[tuple[bytes, int]]) -> Iterator[tuple[bytes, int]]:
    """The lines without progress that the same region's overtakes before anything else happens: half of a long run."""
    held: dict[bytes, bytes] = {}
    before = 0
    for line, offset in lines:
        if (rounds := _ROUNDS.search(line, 0, 200)) is not None:
            held[rounds[1]] = line
        else:
            for one in held.values():
                yield one, before
            held.clear()
            yield line, offset
        before = offset
    for one in held.values():
        yield one, before


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
