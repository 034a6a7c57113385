"""The parent's end of a worker: start it, ask it, wait with a limit, kill it with its group.

One thread owns a worker: the system kills it when the thread that started it ends.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from agentcompile.ir.codec import CodecError, decode, encode
from agentcompile.worker.box import NOTHING, Box
from agentcompile.worker.frames import FrameError, Splitter, pack
from agentcompile.worker.protocol import Answer, Ask, Ready, Reply, Request, Setup

_ENTRY = Path(__file__).with_name("__main__.py")
_TAIL_BYTES = 4096
_EXIT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """The worker is dead or no longer speaks frames. `signal` is 0 when no signal ended it."""

    signal: int
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Expired:
    """The request outlasted its limit; the worker was killed."""

    limit_s: float


Outcome = Reply | Lost | Expired


class Worker:
    """One worker process, in its own session. After `Lost` or `Expired` it is dead: start another."""

    def __init__(self, setup: Setup) -> None:
        self.box = Box.make()
        command = [sys.executable, "-P", str(_ENTRY), str(self.box.fd), str(os.getpid())]
        self._child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            pass_fds=(self.box.fd,),
            start_new_session=True,
        )
        assert self._child.stdin and self._child.stdout and self._child.stderr
        self._stdin, self._stdout, self._stderr = self._child.stdin, self._child.stdout, self._child.stderr
        for pipe in (self._stdin, self._stdout, self._stderr):
            os.set_blocking(pipe.fileno(), False)
        self._splitter, self._tail = Splitter(), b""
        self._token, self._deadline, self._limit_s = "", 0.0, 0.0
        self._noted = NOTHING
        self._outcome: Outcome | None = None
        self._dead = self._ended = self._log_ended = False
        self._setup_token = secrets.token_hex(8)
        self._unsent = pack(encode(Ask(token=self._setup_token, request=setup)))

    @property
    def pid(self) -> int:
        """Of the process, and of its group and session."""
        return self._child.pid

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
        """Whether it can be asked."""
        return not self._dead and not self._exited()

    @property
    def blamed(self) -> int:
        """The arm that ran last, by what the worker noted; -1 for none."""
        return self._noted if self._dead else self.box.read()

    def ask(self, request: Request, *, limit_s: float) -> None:
        """Send a request; `wait` tells when its outcome is there. A worker that is gone gives `Lost` as outcome."""
        assert not self.busy, "one request at a time"
        self._token, self._limit_s = secrets.token_hex(8), limit_s
        self._deadline = time.monotonic() + limit_s
        self._unsent += pack(encode(Ask(token=self._token, request=request)))
        self.pump()

    def take(self) -> Outcome:
        """The outcome of the last request; the worker may then be asked again, unless it is dead."""
        assert self._outcome is not None, "no outcome yet"
        outcome, self._outcome, self._token = self._outcome, None, ""
        return outcome

    def answer(self, request: Request, *, limit_s: float) -> Outcome:
        """Ask and wait."""
        self.ask(request, limit_s=limit_s)
        while not self.done:
            wait([self])
        return self.take()

    def kill(self) -> None:
        """SIGKILL the group, reap the child, close the pipes; idempotent."""
        if self._dead:
            return
        self._dead = True
        # The child is reaped only after its group is killed: until then nobody else can have its number.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(_EXIT_S)
        self._drain_log()
        for pipe in (self._stdin, self._stdout, self._stderr):
            with contextlib.suppress(OSError):
                pipe.close()
        self._noted = self.box.read()
        self.box.close()

    def pump(self) -> None:
        """Move what can be moved without blocking; settles the outcome when the reply, the end or the deadline is there."""
        if self.done or not self.busy:
            return
        if self._dead:
            self._outcome = Lost(signal=0, detail="the worker was dead already")
            return
        self._write()
        self._drain_log()
        data, self._ended = _read(self._stdout.fileno(), self._ended)
        try:
            for message, _ in self._splitter.feed(data):
                answer = decode(Answer, message)
                if answer.token == self._setup_token and isinstance(answer.reply, Ready):
                    self._setup_token = ""
                elif answer.token != self._token or self._outcome is not None:
                    raise FrameError(f"an answer that nobody asked for: {answer.reply!r:.300}")
                else:
                    self._outcome = answer.reply
        except (FrameError, CodecError) as error:
            self._lose(f"broken frames: {error}")
            return
        if self._outcome is None and self._ended:
            self._lose("")
        elif self._outcome is None and time.monotonic() >= self._deadline:
            self.kill()
            self._outcome = Expired(limit_s=self._limit_s)

    def watched(self) -> tuple[list[int], list[int], float]:
        """Descriptors to read, descriptors to write, and the deadline, for `wait`."""
        reads = [self._stdout.fileno()] if self._log_ended else [self._stdout.fileno(), self._stderr.fileno()]
        return reads, [self._stdin.fileno()] if self._unsent else [], self._deadline

    def _exited(self) -> bool:
        """Whether the child ended, without reaping it."""
        try:
            return os.waitid(os.P_PID, self._child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return True

    def _drain_log(self) -> None:
        data, self._log_ended = _read(self._stderr.fileno(), self._log_ended)
        self._tail = (self._tail + data)[-_TAIL_BYTES:]

    def _write(self) -> None:
        try:
            while self._unsent:
                self._unsent = self._unsent[os.write(self._stdin.fileno(), self._unsent) :]
        except BlockingIOError:
            pass
        except OSError:
            self._ended, self._unsent = True, b""

    def _lose(self, why: str) -> None:
        """Reap a worker that ended or broke the rules, and say how it ended."""
        until = time.monotonic() + _EXIT_S
        while not why and not self._exited() and time.monotonic() < until:
            time.sleep(0.005)
        stayed = not self._exited()
        self.kill()
        status = None if stayed else self._child.returncode
        number = -status if status is not None and status < 0 else 0
        if not why:
            why = _ending(number, status)
        said = clean(self._tail.decode("utf-8", "replace"))
        self._outcome = Lost(signal=number, detail=f"{why}; it said: {said}" if said else why)


def _ending(number: int, status: int | None) -> str:
    if number:
        try:
            return f"killed by {signal.Signals(number).name}"
        except ValueError:
            return f"killed by signal {number}"
    return "it closed its pipe and stayed" if status is None else f"left with exit code {status}"


def _read(fd: int, ended: bool) -> tuple[bytes, bool]:
    """What a non-blocking descriptor holds now, and whether its other end is closed."""
    pieces: list[bytes] = []
    while len(pieces) < 64 and not ended:  # a worker that floods its log must not hold us
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
    """The last `keep` printable characters of what a worker wrote."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())[-keep:]


def wait(workers: Sequence[Worker], *, at_most_s: float = 60.0) -> list[Worker]:
    """Wait until one of the busy `workers` has an outcome, or `at_most_s` is over; returns those that have one."""
    until = time.monotonic() + at_most_s
    while True:
        for worker in workers:
            worker.pump()
        done = [worker for worker in workers if worker.done]
        active = [worker for worker in workers if worker.busy and not worker.done]
        now = time.monotonic()
        if done or not active or now >= until:
            return done
        poll, timeout_s = select.poll(), until - now
        for worker in active:
            reads, writes, deadline = worker.watched()
            timeout_s = min(timeout_s, deadline - now)
            for fd in reads:
                poll.register(fd, select.POLLIN)
            for fd in writes:
                poll.register(fd, select.POLLOUT)
        poll.poll(max(0.0, timeout_s) * 1000 + 1)
