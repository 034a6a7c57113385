"""Asks a language model, about regions or anything else, with several request formats, retries and spending limits.

A server without JSON schema support is asked for plain JSON, one without either for a text with one fenced block;
`answer.py` decodes all three. A question about regions that is too long for the server is cut, or divided; what the
server holds is kept for the run. Each call is booked before it is made. The result is an answer or a reason.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from agentcompile.advice.answer import AnswerError, answer_of, read_answer
from agentcompile.advice.exchange import Answered, Exchange, Rung
from agentcompile.advice.ledger import Booking, Ledger, Price
from agentcompile.advice.prompt import Prompt
from agentcompile.advice.room import Room, halves, is_too_long
from agentcompile.advice.schema import Names, names_in
from agentcompile.advice.wire import ModelRequest, Reply, Wire, WireError
from agentcompile.events import AdviserCalled, AdviserReplied, Emit, silent
from agentcompile.ir.advice import Usage
from agentcompile.ir.digest import Json

T = TypeVar("T")
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
    answered: bool = False
    """Whether the server did answer, with what is no text or is too long."""
    final: bool = False
    """Whether asking again is of no use: a ceiling is reached, or the server refuses."""
    instead: tuple[Prompt, ...] = ()
    """Questions about fewer regions each, to ask instead of one that is too long for the server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unrecorded(Unanswered):
    """Only recorded answers are given, and there is none for the question."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TooLong(Unanswered):
    """The question is too long for the server; a shorter one may be answered."""

    allowed: int = 0
    """Most tokens of the answer to the request that the server refused; 0 for one that was not made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptRequest:
    """What a model is asked, whatever the request format."""

    system: str
    user: str
    schema: dict[str, Json] | None = None
    """Schema of the answer; None for that of advice."""
    form: str = "advice"
    """Name of that schema."""
    names: Names | None = None
    """What a question for advice names, for the schema where the answer must be short."""
    temperature: float | None = None
    """None leaves it to the server."""
    most_answer: Callable[[], int] | None = None
    """Returns, before each call, the most tokens of the answer: 0 where the server is known by then to have no room.

    None: as many as the ledger allows.
    """


class Requester:
    """Makes the requests to one server in one run; `ask` may be called from several threads at once."""

    def __init__(
        self,
        wire: Wire,
        ledger: Ledger,
        *,
        emit: Emit = silent,
        sleep: Callable[[float], object] = time.sleep,
        numbers: Iterator[int] | None = None,
        price: Price | None = None,
    ) -> None:
        """Create one; `emit` gets an event before each request, and may raise to prevent it, and one after.

        `price` is the model's own, where it is not that of the ledger's ceilings. Those that emit to the same run share
        their `numbers`, by which its calls are told apart.
        """
        self._wire, self._ledger, self._price = wire, ledger, price
        self._emit, self._sleep = emit, sleep
        self._rung = 0
        self._numbers = numbers if numbers is not None else itertools.count(1)
        self._refused = ""
        self._lock = threading.Lock()

    def ask(self, request: PromptRequest, read: Callable[[Reply, Rung], T]) -> T | Unanswered:
        """Ask in one request format after another until `read` returns; it raises `AnswerError` to try the next."""
        reason = ""
        rung = self._rung
        while rung < len(RUNGS):
            got = self._attempts(request, RUNGS[rung])
            if isinstance(got, Unanswered):
                return got
            if isinstance(got, str):
                reason = got
            else:
                try:
                    return read(got, RUNGS[rung])
                except AnswerError as error:
                    reason = str(error)
                    if got.cut_off:
                        return Unanswered(reason=f"the answer was cut off: {reason}")
            rung += 1
            with self._lock:  # so that later requests start with this format
                self._rung = rung = max(rung, min(self._rung, len(RUNGS)))
        return Unanswered(reason=reason or "the server knows no way of asking", final=True)

    def _attempts(self, request: PromptRequest, rung: Rung) -> Reply | Unanswered | str:
        """Return a reply, `Unanswered` when no advice can be had, or why this request format does not work."""  # noqa: DOC501
        for attempt in range(1, ATTEMPTS + 1):
            if self._refused:
                return Unanswered(reason=self._refused, final=True)
            got = self._call(request, rung)
            if isinstance(got, Unanswered):
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

    def _call(self, request: PromptRequest, rung: Rung) -> Reply | Unanswered:
        system = request.system + (_FENCE if rung == "text" else "")
        most = None if request.most_answer is None else request.most_answer()
        if most == 0:  # another thread has learnt more meanwhile
            return TooLong(reason="the server has no room for an answer")
        booking = self._ledger.book(len(system) + len(request.user), self._price, most_answer=most)
        if isinstance(booking, str):
            return Unanswered(reason=f"a ceiling is reached: {booking}", final=True)
        with self._lock:
            number = next(self._numbers)
        self._emit(AdviserCalled(call=number, booked=booking.usage, way=rung))
        ask = ModelRequest(
            system=system,
            user=request.user,
            rung=rung,
            answer_tokens=booking.answer_tokens,
            timeout_s=booking.timeout_s,
            schema=request.schema,
            form=request.form,
            names=request.names if booking.answer_tokens < ENOUGH_ANSWER else None,
            temperature=request.temperature,
        )
        try:
            reply = self._wire.send(ask)
        except WireError as error:
            # A failed call may have been charged for nevertheless.
            used = None if error.sent else Usage()
            self._settle(number, booking, used, str(error))
            return Unanswered(reason=str(error), answered=error.answered)
        if is_too_long(reply.status, reply.text):
            self._settle(number, booking, Usage(), f"status {reply.status}: the question is too long", calls=0)
            return TooLong(reason=f"status {reply.status}: {reply.text}", allowed=booking.answer_tokens)
        used = reply.usage if reply.status == 200 else Usage()
        self._settle(number, booking, used, f"status {reply.status}")
        return reply

    def _settle(self, number: int, booking: Booking, used: Usage | None, result: str, *, calls: int = 1) -> None:
        taken = self._ledger.settle(booking, used, calls=calls)
        self._emit(AdviserReplied(call=number, booked=booking.usage, used=taken, result=result))


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
        """Create a client; `emit` gets an event before each request, and may raise to prevent it, and one after.

        `context` is the number of tokens that the server holds, question and answer together; 0: it will say so.
        """
        self._requester = Requester(wire, ledger, emit=emit, sleep=sleep)
        self._model, self._answered_by = model, answered_by
        self._room = Room(context)

    def ask(self, prompt: Prompt) -> Answered | Unanswered:
        """Ask about the regions of `prompt`, one request format after another until an answer can be read.

        A question about one region is cut to what the server holds. One about several is not: `Unanswered.instead` has
        two about half of them each.
        """
        while True:  # the room gets smaller until a question fits, or none can
            fitting = self._fitting(prompt)
            got = fitting if isinstance(fitting, Unanswered) else self._asked(fitting)
            if got is not None:
                return got

    def _fitting(self, prompt: Prompt) -> Prompt | Unanswered:
        """Return `prompt`, cut where it is too long for what is known of the server; or what to ask instead."""
        if self._room.fits(prompt):
            return prompt
        said = f": {self._room.said}" if self._room.said else ""
        about = f"too long for the server, which holds about {self._room.tokens} tokens{said}"
        if len(prompt.asked) > 1:
            return Unanswered(reason=about, instead=halves(prompt))
        return self._room.cut(prompt) or Unanswered(reason=f"even the shortest question is {about}")

    def _asked(self, prompt: Prompt) -> Answered | Unanswered | None:
        """Ask just that; None where the server has turned out to have no room for it, or for its answer."""
        request = PromptRequest(
            system=prompt.system,
            user=prompt.user,
            names=names_in(prompt.asked, prompt.detail.listed),
            most_answer=lambda: self._room.answer(prompt),
        )
        got = self._requester.ask(request, lambda reply, rung: self._read(reply, prompt, rung))
        if isinstance(got, TooLong):
            if got.allowed:
                self._room.refused(prompt, got.allowed, got.reason)
            return None
        return got

    def _read(self, reply: Reply, prompt: Prompt, rung: Rung) -> Answered | None:
        try:
            return self._answered(reply, prompt, rung)
        except AnswerError:
            if reply.cut_off and self._room.ran_out(prompt, reply):
                return None
            raise

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
