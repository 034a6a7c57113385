"""What a campaign is asked for, its results so far, and its result, in one shape for every kind.

A kind is a module of this package: `DEFAULT` is its number of attempts when none is given, and `run` makes those of a
`Campaign` and returns a `Report`. A kind whose work is done in shares has, instead of `run`, `find`, which makes the
attempts of one share and returns a `Findings` (a dataclass that the codec can send from the share's process), and
`report`, which merges the results of all shares: every figure is that of one run that made all their attempts.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

ACCEPT_EVERY = 50
"""The default number of validations of right kernels of which one is at acceptance depth."""
Say = Callable[[str], None]
"""A function that shows a line of progress to people."""
Figures = dict[str, float | int | str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Campaign:
    """How much of a kind is requested."""

    count: int
    """The number of attempts; 0 takes the kind's default."""
    seed: int
    seconds: float
    """The wall time in seconds after which no attempt begins; 0: no limit."""
    partial: Path | None = None
    """The file where a kind keeps its results so far, so that a stopped run can resume."""
    begun: float = field(default_factory=time.monotonic)
    share: int = 0
    """The index of this share, of `shares` that run side by side, each with other work."""
    shares: int = 1
    threads: int = 0
    """The threads of a kernel; 0: what the options say."""
    only: str = ""
    """The regular expression that is found in a template's id, where a kind goes through templates; empty: in all."""
    accept_every: int = ACCEPT_EVERY
    """The number of validations of right kernels of which one is at acceptance depth."""

    @property
    def quota(self) -> int:
        """The part of `count` that this share makes."""
        return self.count // self.shares + (self.share < self.count % self.shares)

    @property
    def over(self) -> bool:
        """Whether the time limit has passed, so that no further attempt may begin."""
        return 0 < self.seconds < time.monotonic() - self.begun


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The result of one kind: it passes when nothing failed and at least one attempt was made."""

    kind: str
    tried: int
    failures: tuple[str, ...]
    """One line for each failure: which attempt (so that it can be repeated), what was expected and what happened."""
    figures: Mapping[str, float | int | str]
    details: tuple[Mapping[str, float | int | str], ...] = ()
    """Rows worth keeping, such as survivors with the reason why they are equivalent."""

    @property
    def ok(self) -> bool:
        """Whether the campaign passed."""
        return self.tried > 0 and not self.failures


def fresh_environment(home: Path) -> dict[str, str]:
    """Return this process's environment for a command of agentcompile with a home of its own and no other settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AGENTCOMPILE_")}  # noqa: TID251
    return {**kept, "AGENTCOMPILE_HOME": str(home)}


class HungError(Exception):
    """An attempt took longer than its limit."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Limit the wall time of a block to `seconds`; works in the main thread only.

    Raises:
        HungError: the block takes longer.
    """

    def ring(_number: int, _frame: FrameType | None) -> None:
        raise HungError(f"still at it after {seconds:g} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
