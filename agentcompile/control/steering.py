"""What a person asked of a session, as the flow sees it: decisions come from one thread, the flow looks from another.

In: events of a person, and what an earlier process of the run left. Out: a safe point that waits while the session is
paused, candidates to give up or to judge afresh, rulings for the lock. Standard library alone.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from agentcompile.events import CandidateAsked, Decided, Event, Steered, Undone
from agentcompile.ir.advice import Usage
from agentcompile.ir.template import Candidate
from agentcompile.ir.timing import Timing
from agentcompile.ir.trial import Layouts, Plan, Ruling
from agentcompile.ir.whole import ModelCheck

NOTHING = Usage()


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """What an earlier process of the run left. `plans` are all there, or none."""

    plans: tuple[Plan, ...] = ()
    ruled: tuple[Plan, ...] = ()
    layouts: Layouts = ()
    decided: tuple[Decided, ...] = ()
    asked: tuple[CandidateAsked, ...] = ()
    spent: Usage = NOTHING
    """On asking a model."""
    searched_s: float = 0.0
    """That searches took which ended."""
    steps: Mapping[str, Timing] = field(default_factory=dict[str, Timing])
    """Whole steps that were timed, by what was asked."""
    checks: Mapping[str, ModelCheck] = field(default_factory=dict[str, ModelCheck])
    """Whole models that were held against float32, by what they ran."""


class Steering:
    """One session's. A flow that nobody steers makes one of its own, which holds nothing up."""

    def __init__(
        self,
        earlier: Earlier = Earlier(),
        *,
        review: bool = False,
        undecided: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        """`review`: the lock waits until `undecided`, which names the regions that are so or stale, names none."""
        self.earlier, self.review, self.undecided = earlier, review, undecided
        self._legal: Callable[[Candidate], str] | None = None
        self._changed = threading.Condition()
        self._paused = False
        self._held_s = 0.0
        self._cancelled: set[str] = set()
        self._decided = list(earlier.decided)
        self._asked = [asked for asked in earlier.asked if asked.what != "cancel"]
        self._bell = (-1, -1)

    @property
    def legal(self) -> Callable[[Candidate], str] | None:
        """Says why a point is not in the space of its region; None before there are spaces."""
        return self._legal

    def know_spaces(self, legal: Callable[[Candidate], str]) -> None:
        """Answer from here on by `legal`, which says why a point is in no space."""
        self._legal = legal

    def listen(self) -> None:
        """Hang up the bell: somebody may ask from now on."""
        self._bell = os.pipe()
        for end in self._bell:
            os.set_blocking(end, False)

    def close(self) -> None:
        """Take the bell down; idempotent."""
        bell, self._bell = self._bell, (-1, -1)
        for end in bell:
            if end >= 0:
                os.close(end)

    def see(self, event: Event) -> None:
        """Take in what a person did; the event is on disk already. From any thread."""
        with self._changed:
            match event:
                case Steered(what=what):
                    self._paused = what == "pause"
                case Decided():
                    self._decided.append(event)
                case Undone():
                    self._decided.pop()
                case CandidateAsked(what="cancel", candidate=candidate):
                    self._cancelled.add(candidate)
                case CandidateAsked(candidate=candidate):
                    self._cancelled.discard(candidate)
                    self._asked.append(event)
                case _:
                    return
            self._changed.notify_all()
            if self._bell[1] >= 0:
                os.write(self._bell[1], b".")

    def point(self) -> None:
        """A safe point of the flow: wait here while the session is paused."""
        with self._changed:
            if not self._paused:
                return
            begin = time.monotonic()
            self._changed.wait_for(lambda: not self._paused)
            self._held_s += time.monotonic() - begin

    def clock(self) -> float:
        """Seconds that only differences have a meaning of; they stand still while the flow waits."""
        return time.monotonic() - self._held_s

    def cancelled(self, candidate: str) -> bool:
        """Whether a candidate id is to be given up."""
        return candidate in self._cancelled

    def bell(self) -> int:
        """A descriptor that can be read from when something was asked since `hush`; -1 when there is none."""
        return self._bell[0]

    def hush(self) -> None:
        """Forget that the bell rang."""
        try:
            while self._bell[0] >= 0 and os.read(self._bell[0], 4096):
                pass
        except BlockingIOError:
            return

    @property
    def asked(self) -> tuple[CandidateAsked, ...]:
        """Candidates to judge afresh, not taken yet."""
        with self._changed:
            return tuple(self._asked)

    def take(self) -> tuple[CandidateAsked, ...]:
        """Candidates to judge afresh; whoever takes them judges them."""
        with self._changed:
            taken, self._asked = tuple(self._asked), []
        return taken

    def rulings(self) -> dict[str, Ruling]:
        """The last word on each region that a person decided on."""
        with self._changed:
            return {ruling.region: ruling for decided in self._decided for ruling in decided.rulings}
