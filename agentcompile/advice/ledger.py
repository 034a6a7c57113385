"""Spending limits of an adviser and what has been spent: a call is booked before it is made.

A call that never ends, because the process was killed, counts with its booked amount, so that the limits survive a
resume: whoever folds the events of a run passes the sum to the next `Ledger`. Seconds are not booked, since nobody
knows when the process died: time counts once a call has ended, and the time of concurrent calls counts once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from agentcompile.ir.advice import Usage

LEAST_ANSWER = 512
"""Fewest tokens that must be left for an answer."""
MOST_ANSWER = 8192
"""Most tokens of an answer, where nothing else is said."""
_CHARACTERS = 3
"""Fewest characters a token in our prompts, so that a booking errs on the high side."""


Price = tuple[float, float]
"""Dollars for a million tokens of prompt, and of answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """What a run may spend on its adviser; 0 microdollars means any amount."""

    calls: int = 8
    tokens: int = 200_000
    microdollars: int = 0
    answer: int = MOST_ANSWER
    """Most tokens of one answer."""
    seconds: float = 600.0
    """Seconds from the first call to the last answer."""
    price: Price = (0.0, 0.0)
    """What tokens cost of a model that has no price of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Booking:
    """A call that may be made now."""

    usage: Usage
    """Most that the call may use."""
    answer_tokens: int
    timeout_s: float
    at_s: float
    """Time of the booking on the ledger's clock."""
    price: Price


class Ledger:
    """The spending of all calls of a run; safe to use from several threads."""

    def __init__(
        self, ceilings: Ceilings, spent: Usage | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Create a ledger; `spent` is what the run had spent before this process."""
        self.ceilings = ceilings
        self._spent = spent or Usage()
        self._before_s = self._spent.seconds
        self._clock = clock
        self._begin = self._counted_s = clock()
        self._lock = threading.Lock()

    @property
    def spent(self) -> Usage:
        """The spending so far, including all that is booked."""
        with self._lock:
            return self._spent

    def left_s(self) -> float:
        """Return the seconds that are left for asking."""
        return self.ceilings.seconds - self._before_s - (self._clock() - self._begin)

    def book(self, characters: int, price: Price | None = None, *, most_answer: int | None = None) -> Booking | str:
        """Book a call with a prompt of that many characters; return which limit forbids it, as text, where one does.

        `price` is the model's own, where it is not that of the ceilings; an answer has at most `most_answer` tokens,
        where that is less than the ceilings allow.
        """
        most, prompt = self.ceilings, characters // _CHARACTERS + 1
        price = most.price if price is None else price
        with self._lock:
            left = most.tokens - self._spent.tokens - prompt
            answer = min(left, most.answer if most_answer is None else min(most_answer, most.answer))
            usage = Usage(calls=1, prompt_tokens=prompt, completion_tokens=max(answer, 0))
            usage = replace(usage, microdollars=_cost(usage, price))
            if self._spent.calls >= most.calls:
                return f"{self._spent.calls} of {most.calls} calls are made"
            if answer < LEAST_ANSWER:
                return f"{self._spent.tokens} of {most.tokens} tokens are spent, and this prompt takes about {prompt}"
            if most.microdollars and self._spent.microdollars + usage.microdollars > most.microdollars:
                spent, limit = self._spent.microdollars / 1e4, most.microdollars / 1e4
                return (
                    f"{spent:.2f} of {limit:.2f} cents are spent, and this call may take {usage.microdollars / 1e4:.2f}"
                )
            timeout_s = self.left_s()
            if timeout_s <= 0:
                return f"{most.seconds:g} s are spent"
            self._spent += usage
            return Booking(usage=usage, answer_tokens=answer, timeout_s=timeout_s, at_s=self._clock(), price=price)

    def add(self, used: Usage) -> None:
        """Count what a call used that this ledger did not book, such as one of a process that was killed."""
        with self._lock:
            self._spent += used

    def settle(self, booking: Booking, used: Usage | None, *, calls: int = 1) -> Usage:
        """Replace a call's booking with what it used, and return that; None for `used` counts the booked tokens.

        The returned seconds are those that no other call was counted for. `calls` is 0 for a request that the server
        refused before a model read it.
        """
        tokens = used or booking.usage
        cost = _cost(tokens, booking.price)
        with self._lock:
            now = self._clock()
            seconds, self._counted_s = now - max(booking.at_s, self._counted_s), now
            taken = replace(tokens, calls=calls, microdollars=cost, seconds=seconds)
            self._spent = self._spent + taken - booking.usage
        return taken


def _cost(usage: Usage, price: Price) -> int:
    """Return what tokens cost in microdollars; a dollar for a million tokens is a microdollar for each."""
    return round(usage.prompt_tokens * price[0] + usage.completion_tokens * price[1])
