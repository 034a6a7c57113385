"""The parent's end of a worker: start it, send a request, wait with a limit, kill it with its process group.

A worker belongs to one thread at a time.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass

from agentcompile.errors import AgentCompileError
from agentcompile.ir.codec import CodecError, decode, encode
from agentcompile.measure.clock import waited_s
from agentcompile.sandbox import Fence
from agentcompile.worker.box import NOTHING, Box
from agentcompile.worker.frames import FrameError, Splitter, pack
from agentcompile.worker.protocol import Ready, Reply, Request, Setup, WorkerAnswer, WorkerRequest
from agentcompile.worker.zygote import Zygote

_TAIL_BYTES = 4096
_EXIT_S = 5.0
_PATIENCE = 3
"""How many times its limit a request may take where its threads wait for processors that other processes use."""
OUTSIDE = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
"""Signals that people and the system send; a process's own faults end it by other signals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """The worker is dead or speaks no frames; `signal` is 0 for none; `outside`: another process ended it, it seems."""

    signal: int
    detail: str
    outside: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Expired:
    """The request, or the part of it that was under way, outlasted its limit; the worker was killed."""

    limit_s: float


Outcome = Reply | Lost | Expired


class Worker:
    """One worker process, in its own session; after `Lost` or `Expired` it is dead, and another must be started."""

    def __init__(self, zygote: Zygote, setup: Setup, fence: Fence | None = None) -> None:
        self._zygote = zygote
        self.box = Box.make()
        pipes = [os.pipe() for _ in range(3)]
        (requests, self._stdin), (self._stdout, replies), (self._log, log) = pipes
        try:
            self.pid = zygote.spawn(requests, replies, log, self.box.fd, fence)
        except BaseException:
            for fd in (self._stdin, self._stdout, self._log):
                os.close(fd)
            self.box.close()
            raise
        finally:
            for fd in (requests, replies, log):
                os.close(fd)
        for fd in (self._stdin, self._stdout, self._log):
            os.set_blocking(fd, False)
        self._splitter, self._tail = Splitter(), b""
        self._token, self._deadline, self._limit_s, self._ticks = "", 0.0, 0.0, 0
        self._began, self._waited = 0.0, 0.0
        self._noted, self._left = NOTHING, False
        self._status: int | None = None
        self._outcome: Outcome | None = None
        self._dead = self._ended = self._log_ended = False
        self._setup_token = secrets.token_hex(8)
        self._unsent = pack(encode(WorkerRequest(token=self._setup_token, request=setup)))

    @property
    def busy(self) -> bool:
        """Whether a request is under way or its outcome not yet taken."""
        return bool(self._token)

    @property
    def done(self) -> bool:
        """Whether an outcome waits to be taken."""
        return self._outcome is not None

    @property
    def alive(self) -> bool:
        """Whether a request can be sent, as far as its pipe tells."""
        if not self._dead and not self.busy:
            data, self._ended = _read(self._stdout, self._ended)
            self._speaks(data)
            self._outcome = None
        return not self._dead and not self._ended

    @property
    def blamed(self) -> int:
        """The arm that ran last, by what the worker noted; -1 for none."""
        return self._noted if self._dead else self.box.read()

    def ask(self, request: Request, *, limit_s: float) -> None:
        """Send a request; `wait` returns when its outcome is there. A worker that is gone has `Lost` as outcome.

        `limit_s` is for the whole request, or, where the worker notes in its box that parts are done, for each part,
        and it leaves out what the worker's threads waited for a processor, up to `_PATIENCE` times the limit in all:
        a long request on a busy machine is not taken for one that hangs.
        """
        assert not self.busy, "one request at a time"
        self._token, self._limit_s = secrets.token_hex(8), limit_s
        self._begin()
        self._unsent += pack(encode(WorkerRequest(token=self._token, request=request)))
        self.pump()

    def take(self) -> Outcome:
        """Return the outcome of the last request; the worker may then get another, unless it is dead."""
        assert self._outcome is not None, "no outcome yet"
        outcome, self._outcome, self._token = self._outcome, None, ""
        return outcome

    def answer(self, request: Request, *, limit_s: float) -> Outcome:
        """Send a request, wait for its outcome and return it."""
        self.ask(request, limit_s=limit_s)
        while not self.done:
            wait([self])
        return self.take()

    def kill(self) -> None:
        """Send SIGKILL to the group, reap the child and close the pipes; calling it again does nothing."""
        if self._dead:
            return
        self._dead = True
        # The zygote has not reaped it yet, so no other process can have its number.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        with contextlib.suppress(AgentCompileError):
            self._status = self._zygote.reap(self.pid, _EXIT_S)
        self._drain_log()
        for fd in (self._stdin, self._stdout, self._log):
            os.close(fd)
        self._noted, self._left = self.box.read(), self.box.left
        self.box.close()

    def pump(self) -> None:
        """Read and write what does not block, and set the outcome at the reply, the worker's end or the deadline."""
        if self.done or not self.busy:
            return
        if self._dead:
            self._outcome = Lost(signal=0, detail="the worker was dead already")
            return
        self._write()
        self._drain_log()
        data, self._ended = _read(self._stdout, self._ended)
        if not self._speaks(data):
            return
        if self._outcome is None and self._ended:
            self._lose("")
        elif self._outcome is None and time.monotonic() >= self._deadline:
            if self.box.ticks != self._ticks:  # a part is done: the limit starts again
                self._begin()
            elif not self._granted():
                self.kill()
                self._outcome = Expired(limit_s=self._limit_s)

    def _begin(self) -> None:
        """Start the limit of the request, or of a part of it."""
        self._began, self._ticks, self._waited = time.monotonic(), self.box.ticks, waited_s(self.pid)
        self._deadline = self._began + self._limit_s

    def _granted(self) -> bool:
        """Move the deadline by what the worker waited for a processor; return False where that gives no more time."""
        waited = max(0.0, waited_s(self.pid) - self._waited)
        self._deadline = self._began + min(self._limit_s + waited, _PATIENCE * self._limit_s)
        return self._deadline > time.monotonic()

    def watched(self) -> tuple[list[int], list[int], float]:
        """Return descriptors to read, descriptors to write, and the deadline, for `wait`."""
        reads = [self._stdout] if self._log_ended else [self._stdout, self._log]
        return reads, [self._stdin] if self._unsent else [], self._deadline

    def _speaks(self, data: bytes) -> bool:
        """Read the frames that the worker wrote; return False, with the worker lost, when they are broken."""  # noqa: DOC501
        try:
            for message, _ in self._splitter.feed(data):
                answer: WorkerAnswer = decode(WorkerAnswer, message)
                if answer.token == self._setup_token and isinstance(answer.reply, Ready):
                    self._setup_token = ""
                elif answer.token != self._token or not self._token or self.done:
                    raise FrameError(f"an answer that nobody asked for: {answer.reply!r:.300}")
                else:
                    self._outcome = answer.reply
        except (FrameError, CodecError) as error:
            self._lose(f"broken frames: {error}")
        return not self._dead

    def _drain_log(self) -> None:
        data, self._log_ended = _read(self._log, self._log_ended)
        self._tail = (self._tail + data)[-_TAIL_BYTES:]

    def _write(self) -> None:
        try:
            while self._unsent:
                self._unsent = self._unsent[os.write(self._stdin, self._unsent) :]
        except BlockingIOError:
            pass
        except OSError:
            self._ended, self._unsent = True, b""

    def _lose(self, why: str) -> None:
        """Kill a worker that ended or broke the rules of frames, and set the outcome `Lost` with how it ended."""
        ended, orphan = bool(why), False
        try:
            ended = ended or self._zygote.ended(self.pid, _EXIT_S)
        except AgentCompileError:  # the system ends a worker with the process that it was forked from
            orphan = True
        self.kill()
        number = max(-self._status, 0) if ended and self._status is not None and not why else 0
        outside = orphan or (number in OUTSIDE and not self._left)
        why = why or ("the process that it was forked from is gone" if orphan else "")
        why = why or _ending(number, self._status if ended else None)
        said = clean(self._tail.decode("utf-8", "replace"))
        self._outcome = Lost(signal=number, detail=f"{why}; it said: {said}" if said else why, outside=outside)


def _ending(number: int, status: int | None) -> str:
    if number:
        try:
            return f"killed by {signal.Signals(number).name}"
        except ValueError:
            return f"killed by signal {number}"
    return "it closed its pipe and stayed" if status is None else f"left with exit code {status}"


def _read(fd: int, ended: bool) -> tuple[bytes, bool]:
    """Return what a non-blocking descriptor holds now, and whether its other end is closed."""
    pieces: list[bytes] = []
    while len(pieces) < 64 and not ended:  # a worker that floods its log must not block the parent
        try:
            piece = os.read(fd, 1 << 16)
        except BlockingIOError:
            break
        except OSError:
            ended = True
        else:
            ended = not piece
            pieces.append(piece)
    return b"".join(pieces), ended


def clean(text: str, keep: int = 600) -> str:
    """Return the last `keep` printable characters of what a worker wrote."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())[-keep:]


def wait(workers: Sequence[Worker], *, at_most_s: float = 60.0, bell: int = -1) -> list[Worker]:
    """Wait until a busy worker has an outcome, `bell` can be read, or `at_most_s` are over; return those with one."""
    until, rung = time.monotonic() + at_most_s, False
    while True:
        for worker in workers:
            worker.pump()
        done = [worker for worker in workers if worker.done]
        active = [worker for worker in workers if worker.busy and not worker.done]
        now = time.monotonic()
        if done or not active or now >= until or rung:
            return done
        poll, timeout_s = select.poll(), until - now
        for worker in active:
            reads, writes, deadline = worker.watched()
            timeout_s = min(timeout_s, deadline - now)
            for fd in reads:
                poll.register(fd, select.POLLIN)
            for fd in writes:
                poll.register(fd, select.POLLOUT)
        if bell >= 0:
            poll.register(bell, select.POLLIN)
        rung = bell in [fd for fd, _ in poll.poll(max(0.0, timeout_s) * 1000 + 1)]
