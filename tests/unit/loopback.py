"""A chat-completions server on the loopback interface, in a thread of the test's process, that plays a script."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Play:
    """One response. `announced` is the length that the header claims, when it is not the body's."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    after_s: float = 0.0
    announced: int | None = None
    drip_s: float = 0.0
    """Seconds between single bytes of the body."""


@dataclass(slots=True)
class Server:
    """What came in, and what answers: a script by number of the request, the last one for all that follow."""

    script: list[Play | Callable[[dict[str, Any]], Play]]
    url: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    lock: Any = field(default_factory=threading.Lock)


def completion(content: object, **more: Any) -> Play:
    """A good envelope around a text, or around a value as JSON."""
    text = content if isinstance(content, str) else json.dumps(content)
    message = {"role": "assistant", "content": text, **more.pop("message", {})}
    choice = {"index": 0, "finish_reason": more.pop("finish", "stop"), "message": message}
    usage = {"prompt_tokens": 1000, "completion_tokens": 200, "total_tokens": 1200}
    whole = {
        "id": "x",
        "object": "chat.completion",
        "created": 0,
        "model": "served",
        "choices": [choice],
        "usage": usage,
    }
    return Play(body=json.dumps({**whole, **more}).encode())


def refusal(status: int, text: str = "no", **headers: str) -> Play:
    """An error as servers say it."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Play(status=status, body=json.dumps({"error": {"message": text}}).encode(), headers=named)


@contextmanager
def serving(*script: Play | Callable[[dict[str, Any]], Play]) -> Iterator[Server]:
    """A server that is gone when the block ends."""
    server = Server(script=list(script))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            """Nothing."""

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["content-length"])))
            with server.lock:
                at = len(server.requests)
                server.requests.append(request)
                server.keys.append(self.headers.get("authorization", ""))
            play = server.script[min(at, len(server.script) - 1)]
            if not isinstance(play, Play):
                play = play(request)
            time.sleep(play.after_s)
            try:
                self._send(play)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True

        def _send(self, play: Play) -> None:
            self.send_response(play.status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(play.body) if play.announced is None else play.announced))
            for name, value in play.headers.items():
                self.send_header(name, value)
            self.end_headers()
            if play.drip_s:
                for byte in play.body:
                    self.wfile.write(bytes([byte]))
                    self.wfile.flush()
                    time.sleep(play.drip_s)
            else:
                self.wfile.write(play.body)
            if play.announced is not None:
                self.close_connection = True

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    server.url = f"http://127.0.0.1:{http.server_port}/v1"
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()
        thread.join()
