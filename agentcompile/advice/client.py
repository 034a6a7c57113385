"""Asks a language model about regions, with several request formats, retries and spending limits.

A server without JSON schema support is asked for plain JSON, one without either for a text with one fenced block;
`answer.py` decodes all three. A question that is too long for the server is cut, or divided; what the server holds is
kept for the run. Each call is booked before it is made. The result is an answer or a reason.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from agentcompile.advice.answer import AnswerError, answer_of, read_answer
from agentcompile.advice.exchange import Answered, Exchange, Rung
from agentcompile.advice.ledger import Booking, Ledger
from agentcompile.advice.prompt import Prompt
from agentcompile.advice.room import Room, halves, is_too_long
from agentcompile.advice.schema import names_in
from agentcompile.advice.wire import Ask, Reply, Wire, WireError
from agentcompile.events import AdviserCalled, AdviserReplied, Emit, silent
from agentcompile.ir.advice import Usage

RUNGS: tuple[Rung, ...] = ("json_schema", "json_object", "text")
ATTEMPTS = 3
"""Calls in one request format while the server answers that it is busy."""
LONGEST_WAIT_S = 60.0
"""Longest wait in seconds that a server may ask for."""
_BUSY = (408, 409, 429, 500, 502, 503, 504, 529)
_UNKNOWN_FORMAT = (400, 415, 422, 501)
"""Status codes of servers that do not support a response format."""
_NOT_ALLOWED = (401, 402, 403, 404)
ENOUGH_ANSWER = 4096
"""Tokens of an answer from which on its schema need not limit lists, texts and names."""
_FENCE = "\n\nPut the JSON object into one fenced block: a line ```json, the object, a line ```."


@dataclass(frozen=True, slots=True, kw_only=True)
class Unanswered:
    """The reason why there is no advice."""

    reason: str
    instead: tuple[Prompt, ...] = ()
    """Questions about fewer regions each, to ask instead of one that is too long for the server."""


@dataclass(frozen=True, slots=True)
class _TooLong:
    """The server refused the question for its length."""


class Client:
    """A client of one server for one run; `ask` may be called from several threads at once."""

    def __init__(
        self,
        wire: Wire,
        model: str,
        ledger: Ledger,
        *,
        emit: Emit = silent,
        sleep: Callable[[float], object] = time.sleep,
        answered_by: str = "",
        context: int = 0,
    ) -> None:
        """Create a client; `emit` is told of a request before it is made, and may raise to prevent it, and after.

        `context` is the number of tokens that the server holds, question and answer together; 0: it will say so.
        """
        self._wire, self._model, self._ledger = wire, model, ledger
        self._emit, self._sleep, self._answered_by = emit, sleep, answered_by
        self._room = Room(context)
        self._rung = 0
        self._number = 0
        self._refused = ""
        self._lock = threading.Lock()

    def ask(self, prompt: Prompt) -> Answered | Unanswered:
        """Ask about the regions of `prompt`, one request format after another until an answer can be read.

        A question about one region is cut to what the server holds. One about several is not: `Unanswered.instead` has
        two about half of them each.
        """
        reason = ""
        rung = self._rung
        while rung < len(RUNGS):
            fitting = self._fitting(prompt)
            if isinstance(fitting, Unanswered):
                return fitting
            got = self._attempts(fitting, RUNGS[rung])
            if isinstance(got, Unanswered):
                return got
            if isinstance(got, _TooLong):
                continue
            if isinstance(got, str):
                reason = got
            else:
                try:
                    return self._answered(got, fitting, RUNGS[rung])
                except AnswerError as error:
                    reason = str(error)
                    if got.cut_off and self._room.ran_out(fitting, got):
                        continue
                    if got.cut_off:
                        return Unanswered(reason=f"the answer was cut off: {reason}")
            rung += 1
            with self._lock:  # so that later requests start with this format
                self._rung = rung = max(rung, min(self._rung, len(RUNGS)))
        return Unanswered(reason=reason or "the server knows no way of asking")

    def _fitting(self, prompt: Prompt) -> Prompt | Unanswered:
        """Return `prompt`, cut where it is too long for what is known of the server; or what to ask instead."""
        if self._room.fits(prompt):
            return prompt
        said = f": {self._room.said}" if self._room.said else ""
        about = f"too long for the server, which holds about {self._room.tokens} tokens{said}"
        if len(prompt.asked) > 1:
            return Unanswered(reason=about, instead=halves(prompt))
        return self._room.cut(prompt) or Unanswered(reason=f"even the shortest question is {about}")

    def _answered(self, reply: Reply, prompt: Prompt, rung: Rung) -> Answered:
        found = answer_of(reply.text, fenced=rung == "text")
        if not isinstance(found, dict) or not isinstance(found.get("regions"), list):
            raise AnswerError("no list of regions")
        exchange = Exchange(
            keys={asked.id: asked.key for asked in prompt.asked},
            model=self._model,
            answered_by=self._answered_by or reply.model,
            rung=rung,
            system=prompt.system,
            user=prompt.user,
            answer=reply.text,
            usage=reply.usage or Usage(),
            at_ms=int(time.time() * 1000),
        )
        return Answered(exchange=exchange, reading=read_answer(found, prompt, self._model))

    def _attempts(self, prompt: Prompt, rung: Rung) -> Reply | Unanswered | _TooLong | str:
        """Return a reply, `Unanswered` when no advice can be had, or why this request format does not work."""  # noqa: DOC501
        for attempt in range(1, ATTEMPTS + 1):
            if self._refused:
                return Unanswered(reason=self._refused)
            got = self._call(prompt, rung)
            if isinstance(got, (Unanswered, _TooLong)):
                return got
            if got.status == 200:
                return got
            said = f"status {got.status}: {got.text}"
            if got.status in _UNKNOWN_FORMAT:
                return said
            if got.status in _NOT_ALLOWED:
                self._refused = said
            if got.status not in _BUSY or attempt == ATTEMPTS:
                return Unanswered(reason=said)
            wait_s = 0.5 * 2 ** (attempt - 1) if got.retry_after_s is None else got.retry_after_s
            if wait_s > min(LONGEST_WAIT_S, self._ledger.left_s()):
                return Unanswered(reason=f"{said}; it asks for {wait_s:.0f} s of patience")
            self._sleep(wait_s)
        raise AssertionError("every attempt returns")

    def _call(self, prompt: Prompt, rung: Rung) -> Reply | Unanswered | _TooLong:
        system = prompt.system + (_FENCE if rung == "text" else "")
        if not self._room.fits(prompt):  # another thread has learnt more meanwhile
            return _TooLong()
        booking = self._ledger.book(len(system) + len(prompt.user), self._room.answer(prompt))
        if isinstance(booking, str):
            return Unanswered(reason=f"a ceiling is reached: {booking}")
        with self._lock:
            self._number += 1
            number = self._number
        self._emit(AdviserCalled(call=number, booked=booking.usage, way=rung))
        ask = Ask(
            system=system,
            user=prompt.user,
            rung=rung,
            names=names_in(prompt.asked, prompt.detail.listed) if booking.answer_tokens < ENOUGH_ANSWER else None,
            answer_tokens=booking.answer_tokens,
            timeout_s=booking.timeout_s,
        )
        try:
            reply = self._wire.send(ask)
        except WireError as error:
            # A failed call may have been charged for nevertheless.
            used = None if error.sent else Usage()
            self._settle(number, booking, used, str(error))
            return Unanswered(reason=str(error))
        if is_too_long(reply.status, reply.text):
            self._room.refused(prompt, booking.answer_tokens, f"status {reply.status}: {reply.text}")
            self._settle(number, booking, Usage(), f"status {reply.status}: the question is too long", calls=0)
            return _TooLong()
        used = reply.usage if reply.status == 200 else Usage()
        self._settle(number, booking, used, f"status {reply.status}")
        return reply

    def _settle(self, number: int, booking: Booking, used: Usage | None, result: str, *, calls: int = 1) -> None:
        taken = self._ledger.settle(booking, used, calls=calls)
        self._emit(AdviserReplied(call=number, booked=booking.usage, used=taken, result=result))
