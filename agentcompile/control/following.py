"""Reads a run from outside while its compiler writes it: whole at first, then what is new, without reading twice.

In: a run directory. Out: records and the state that they fold to. Standard library alone; nothing is written or locked.
"""

from __future__ import annotations

from agentcompile import progress
from agentcompile.session import Record, RunDirectory


class Follower:
    """One reader. `state` is the fold of everything before `offset`, a byte of the events' file."""

    def __init__(self, run: RunDirectory) -> None:
        self.run = run
        self.state = progress.State()
        self.offset = 0

    def new(self, most: int = 0) -> list[Record]:
        """What was written since the last call, at most `most` records of it where that is not 0; folded into `state`.

        A last line that is not whole yet waits for its end. Raises AgentCompileError for a line that is no event.
        """
        found: list[Record] = []
        for record, offset in self.run.records(self.offset):
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
