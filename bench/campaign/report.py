"""What a campaign found, in one shape for every kind."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

ACCEPT_EVERY = 50
"""Of how many validations of right kernels one is at acceptance, unless it is said."""
Say = Callable[[str], None]
"""Progress for people, a line at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Campaign:
    """How much of a kind is asked for."""

    count: int
    """Attempts; 0 takes the kind's default."""
    seed: int
    seconds: float
    """Wall time after which no attempt begins; 0: no limit."""
    partial: Path | None = None
    """Where a kind keeps what it has found so far, so that a run that was stopped goes on."""
    begun: float = field(default_factory=time.monotonic)
    share: int = 0
    """Which of `shares` that run side by side this is, each with other work."""
    shares: int = 1
    threads: int = 0
    """Of a kernel; 0: what the options say."""
    only: str = ""
    """Templates whose id holds this text, where a kind goes through templates; empty: all."""
    accept_every: int = ACCEPT_EVERY
    """Of how many validations of right kernels one is at acceptance."""

    @property
    def quota(self) -> int:
        """This share's part of `count`."""
        return self.count // self.shares + (self.share < self.count % self.shares)

    @property
    def over(self) -> bool:
        """Whether no further attempt may begin."""
        return 0 < self.seconds < time.monotonic() - self.begun


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One kind's result: it passes when nothing failed and something was tried."""

    kind: str
    tried: int
    failures: tuple[str, ...]
    """One line each: which attempt (so that it can be repeated), what was expected and what happened."""
    figures: Mapping[str, float | int | str]
    details: tuple[Mapping[str, float | int | str], ...] = ()
    """Rows worth keeping, such as survivors with the reason why they are equivalent."""

    @property
    def ok(self) -> bool:
        """Whether the campaign passed."""
        return self.tried > 0 and not self.failures


class Kind(Protocol):
    """A module of this package: `run` does the work, `DEFAULT` is how many attempts it makes unasked."""

    DEFAULT: int

    def run(self, campaign: Campaign, say: Say) -> Report:
        """Make the attempts."""


class Sharable(Kind, Protocol):
    """A kind whose work is done in shares: `find` does one, `report` makes one report of what all of them found."""

    Findings: type[Any]
    """A dataclass that the codec can send from a share's process."""
    __name__: str

    def find(self, campaign: Campaign, say: Say) -> Any:
        """Make the attempts of `campaign.share`."""

    def report(self, found: Sequence[Any]) -> Report:
        """The report of all shares: every figure is that of one run that made all their attempts."""
