"""The result of a campaign, in one shape for every kind."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

ACCEPT_EVERY = 50
"""The default number of validations of right kernels of which one is at acceptance depth."""
Say = Callable[[str], None]
"""A function that shows a line of progress to people."""


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
    """The text that the ids of templates must contain, where a kind goes through templates; empty: all templates."""
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


class Kind(Protocol):
    """A module of this package: `run` makes the attempts, `DEFAULT` is their number when none is given."""

    DEFAULT: int

    def run(self, campaign: Campaign, say: Say) -> Report:
        """Make the attempts of `campaign` and return the result."""


class Sharable(Kind, Protocol):
    """A kind whose work is done in shares: `find` does one, and `report` merges the results of all of them."""

    Findings: type[Any]
    """The dataclass of a share's result, which the codec can send from the share's process."""
    __name__: str

    def find(self, campaign: Campaign, say: Say) -> Any:
        """Make the attempts of the share `campaign.share` and return a `Findings`."""

    def report(self, found: Sequence[Any]) -> Report:
        """Merge the results of all shares: every figure is that of one run that made all their attempts."""
