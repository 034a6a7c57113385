"""The child's end of a pipe to the evaluator: one request at a time, until the pipe ends.

Descriptors 1 and 2 are a log, so that whatever a task or a kernel prints breaks no frame.
"""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable

from agentcompile.ir.codec import decode, encode
from agentcompile.tasks.wire import AnswerFrame, AskFrame, ProcessFault, Reply, Request
from agentcompile.worker.frames import Splitter, pack, write_all
from agentcompile.worker.limits import die_with_parent, limit_process

Handler = Callable[[Request], Reply]
_ERROR_CHARACTERS = 4000


def main(role: str, parent: int) -> None:
    """Answer requests until the pipe ends; `role` is ``task``, ``kernel`` or ``device``."""
    requests, replies = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    die_with_parent(parent)
    limit_process()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    handler = _handler(role)
    splitter = Splitter()
    while data := os.read(requests, 1 << 16):
        for message, _ in splitter.feed(data):
            ask: AskFrame = decode(AskFrame, message)
            write_all(replies, pack(encode(AnswerFrame(token=ask.token, reply=_answer(handler, ask.request)))))


def _handler(role: str) -> Handler:
    if role == "task":
        from agentcompile.tasks.host import TaskHost

        return TaskHost().handle
    if role == "device":
        from agentcompile.tasks.device_runner import DeviceRunner

        return DeviceRunner().handle
    from agentcompile.tasks.runner import Runner

    return Runner().handle


def _answer(handler: Handler, request: Request) -> Reply:
    try:
        return handler(request)
    except BaseException:  # noqa: BLE001 - a task may raise anything, SystemExit too
        return ProcessFault(error=traceback.format_exc()[-_ERROR_CHARACTERS:])
