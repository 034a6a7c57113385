"""The evaluator's end of a child process: start it, ask it, wait with a limit, kill it with its process group."""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.ir.codec import CodecError, decode, encode
from agentcompile.options import passed_on
from agentcompile.tasks.wire import AnswerFrame, AskFrame, Reply, Request
from agentcompile.worker.frames import FrameError, Splitter, pack, write_all
from agentcompile.worker.process import OUTSIDE, Expired, Lost, clean

_ENTRY = Path(__file__).with_name("__main__.py")
_TAIL_BYTES = 4096
_EXIT_S = 5.0
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""A process with one thread alone can be confined; its kernels run on threads of the executor's."""
Outcome = Reply | Lost | Expired
Role = Literal["task", "kernel", "device"]
"""Whether a process holds a task, or runs a kernel on the host or on a device."""


class Child:
    """A process that holds a task or runs a kernel; after `Lost` or `Expired` it is dead."""

    def __init__(self, role: Role) -> None:
        """Start it in a session of its own.

        Raises:
            AgentCompileError: no process can be started (environment).
        """
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the process
        command = [sys.executable, "-P", str(_ENTRY), role, str(os.getpid())]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                start_new_session=True,
                env=None if role == "task" else {**passed_on(), **_ONE_THREAD},
            )
        except OSError as error:
            self._log.close()
            text = f"no process for a task can be started: {error.strerror}"
            hint = "check the machine's memory and process limits (ulimit -u)"
            raise AgentCompileError(text, exit_code=ExitCode.ENVIRONMENT, hint=hint) from error
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests, self._replies = self._process.stdin, self._process.stdout
        self._splitter, self._closed = Splitter(), False

    def __enter__(self) -> Self:
        """Return the process itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Kill the process."""
        self.close()

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it was not killed or found dead."""
        return not self._closed

    def ask(self, request: Request, *, limit_s: float) -> Outcome:
        """Send a request and return its reply, or how the process ended; whatever it does, it ends at the limit."""
        if self._closed:
            return Lost(signal=0, detail="the process was dead already")
        token, deadline = secrets.token_hex(8), time.monotonic() + limit_s
        try:
            write_all(self._requests.fileno(), pack(encode(AskFrame(token=token, request=request))))
        except OSError:
            return self._lost("")
        while True:
            poll = select.poll()
            poll.register(self._replies, select.POLLIN)
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000 + 1):
                self.close()
                return Expired(limit_s=limit_s)
            data = os.read(self._replies.fileno(), 1 << 16)
            if not data:
                return self._lost("")
            try:
                for message, _ in self._splitter.feed(data):
                    answer: AnswerFrame = decode(AnswerFrame, message)
                    if answer.token != token:
                        return self._lost("an answer that nobody asked for")
                    return answer.reply
            except (FrameError, CodecError) as error:
                return self._lost(f"broken frames: {error}")

    def close(self) -> None:
        """Kill the process and its group; calling it again does nothing."""
        if self._closed:
            return
        self._closed = True
        # It is not reaped yet, so no other process can have its number.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._requests.close()
        self._replies.close()
        self._log.close()

    def _lost(self, why: str) -> Lost:
        """Close the process, and say how it ended: by itself, or by `why` it was not trusted any longer."""
        status: int | None = None
        if not why:
            with contextlib.suppress(subprocess.TimeoutExpired):
                # It is waited for without being reaped, so that its group can be killed.
                until = time.monotonic() + _EXIT_S
                while os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                    if time.monotonic() > until:
                        break
                    time.sleep(0.005)
                else:
                    status = self._status()
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, self._log.tell() - _TAIL_BYTES))
        said = clean(self._log.read().decode("utf-8", "replace"))
        self.close()
        number = -status if status is not None and status < 0 else 0
        why = why or _ending(status)
        return Lost(signal=number, detail=f"{why}; it said: {said}" if said else why, outside=number in OUTSIDE)

    def _status(self) -> int:
        found = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        assert found is not None
        return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status


def _ending(status: int | None) -> str:
    if status is None:
        return "it closed its pipe and stayed"
    if status >= 0:
        return f"left with exit code {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"
