"""What a person asked of a session, as the flow sees it: one thread records requests, the flow's thread reads them.

In: events of a person, and what an earlier process of the run left. Out: a safe point that waits while the session is
paused, candidates to give up or to evaluate again, decisions for the lock. Only the standard library.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from agentcompile.events import CandidateAsked, Decided, Event, Steered, Undone
from agentcompile.ir.template import Candidate
from agentcompile.ir.trial import Decision
from agentcompile.runs.progress import State

T = TypeVar("T")


class Steering:
    """The steering of one session; a flow that nobody steers makes its own, which never waits."""

    def __init__(
        self,
        earlier: State | None = None,
        *,
        review: bool = False,
        undecided: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        """Make the steering of a session; `earlier` is what the run left, its `plans` complete or empty.

        With `review` the lock waits until `undecided`, which names the undecided and stale regions, returns none.
        """
        self.earlier, self.review, self.undecided = earlier or State(), review, undecided
        self.legal: Callable[[Candidate], str] | None = None
        """Set by `know_spaces`: says why a candidate is not in its region's space; None before there are spaces."""
        self._changed = threading.Condition()
        self._paused = False
        self._held_s = 0.0
        self._cancelled: set[str] = set()
        self._decided = list(self.earlier.decided)
        self._asked = [asked for asked in self.earlier.asked if asked.what != "cancel"]
        self._bell = (-1, -1)

    def know_spaces(self, legal: Callable[[Candidate], str]) -> None:
        """Set the check of candidates that a person asks for: it returns why one is not legal, or nothing."""
        self.legal = legal

    def listen(self) -> None:
        """Open the pipe whose readable end is `bell`: from now on requests may arrive."""
        self._bell = os.pipe()
        for end in self._bell:
            os.set_blocking(end, False)

    def close(self) -> None:
        """Close the pipe of `bell`; idempotent."""
        bell, self._bell = self._bell, (-1, -1)
        for end in bell:
            if end >= 0:
                os.close(end)

    def see(self, event: Event) -> None:
        """Record what a person did, from any thread; the event is on disk already."""
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
        """Wait while the session is paused; the flow calls this at each safe point."""
        with self._changed:
            if not self._paused:
                return
            begin = time.monotonic()
            self._changed.wait_for(lambda: not self._paused)
            self._held_s += time.monotonic() - begin

    def held(self, items: Iterable[T]) -> Iterator[T]:
        """Yield the items one after another, waiting at a safe point before each."""
        for item in items:
            self.point()
            yield item

    def clock(self) -> float:
        """Return seconds of a clock that stands still while the flow waits; only differences have a meaning."""
        return time.monotonic() - self._held_s

    def cancelled(self, candidate: str) -> bool:
        """Return whether a candidate id is to be given up."""
        return candidate in self._cancelled

    def bell(self) -> int:
        """Return a descriptor that is readable when a request came since `hush`; -1 when there is none."""
        return self._bell[0]

    def hush(self) -> None:
        """Reset the bell, so that it is readable only after the next request."""
        try:
            while self._bell[0] >= 0 and os.read(self._bell[0], 4096):
                pass
        except BlockingIOError:
            return

    @property
    def asked(self) -> tuple[CandidateAsked, ...]:
        """Candidates to evaluate again that nobody has taken yet."""
        with self._changed:
            return tuple(self._asked)

    def take(self) -> tuple[CandidateAsked, ...]:
        """Return the candidates to evaluate again and clear the list; the caller must evaluate them."""
        with self._changed:
            taken, self._asked = tuple(self._asked), []
        return taken

    def decisions(self) -> dict[str, Decision]:
        """Return the last decision on each region that a person decided on."""
        with self._changed:
            return {decision.region: decision for decided in self._decided for decision in decided.rulings}
