"""One request to an OpenAI-compatible server through the `openai` package, with limits on bytes and time.

In: messages and the request format. Out: a `Reply` with status, text and token counts, or `WireError` with a reason.
Nothing here retries, and no returned text or error contains the key.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, Protocol

from agentcompile.advice.exchange import Rung
from agentcompile.advice.schema import Names, answer_schema
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.ir.advice import Usage
from agentcompile.ir.cleaning import clean, redacted
from agentcompile.ir.digest import Json

CONNECT_S = 1.5
"""Seconds in which a server must accept the connection, so that one that is down costs little."""
MOST_BYTES = 2 << 20
"""Most bytes of a response's body."""
OPENAI = "https://api.openai.com/v1"


class WireError(Exception):
    """No readable response; the message is the reason, without the key.

    `sent` is True when the server may have seen the request, and its operator may charge for it; `answered` when it did
    answer, with something that is no text or is too long.
    """

    def __init__(self, reason: str, *, sent: bool = True, answered: bool = False) -> None:
        super().__init__(reason)
        self.sent, self.answered = sent, answered


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """One request."""

    system: str
    user: str
    rung: Rung
    answer_tokens: int
    timeout_s: float
    schema: dict[str, Json] | None = None
    """Schema of the answer; None for that of advice."""
    form: str = "advice"
    """Name of that schema, which a server may show to the model."""
    names: Names | None = None
    """What a question for advice names, for a schema that allows no others and sets limits; None: one of neither."""
    temperature: float | None = None
    """Temperature of the sampling; None leaves it to the server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A response: on success `text` is that of the message, else the server's error."""

    status: int
    text: str
    model: str = ""
    usage: Usage | None = None
    cut_off: bool = False
    """Whether the server stopped before the answer was complete."""
    allowed: int = 0
    """Most tokens of an answer that the request allowed."""
    retry_after_s: float | None = None


class Wire(Protocol):
    """A transport for requests; tests and replays have their own."""

    def send(self, ask: ModelRequest) -> Reply:
        """Send one request and return its response; called from several threads.

        Raises:
            WireError: there is no readable response.
        """
        ...

    def close(self) -> None:
        """End all requests that are open."""
        ...


class OpenAIWire:
    """A transport that uses the `openai` package, imported at the first request because that takes a second."""

    def __init__(self, model: str, base_url: str, key: str) -> None:
        """Create a transport; an empty `base_url` means OpenAI's own, an empty `key` a server that needs none."""
        self._model, self._base_url, self._key = model, base_url, key
        self._client: Any = None
        self._closed = False
        self._end = threading.local()
        self._making = threading.Lock()

    def send(self, ask: ModelRequest) -> Reply:
        """Send one request and return its response, with its status also where that is an error.

        Raises:
            WireError: no connection or no answer in time, a response that cannot be read, or any error of the package.
        """
        import openai

        self._end.at = time.monotonic() + ask.timeout_s
        try:
            response = self._connected(openai).chat.completions.with_raw_response.create(
                model=self._model,
                messages=[{"role": "system", "content": ask.system}, {"role": "user", "content": ask.user}],
                max_completion_tokens=ask.answer_tokens,
                timeout=openai.Timeout(ask.timeout_s, connect=min(CONNECT_S, ask.timeout_s)),
                extra_headers={"accept-encoding": "identity"},
                **_format(ask),
                **({} if ask.temperature is None else {"temperature": ask.temperature}),
            )
            return self._reply(int(response.status_code), bytes(response.content), ask.answer_tokens)
        except openai.APIStatusError as error:
            said = self._hidden(error.response.content[:2000].decode(errors="replace"))
            wait = _retry_after(error.response.headers)
            return Reply(status=int(error.status_code), text=clean(said, 300), retry_after_s=wait)
        except openai.APITimeoutError as error:
            connecting = "Connect" in type(error.__cause__).__name__
            what, limit_s = ("connection", CONNECT_S) if connecting else ("answer", ask.timeout_s)
            raise WireError(f"no {what} within {limit_s:g} s", sent=not connecting) from error
        except openai.APIConnectionError as error:
            cause = error.__cause__ or error
            if isinstance(cause, WireError):
                raise cause from None
            sent = "Connect" not in type(cause).__name__
            raise WireError(self._hidden(f"{type(cause).__name__}: {cause}"), sent=sent) from None
        except WireError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever the package raises is no more than no advice
            raise WireError(self._hidden(f"{type(error).__name__}: {error}")) from None

    def close(self) -> None:
        """End the open requests, and refuse new ones."""
        self._closed = True
        if self._client is not None:
            self._client.close()

    def _connected(self, openai: Any) -> Any:
        with self._making:
            if self._closed:
                raise WireError("closed", sent=False)
            if self._client is None:
                # A redirect would send the key to another server.
                http = openai.DefaultHttpxClient(event_hooks={"response": [self._bound]}, follow_redirects=False)
                self._client = openai.OpenAI(
                    api_key=self._key or "none", base_url=self._base_url or OPENAI, max_retries=0, http_client=http
                )
            return self._client

    def _bound(self, response: Any) -> None:
        """Limit the size and time of a response: an HTTP hook that runs before the body is read."""  # noqa: DOC501
        if response.headers.get("content-encoding", "identity") != "identity":
            raise WireError("a compressed response, which was not asked for")
        response.stream = _bounded(response.stream, self._end.at)

    def _reply(self, status: int, body: bytes, allowed: int) -> Reply:
        try:
            text = body.decode()
        except UnicodeDecodeError as error:
            what = f"byte 0x{body[error.start]:02x} of the response is not UTF-8"
            raise WireError(what, answered=True) from error
        try:
            found = json.loads(text)
            choice = found["choices"][0]
            message = choice["message"]
        except (ValueError, RecursionError, KeyError, IndexError, TypeError) as error:
            raise WireError(f"no chat completion: {self._hidden(type(error).__name__)}: {len(body)} bytes") from error
        content = message.get("content") if isinstance(message, dict) else None
        if not isinstance(content, str):
            what = "a tool call" if isinstance(message, dict) and message.get("tool_calls") else "no text"
            raise WireError(f"answered with {what}", answered=True)
        return Reply(
            status=status,
            text=self._hidden(content.encode(errors="replace").decode()),
            model=clean(self._hidden(str(found.get("model", ""))), 80),
            usage=_usage(found.get("usage")),
            cut_off=choice.get("finish_reason") == "length",
            allowed=allowed,
        )

    def _hidden(self, text: str) -> str:
        return redacted(text, (self._key,))


def needs_openai() -> None:
    """Check that the `openai` package is installed.

    Raises:
        AgentCompileError: the package is missing (environment).
    """
    import importlib.util

    if importlib.util.find_spec("openai") is None:
        raise AgentCompileError(
            "--advisor openai:…: the openai package is missing",
            exit_code=ExitCode.ENVIRONMENT,
            hint="pip install 'agentcompile[llm]'",
        )


def _format(ask: ModelRequest) -> dict[str, Any]:
    match ask.rung:
        case "json_schema":
            schema = answer_schema(ask.names) if ask.schema is None else ask.schema
            form = {"name": ask.form, "strict": True, "schema": schema}
            return {"response_format": {"type": "json_schema", "json_schema": form}}
        case "json_object":  # llama-cpp-python and others that serve small models take a schema here
            own = {"schema": answer_schema(ask.names)} if ask.names else {}
            return {"response_format": {"type": "json_object", **own}}
        case "text":
            return {}


def _bounded(stream: Any, end: float) -> Any:
    import httpx2

    class Bounded(httpx2.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            size = 0
            for chunk in stream:
                size += len(chunk)
                if size > MOST_BYTES:
                    raise WireError(f"a response of more than {MOST_BYTES} bytes", answered=True)
                if time.monotonic() > end:
                    raise WireError("the response came too slowly")
                yield chunk

        def close(self) -> None:
            stream.close()

    return Bounded()


def _usage(found: object) -> Usage | None:
    """Return the token counts that the server reports; None where it reports none, or impossible ones."""
    if not isinstance(found, dict):
        return None
    prompt, answer = found.get("prompt_tokens"), found.get("completion_tokens")
    if not (_count(prompt) and _count(answer)):
        return None
    assert isinstance(prompt, int)
    assert isinstance(answer, int)
    return Usage(prompt_tokens=prompt, completion_tokens=answer)


def _count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 40


def _retry_after(headers: Any) -> float | None:
    """Return the seconds that a server asks us to wait (RFC 9110, 10.2.3: a number or a date), or None."""
    said = str(headers.get("retry-after", "")).strip()
    try:
        seconds = float(said)
        return None if math.isnan(seconds) else max(seconds, 0.0)
    except ValueError:
        pass
    try:
        return max(parsedate_to_datetime(said).timestamp() - time.time(), 0.0)
    except (ValueError, TypeError, IndexError, OverflowError):  # the last one of a year that fits no C integer
        return None
