"""The worker's loop: a reader thread for requests, the main thread for work, one request at a time.

When the request pipe ends, the parent is gone or no longer needs the worker: the whole process group is killed, with
any compiler that runs.
"""

from __future__ import annotations

import os
import queue
import signal
import threading
import traceback

from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.ir.codec import CodecError, decode, encode
from agentcompile.worker.box import Box
from agentcompile.worker.desk import Desk
from agentcompile.worker.frames import FrameError, Splitter, pack, write_all
from agentcompile.worker.protocol import Reply, WorkerAnswer, WorkerFault, WorkerRequest

_ERROR_CHARACTERS = 4000


def serve(requests: int, replies: int, box: Box, *, confined: bool = False) -> None:
    """Answer requests from descriptor `requests` on descriptor `replies`; never returns."""
    inbox: queue.SimpleQueue[WorkerRequest] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(requests, inbox, box), daemon=True).start()
    desk = Desk(box, confined=confined)
    while True:
        ask = inbox.get()
        try:
            write_all(replies, _packed(ask.token, _answer(desk, ask)))
        except BrokenPipeError:
            box.leave()
            end_group()


def _packed(token: str, reply: Reply) -> bytes:
    """Return the frame of an answer; one too large for a frame becomes a fault of the request, not of the worker."""
    try:
        return pack(encode(WorkerAnswer(token=token, reply=reply)))
    except ValueError as error:
        return pack(
            encode(WorkerAnswer(token=token, reply=WorkerFault(error=f"an answer that cannot be sent: {error}")))
        )


def _answer(desk: Desk, ask: WorkerRequest) -> Reply:
    try:
        return desk.handle(ask.request)
    except AgentCompileError as error:
        return WorkerFault(error=error.message, environment=error.exit_code is ExitCode.ENVIRONMENT, hint=error.hint)
    except Exception:  # noqa: BLE001 - whatever a candidate makes PyTorch raise is that candidate's failure
        return WorkerFault(error=traceback.format_exc()[-_ERROR_CHARACTERS:])


def _read(fd: int, inbox: queue.SimpleQueue[WorkerRequest], box: Box) -> None:
    splitter = Splitter()
    try:
        while data := os.read(fd, 1 << 16):
            for message, _ in splitter.feed(data):
                inbox.put(decode(WorkerRequest, message))
    except (FrameError, CodecError):
        traceback.print_exc()
    finally:
        box.leave()
        end_group()


def end_group() -> None:
    """Kill this process and every process it started."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)
