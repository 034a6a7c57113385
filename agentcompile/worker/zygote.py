"""The process that workers are forked from: PyTorch is imported once, and a fresh worker takes milliseconds.

It runs no candidate's code, starts no thread, and ends when the socket to its parent does. It reaps a worker only when
asked to: until then no other process can have the number of the group that the parent kills.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import mmap
import os
import random
import signal
import socket
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.ir.codec import decode, encode
from agentcompile.sandbox import Fence, confine
from agentcompile.worker.box import Box
from agentcompile.worker.limits import die_with_parent, limit_process
from agentcompile.worker.serve import serve

_ENTRY = Path(__file__).with_name("__main__.py")
_PRELOAD = ("torch", "agentcompile.validate", "agentcompile.worker.timing", "agentcompile.worker.ceiling")
_MESSAGE_BYTES = 1 << 16
_SPREAD_PAGES = 1 << 14


class Zygote:
    """The parent's end of the zygote: construction returns at once, and the first `spawn` waits until it is ready."""

    def __init__(self, *, start_s: float = 60.0, environment: Mapping[str, str] | None = None) -> None:
        """Start the process; it has `start_s` seconds to answer each request, and `environment` instead of ours."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-P", str(_ENTRY)]
        self._process = subprocess.Popen(
            command,
            stdin=theirs.fileno(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env=environment,
        )
        theirs.close()
        ours.settimeout(start_s)
        self._socket, self._asked = ours, 0

    def spawn(self, requests: int, replies: int, log: int, box: int, fence: Fence | None = None) -> int:
        """Fork a worker that reads and writes these descriptors, in its own session, behind `fence`; return its pid.

        Raises:
            AgentCompileError: the process cannot start or fork (environment).
        """
        return int(self._ask({"op": "fork", "fence": encode(fence)}, (requests, replies, log, box))["pid"])

    def ended(self, pid: int, wait_s: float) -> bool:
        """Return whether a worker ends by itself within `wait_s` seconds; it is not reaped."""
        return bool(self._ask({"op": "ended", "pid": pid, "wait_s": wait_s}, ())["ended"])

    def reap(self, pid: int, wait_s: float) -> int | None:
        """Reap a killed worker; return its exit code or minus its signal, None if it runs after `wait_s` seconds."""
        if not self.ended(pid, wait_s):
            return None
        return os.waitstatus_to_exitcode(int(self._ask({"op": "reap", "pid": pid}, ())["status"]))

    def close(self) -> None:
        """End the process, and with it every worker that is left; calling it again does nothing."""
        self._socket.close()
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        if self._process.stderr is not None:
            self._process.stderr.close()

    def _ask(self, message: dict[str, object], fds: tuple[int, ...]) -> dict[str, int]:
        # A signal may interrupt an earlier request before its answer is read; that answer comes first and is skipped.
        self._asked += 1
        answer: dict[str, int] = {}
        try:
            socket.send_fds(self._socket, [json.dumps({**message, "number": self._asked}).encode()], list(fds))
            while answer.get("number") != self._asked:
                data = self._socket.recv(_MESSAGE_BYTES)
                if not data:
                    raise _broken(self._last_words())
                answer = json.loads(data)
        except TimeoutError:
            raise _broken(f"no answer within {self._socket.gettimeout():g} s") from None
        except OSError:
            raise _broken(self._last_words()) from None
        if "error" in answer:
            raise _broken(str(answer["error"]))
        return answer

    def _last_words(self) -> str:
        self._process.kill()
        _, said = self._process.communicate(timeout=10)
        return said.decode("utf-8", "replace").strip()[-1000:] or f"it left with status {self._process.returncode}"


def _broken(why: str) -> AgentCompileError:
    return AgentCompileError(
        f"worker processes cannot be started: {why}",
        exit_code=ExitCode.ENVIRONMENT,
        hint="check the machine's memory and process limits (ulimit -u) and that `python -c 'import torch'` works",
    )


def control_socket() -> socket.socket:
    """Return the socket to the parent, which descriptor 0 is; from now on that is empty, and Ctrl-C is the parent's."""
    control = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return control


def main() -> None:
    """Run the zygote: descriptor 0 is the socket to the parent. The process exits when that ends."""
    control = control_socket()
    for name in _PRELOAD:
        importlib.import_module(name)
    while True:
        message, fds, _, _ = socket.recv_fds(control, _MESSAGE_BYTES, 4)
        if not message:
            os._exit(0)
        request = json.loads(message)
        answer = {**_handle(request, control, fds), "number": request["number"]}
        for fd in fds:
            os.close(fd)
        with contextlib.suppress(BrokenPipeError):
            control.send(json.dumps(answer).encode())


def _handle(request: dict[str, Any], control: socket.socket, fds: list[int]) -> dict[str, object]:
    try:
        match request["op"]:
            case "fork":
                return {"pid": _fork(control, fds, decode(Fence | None, request["fence"]))}
            case "ended":
                return {"ended": _ended(request["pid"], request["wait_s"])}
            case _:
                return {"status": os.waitpid(request["pid"], os.WNOHANG)[1]}
    except OSError as error:
        return {"error": f"{request['op']}: {error.strerror}"}


def _ended(pid: int, wait_s: float) -> bool:
    until = time.monotonic() + wait_s
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if time.monotonic() >= until:
            return False
        time.sleep(0.002)
    return True


def _fork(control: socket.socket, fds: list[int], fence: Fence | None) -> int:
    parent = os.getpid()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warns of threads; BLAS's idle ones register their own fork handlers
        pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        control.close()
        _become(fds, parent, fence)
    except BaseException:  # noqa: BLE001 - nothing may return into the parent's loop
        traceback.print_exc()
    finally:
        os._exit(70)


def _become(fds: list[int], parent: int, fence: Fence | None) -> None:
    """Turn the fork into a worker. Descriptors 1 and 2 are its log, so that native code that prints breaks no frame."""
    requests, replies, log, box = fds
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    die_with_parent(parent)
    limit_process()
    shared = Box(box)
    with _gap():
        if fence is not None:
            confine(fence)
            if os.getppid() != parent:
                os._exit(1)
        serve(requests, replies, shared, confined=fence is not None)


def _gap() -> mmap.mmap:
    """Map a hole of random size that shifts later mappings: forks share one address layout, which affects times."""
    pages = random.SystemRandom().randrange(1, _SPREAD_PAGES)
    return mmap.mmap(-1, pages * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=mmap.PROT_READ)
