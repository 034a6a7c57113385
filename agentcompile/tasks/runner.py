"""The process that runs a written kernel, and nothing else: it holds no reference, no task and no expected result.

In: a shared object and files of buffers. Out: buffers written, and times. A kernel that hangs or crashes ends this
process alone.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

from agentcompile.measure.clock import interval, settle
from agentcompile.runtime.native import Call, Executor, Library, Program
from agentcompile.tasks.arena import mapped
from agentcompile.tasks.enclosing import enclose
from agentcompile.tasks.wire import Bind, Done, Launch, Reply, Request, Timed, TimeKernel

_WARM = 4
"""The part of a batch, one in `_WARM`, that is run before each interval."""
_MOST_CALLS = 1 << 14
"""The most launches in one list; longer batches repeat it."""


class Runner:
    """A built kernel bound to its arenas."""

    def __init__(self) -> None:
        self._calls: list[list[Call]] = []
        self._threads = 1
        self._executor: Executor | None = None
        self._programs: dict[int, tuple[Program, int]] = {}

    def handle(self, request: Request) -> Reply:
        """Answer a request.

        Raises:
            TypeError: it is none for this process.
        """
        match request:
            case Bind():
                self._bind(request)
                return Done()
            case Launch():
                self._launch(request)
                return Done()
            case TimeKernel():
                return self._timed(request.batch)
            case _:
                raise TypeError(f"not for the process of a kernel: {request.kind}")

    def _bind(self, request: Bind) -> None:
        addresses = [mapped(file) for file in request.arenas]
        for own in addresses:
            own.update({name: addresses[0][name] for name in request.shared})
        files = (Path(request.binary), Path(request.executor))
        enclose(files, memory_bytes=request.memory_bytes, fenced=request.fenced)  # before there is a second thread
        self._executor, self._threads = Executor(Path(request.executor), request.threads), request.threads
        library = Library(Path(request.binary))
        self._calls = [
            [Call.of(library, entry, [own[name] if name else 0 for name in names]) for entry, names in request.launches]
            for own in addresses
        ]

    def _launch(self, request: Launch) -> None:
        calls = self._calls[request.arena]
        if request.order == "threads":
            assert self._executor is not None
            Program(self._executor, calls).run(request.repeat)
            return
        kernel = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_int)
        ranks = range(self._threads) if request.order == "forwards" else reversed(range(self._threads))
        order = list(ranks)
        for call in calls:
            pointers = (ctypes.c_void_p * max(len(call.pointers), 1))(*call.pointers)
            for rank in order:
                kernel(call.address)(ctypes.addressof(pointers), rank, self._threads)

    def _timed(self, batch: int) -> Timed:
        warm, _ = self._program(max(1, batch // _WARM))
        program, repeat = self._program(batch)
        settle()
        warm.run()
        found = interval(lambda: program.time(repeat, 1)[0])
        settle()
        return Timed(interval=found)

    def _program(self, batch: int) -> tuple[Program, int]:
        """Return a list of launches that walk over the arenas, and how often it is run."""
        if batch not in self._programs:
            assert self._executor is not None
            length = batch
            repeat = 1
            if batch > _MOST_CALLS:
                length = len(self._calls)
                repeat = max(1, batch // length)
            calls = [call for at in range(length) for call in self._calls[at % len(self._calls)]]
            self._programs[batch] = Program(self._executor, calls), repeat
        return self._programs[batch]
